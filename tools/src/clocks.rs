//! The clocks of the processor or the GPU during a measurement, and whether they were throttled. Linux only; on other
//! systems, and in many virtual machines, they are unknown.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bench::Gpu;
use crate::units::rounded;

const CPUS: &str = "/sys/devices/system/cpu";

/// The clocks during a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clocks {
    /// MHz before and after the measurement, of the GPU that computed, or the mean of the processor's cores.
    pub mhz: Option<[f64; 2]>,
    /// The maximum clock of the processor's cores (mean), in MHz.
    pub most_mhz: Option<f64>,
    /// The policy that sets the processor's clocks, such as `performance`.
    pub governor: Option<String>,
    /// Number of times that heat throttled the processor during the measurement.
    pub throttled: Option<u64>,
    /// The reasons why the GPU was slowed after the measurement, in words.
    pub gpu_throttled_by: Vec<String>,
}

/// The readings at the start of a measurement.
pub struct Begun {
    folder: PathBuf,
    gpu: Option<Gpu>,
    mhz: Option<f64>,
    throttled: Option<u64>,
}

impl Begun {
    /// Reads the clocks now, of the GPU with this number or else of the processor.
    pub fn now(gpu: Option<usize>) -> Self {
        Self::in_folder(Path::new(CPUS), gpu.and_then(Gpu::new))
    }

    fn in_folder(folder: &Path, gpu: Option<Gpu>) -> Self {
        Begun {
            mhz: mhz(folder, gpu.as_ref()),
            throttled: throttled(folder),
            folder: folder.into(),
            gpu,
        }
    }

    /// Returns the clocks from the start until now.
    pub fn end(&self) -> Clocks {
        let after = mhz(&self.folder, self.gpu.as_ref());
        let now = throttled(&self.folder);
        let reasons = self.gpu.iter().flat_map(Gpu::throttled_by);
        Clocks {
            mhz: self.mhz.zip(after).map(<[f64; 2]>::from),
            most_mhz: mean(&self.folder, "cpufreq/cpuinfo_max_freq").map(|khz| khz / 1e3),
            governor: read_to_string(self.folder.join("cpu0/cpufreq/scaling_governor"))
                .ok()
                .map(|name| name.trim().into()),
            throttled: self
                .throttled
                .zip(now)
                .map(|(then, now)| now.saturating_sub(then)),
            gpu_throttled_by: reasons.map(String::from).collect(),
        }
    }
}

impl Clocks {
    /// Describes the clocks; `None` if nothing is known.
    pub fn in_words(&self) -> Option<String> {
        let mut parts = Vec::new();
        if let Some([before, after]) = self.mhz {
            parts.push(format!(
                "{} MHz before, {} after",
                rounded(before),
                rounded(after)
            ));
        }
        parts.extend(
            self.most_mhz
                .map(|most| format!("at most {}", rounded(most))),
        );
        parts.extend(
            self.governor
                .as_ref()
                .map(|name| format!("governor {name}")),
        );
        parts.extend(
            self.throttled
                .map(|times| format!("throttled {times} times")),
        );
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// A warning if the clocks were throttled.
    pub fn warning(&self) -> Option<String> {
        if !self.gpu_throttled_by.is_empty() {
            let reasons = self.gpu_throttled_by.join(" and ");
            return Some(format!("warning: the GPU was throttled by {reasons}"));
        }
        let times = self.throttled.filter(|&times| times > 0)?;
        Some(format!(
            "warning: heat throttled the processor {times} times during the measurement"
        ))
    }
}

fn mhz(folder: &Path, gpu: Option<&Gpu>) -> Option<f64> {
    match gpu {
        Some(gpu) => gpu.megahertz(),
        None => mean(folder, "cpufreq/scaling_cur_freq").map(|khz| khz / 1e3),
    }
}

/// The folders of the cores.
fn cores(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_core = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("cpu"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    entries.map(|entry| entry.path()).filter(is_core)
}

fn number(path: &Path) -> Option<u64> {
    read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the mean over all cores of the number in a file.
fn mean(folder: &Path, file: &str) -> Option<f64> {
    let found = cores(folder).filter_map(|core| number(&core.join(file)));
    let found: Vec<u64> = found.collect();
    let sum: u64 = found.iter().sum();
    (!found.is_empty()).then(|| sum as f64 / found.len() as f64)
}

/// The number of times that heat has throttled any core since the system started (Intel).
fn throttled(folder: &Path) -> Option<u64> {
    let file = "thermal_throttle/core_throttle_count";
    let found = cores(folder).filter_map(|core| number(&core.join(file)));
    found.reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_those_of_all_cores_and_throttling_is_warned_about() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for core in ["cpu0", "cpu1"] {
            write(&format!("{core}/cpufreq/cpuinfo_max_freq"), "3700000\n");
            write(&format!("{core}/cpufreq/scaling_governor"), "performance\n");
            write(
                &format!("{core}/thermal_throttle/core_throttle_count"),
                "5\n",
            );
        }
        write("cpu0/cpufreq/scaling_cur_freq", "3600000\n");
        write("cpu1/cpufreq/scaling_cur_freq", "1200000\n");
        // Folders that are not cores.
        write("cpufreq/scaling_cur_freq", "1\n");
        write("cpuidle/scaling_cur_freq", "1\n");
        let begun = Begun::in_folder(folder.path(), None);
        let quiet = begun.end();
        assert_eq!(quiet.mhz, Some([2400.0, 2400.0]));
        assert_eq!((quiet.throttled, quiet.warning()), (Some(0), None));
        write("cpu1/cpufreq/scaling_cur_freq", "1000000\n");
        write("cpu1/thermal_throttle/core_throttle_count", "8\n");
        let hot = begun.end();
        assert!(hot.warning().unwrap().contains("3 times"));
        let words = hot.in_words().unwrap();
        for part in [
            "2,400 MHz before, 2,300 after",
            "at most 3,700",
            "governor performance",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        let nowhere = Begun::in_folder(&folder.path().join("cpu0"), None).end();
        assert_eq!((nowhere.in_words(), nowhere.warning()), (None, None));
    }

    #[test]
    fn a_throttled_gpu_is_warned_about() {
        let clocks = Clocks {
            gpu_throttled_by: vec!["its power limit".into()],
            ..Clocks::default()
        };
        assert!(clocks.warning().unwrap().ends_with("by its power limit"));
    }
}
