//! The circumstances of a measurement: program, machine, and load from other programs.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use waterline::internal::Checkpoint;

use crate::builtin;
use crate::clocks::Clocks;
use crate::error::{Error, Result};
use crate::sha256;
use crate::wrong_model::quoted;

/// Number of cores that other programs may use before a measurement counts as disturbed.
const QUIET: f64 = 0.1;

/// The origin of a result.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// The commit that the program was built from.
    pub commit: String,
    /// The start of the measurement, with the time zone.
    pub date: String,
    /// The command line.
    pub command: String,
    /// SHA-256 of the model's file, or of a folder's safetensors in the order of their names.
    pub model_sha256: String,
    /// The number formats of the weights, with their shares of the bytes.
    pub format: String,
    /// The GPU.
    pub gpu: Option<String>,
    /// The system's load average over a minute, before and after the measurement.
    pub load: Option<[f64; 2]>,
    /// Mean number of cores that other programs used during the measurement.
    pub others_cores: Option<f64>,
    /// The clocks of the processor or the GPU.
    pub clocks: Clocks,
    /// A caveat about the measurements, if any.
    pub warning: Option<String>,
}

impl Provenance {
    /// Records a measurement of the model at `path` that begins now.
    pub fn new(path: Option<&Path>, checkpoint: &Checkpoint) -> Result<Self> {
        Ok(Provenance {
            model_sha256: sha256(path)?,
            format: formats(checkpoint),
            ..Provenance::begin()
        })
    }

    /// Records a measurement that begins now, without a model's file. The command line is recorded without API keys.
    pub fn begin() -> Self {
        let mut command = String::from("waterline");
        let mut hides = false;
        for word in std::env::args().skip(1) {
            let shown = match word.split_once('=') {
                _ if std::mem::take(&mut hides) => "...".into(),
                Some((flag @ "--api-key", _)) => format!("{flag}=..."),
                _ => quoted(&word),
            };
            hides = word == "--api-key";
            command += " ";
            command += &shown;
        }
        let now = jiff::ZonedDateTime::now();
        Provenance {
            commit: env!("WATERLINE_COMMIT").into(),
            date: now.strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
            command,
            ..Provenance::default()
        }
    }

    /// Returns a warning if other programs used the processor, or if heat or power limits slowed it or the GPU.
    pub fn warning(&self) -> Option<String> {
        let busy = self.others_cores.filter(|&cores| cores > QUIET).map(|busy| {
            format!(
                "warning: the machine was busy: other programs used {busy:.1} cores on average during the measurement"
            )
        });
        let warnings: Vec<String> = busy.into_iter().chain(self.clocks.warning()).collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Returns enough digits of the hash to distinguish files.
    pub fn short_sha256(&self) -> &str {
        self.model_sha256.get(..12).unwrap_or_default()
    }

    /// Names and values of facts for the tables.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("commit", self.commit.clone()),
            ("date", self.date.clone()),
            ("command", self.command.clone()),
            ("model sha256", self.model_sha256.clone()),
            ("formats", self.format.clone()),
        ];
        facts.extend(self.gpu.clone().map(|gpu| ("gpu", gpu)));
        if let (Some([before, after]), Some(others)) = (self.load, self.others_cores) {
            let load =
                format!("{before:.2} before, {after:.2} after; others used {others:.2} cores");
            facts.push(("system load", load));
        }
        facts.extend(self.clocks.in_words().map(|clocks| ("clocks", clocks)));
        facts
    }
}

/// Returns the facts of several measurements: shared facts once, others with each label.
pub fn facts(labels: &[String], from: &[&Provenance]) -> Vec<(String, String)> {
    let [first, others @ ..] = from else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (name, value) in first.facts() {
        let same = |other: &&Provenance| other.facts().contains(&(name, value.clone()));
        if others.iter().all(same) {
            all.push((name.into(), value));
            continue;
        }
        for (label, one) in labels.iter().zip(from) {
            let facts = one.facts().into_iter();
            let mut found = facts.filter(|(other, _)| *other == name);
            all.extend(
                found
                    .next()
                    .map(|(_, value)| (format!("{name}, {label}"), value)),
            );
        }
    }
    all
}

fn sha256(path: Option<&Path>) -> Result<String> {
    match path {
        None => Ok(sha256::of_bytes(builtin::bytes()?)),
        Some(path) => sha256::of_files(&files(path)?),
    }
}

/// The files that hold the weights.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| Error::io(path, e))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.is_file() && path.extension().is_some_and(|kind| kind == "safetensors"))
        .collect();
    files.sort();
    Ok(files)
}

/// Lists the formats that hold at least one percent of the weights' bytes: `Q4_K 61 %, Q6_K 38 %`.
fn formats(checkpoint: &Checkpoint) -> String {
    let mut formats: Vec<(&str, usize)> = Vec::new();
    let mut all = 0;
    for weight in checkpoint.spec.weights() {
        let Some(tensor) = checkpoint.tensors.get(&weight.name) else {
            continue;
        };
        all += tensor.data.len();
        match formats
            .iter_mut()
            .find(|(name, _)| *name == tensor.format.name)
        {
            Some((_, bytes)) => *bytes += tensor.data.len(),
            None => formats.push((tensor.format.name, tensor.data.len())),
        }
    }
    formats.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let share = |bytes: usize| (100.0 * bytes as f64 / all.max(1) as f64).round();
    let shown = formats.iter().filter(|(_, bytes)| share(*bytes) >= 1.0);
    let parts: Vec<String> = shown
        .map(|(name, bytes)| format!("{name} {} %", share(*bytes)))
        .collect();
    parts.join(", ")
}

/// Measures the processor time that other programs use between two moments. Linux only.
pub struct Others {
    busy: u64,
    all: u64,
    own: u64,
    load: f64,
}

impl Others {
    /// Takes the readings now.
    pub fn now() -> Option<Self> {
        let stat = read_to_string("/proc/stat").ok()?;
        let fields = stat.lines().next()?.split_whitespace().skip(1);
        let ticks: Vec<u64> = fields.map_while(|n| n.parse().ok()).take(8).collect();
        let all: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        let own = read_to_string("/proc/self/stat").ok()?;
        // The process name before the parenthesis may contain spaces.
        let mut own = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let own = own.next()?.parse::<u64>().ok()? + own.next()?.parse::<u64>().ok()?;
        let load = read_to_string("/proc/loadavg").ok()?;
        Some(Others {
            busy: all - idle,
            all,
            own,
            load: load.split_whitespace().next()?.parse().ok()?,
        })
    }

    /// Records the load, and the processor time of other programs since `self`.
    pub fn note(&self, cores: usize, provenance: &mut Provenance) {
        let Some(now) = Others::now() else {
            return;
        };
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let others = since(now.busy, self.busy) - since(now.own, self.own);
        let per_core = since(now.all, self.all) / cores.max(1) as f64;
        provenance.load = Some([self.load, now.load]);
        provenance.others_cores = Some((others / per_core.max(1.0)).max(0.0));
        provenance.warning = provenance.warning();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_warned_about() {
        let with = |others| Provenance {
            others_cores: others,
            ..Provenance::default()
        };
        assert_eq!(with(None).warning(), None);
        assert_eq!(with(Some(0.05)).warning(), None);
        assert!(with(Some(0.8)).warning().unwrap().contains("0.8 cores"));
        let mut hot = with(Some(0.8));
        hot.clocks.throttled = Some(2);
        let warning = hot.warning().unwrap();
        assert!(warning.contains("0.8 cores") && warning.contains("2 times"));
    }

    #[test]
    fn what_measurements_share_is_said_once() {
        let one = |date: &str| Provenance {
            commit: "abc".into(),
            date: date.into(),
            ..Provenance::default()
        };
        let (a, b) = (one("today"), one("tomorrow"));
        let facts = facts(&["A".into(), "B".into()], &[&a, &b]);
        let found = |name: &str| facts.iter().filter(|fact| fact.0.starts_with(name)).count();
        assert_eq!((found("commit"), found("date, ")), (1, 2));
        assert!(facts.contains(&("date, B".into(), "tomorrow".into())));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_tells_the_load() {
        let mut provenance = Provenance::default();
        Others::now().unwrap().note(2, &mut provenance);
        assert!(provenance.load.is_some() && provenance.others_cores >= Some(0.0));
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        std::fs::write(&file, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(Some(&file)).unwrap(), expected);
        assert_eq!(sha256(Some(folder.path())).unwrap(), expected);
    }
}
