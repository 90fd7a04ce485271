//! The result of a run and the definitions of its numbers.

use std::path::Path;

use serde::{Deserialize, Serialize};
use waterline::{Session, StatePlan};

use super::batches::BatchSpeed;
use super::measure::{Measured, RunPlan, Timed};
use super::statistics::{jitter, mean, median, percentile};
use super::transformer::TransformerCache;
use crate::machine::Machine;
use crate::provenance::Provenance;

/// The object that `--json` writes.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Version of the program.
    pub version: String,
    /// Conditions of the measurement.
    #[serde(default)]
    pub provenance: Provenance,
    /// The model.
    pub model: ModelInfo,
    /// The device that computed.
    pub device: String,
    /// Number of threads that computed.
    pub threads: usize,
    /// Maximum tokens of a prompt that were read at once.
    pub chunk: usize,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// Number of tokens timed at each depth.
    pub r#gen: usize,
    /// The computer.
    pub machine: Machine,
    /// Time to open the model and a session.
    pub load_ms: f64,
    /// Prompt tokens divided by the median time to read them.
    pub prefill_tokens_per_s: f64,
    /// Seconds of each reading of the prompt.
    pub prefill_samples_s: Vec<f64>,
    /// Median time from a prompt to the first token after it.
    pub time_to_first_token_ms: f64,
    /// Seconds to the first token, of each reading.
    #[serde(default)]
    pub first_token_samples_s: Vec<f64>,
    /// Timed tokens of all depths divided by the sum of their times.
    pub decode_tokens_per_s: f64,
    /// Whether the depths were interleaved.
    pub interleaved: bool,
    /// Latency at each depth.
    pub depths: Vec<Depth>,
    /// Speeds of sessions that step in one batch.
    #[serde(default)]
    pub batches: Vec<BatchSpeed>,
    /// Number of tokens that full attention can see.
    #[serde(default)]
    pub context: usize,
    /// Bytes that a token must move, as the mean over the depths.
    pub bytes_per_token: u64,
    /// Bandwidth of plain reading with the same number of threads: the median of passes between the timed tokens.
    pub read_bytes_per_s: f64,
    /// The bandwidth of each of these passes.
    #[serde(default)]
    pub read_samples_bytes_per_s: Vec<f64>,
    /// Joules per timed token, where the machine counts energy.
    #[serde(default)]
    pub joules_per_token: Option<f64>,
    /// Joules per token of each run of 16 tokens.
    #[serde(default)]
    pub joules_samples: Vec<f64>,
    /// The sources of the energy counts.
    #[serde(default)]
    pub energy_of: Option<String>,
    /// Share of the bandwidth that decoding uses, as the mean over the depths.
    pub bandwidth_share: f64,
    /// Allocations per token that was read or generated.
    pub allocations_per_token: f64,
    /// Peak of the process's resident memory.
    pub peak_rss_bytes: Option<u64>,
    /// Device memory, in addition to the process's memory.
    pub device_bytes: u64,
    /// Bytes of weights that the device reads from host memory, where the file is mapped.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Resident memory on the way to the deepest position.
    pub memory: Vec<Memory>,
    /// Hash of tokens and logits: equal if two runs generated the same ones, bit for bit.
    pub hash: String,
}

/// The model.
#[derive(Serialize, Deserialize)]
pub struct ModelInfo {
    /// The file's path.
    pub file: String,
    /// The model's name.
    pub name: String,
    /// Number of parameters.
    pub parameters: usize,
    /// Bytes of weights that a token reads.
    pub weight_bytes: u64,
    /// Bytes of a session's state.
    pub session_bytes: u64,
    /// The cache of a Transformer of this size; `None` if the model is a Transformer.
    #[serde(default)]
    pub transformer: Option<TransformerCache>,
}

/// Times of tokens at one depth.
#[derive(Serialize, Deserialize)]
pub struct Depth {
    /// The position before the first timed token.
    pub position: u64,
    /// Median time of a token.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest time.
    pub max_us: f64,
    /// Mean difference between successive times.
    pub jitter_us: f64,
    /// Bytes that a token must move at this depth; see [`bytes_per_token`].
    pub bytes_per_token: u64,
    /// The bandwidth of moving these bytes in the median time, as a share of plain reading. Above 1 if caches hold the weights.
    pub bandwidth_share: f64,
    /// Resident memory when the depth was reached.
    pub rss_bytes: Option<u64>,
    /// All times, in order.
    pub samples_us: Vec<f64>,
}

/// Resident memory at a position.
#[derive(Serialize, Deserialize)]
pub struct Memory {
    /// Number of tokens read.
    pub position: u64,
    /// Resident bytes of the process.
    pub rss_bytes: u64,
}

impl ModelInfo {
    /// The file name without its folder.
    pub fn title(&self) -> &str {
        let file = Path::new(&self.file).file_name();
        file.and_then(|name| name.to_str()).unwrap_or(&self.file)
    }

    /// Describes the model of a session.
    pub fn new(session: &Session) -> Self {
        let model = session.model();
        let spec = model.spec();
        ModelInfo {
            file: model.file().into(),
            name: model.name().into(),
            parameters: spec.parameters(),
            weight_bytes: model.weight_bytes() as u64,
            session_bytes: session.state_bytes() as u64,
            transformer: TransformerCache::new(spec),
        }
    }
}

/// Returns the bytes that the token at `position` must move: every weight once, and the state that it reads and writes.
fn bytes_per_token(session: &Session, plan: &StatePlan, position: u64) -> u64 {
    let model = session.model();
    (model.weight_bytes() + model.state_bytes(plan, position)) as u64
}

/// The mean of `of` over the depths.
fn mean_of(depths: &[Depth], of: fn(&Depth) -> f64) -> f64 {
    mean(&depths.iter().map(of).collect::<Vec<_>>())
}

impl Depth {
    fn new(timed: Timed, bytes_per_token: u64, read_bytes_per_s: f64) -> Self {
        let mut sorted = timed.samples_us.clone();
        sorted.sort_by(f64::total_cmp);
        let p50_us = percentile(&sorted, 0.5);
        Depth {
            position: timed.position,
            bytes_per_token,
            bandwidth_share: bytes_per_token as f64 / (1e-6 * p50_us) / read_bytes_per_s,
            p50_us,
            p90_us: percentile(&sorted, 0.9),
            p99_us: percentile(&sorted, 0.99),
            max_us: percentile(&sorted, 1.0),
            jitter_us: jitter(&timed.samples_us),
            rss_bytes: timed.resident_bytes,
            samples_us: timed.samples_us,
        }
    }

    /// Number of tokens divided by the sum of their times.
    pub fn tokens_per_s(&self) -> f64 {
        1e6 * self.samples_us.len() as f64 / self.samples_us.iter().sum::<f64>()
    }
}

/// Inputs of a report that are neither planned nor measured over time.
pub struct Measurement<'a> {
    /// The origin of the result.
    pub provenance: Provenance,
    /// The computer.
    pub machine: Machine,
    /// The device that computed, as the user gave it.
    pub device: &'a str,
    /// The session.
    pub session: &'a Session,
    /// The session's state.
    pub state: &'a StatePlan,
    /// Milliseconds to open the model and the session.
    pub load_ms: f64,
}

impl Report {
    /// Assembles the result of a run.
    pub fn new(plan: &RunPlan, measured: Measured, on: Measurement) -> Self {
        let Measurement {
            provenance,
            machine,
            device,
            session,
            state,
            load_ms,
        } = on;
        let read_bytes_per_s = median(&measured.read_bytes_per_s);
        let depth = |timed: Timed| {
            let bytes = bytes_per_token(session, state, timed.position);
            Depth::new(timed, bytes, read_bytes_per_s)
        };
        let depths: Vec<Depth> = measured.depths.into_iter().map(depth).collect();
        let samples = depths.iter().flat_map(|depth| &depth.samples_us);
        let samples: Vec<f64> = samples.copied().collect();
        let memory = measured.memory.into_iter();
        let shared = session.options().device.as_ref();
        let shared_bytes = shared.map_or(0, |device| device.shared_bytes());
        Report {
            version: env!("CARGO_PKG_VERSION").into(),
            provenance,
            model: ModelInfo::new(session),
            device: device.into(),
            threads: session.threads(),
            chunk: session.options().chunk,
            prompt: plan.prompt,
            r#gen: plan.generate,
            machine,
            load_ms,
            prefill_tokens_per_s: plan.prompt as f64 / median(&measured.prompt_s),
            prefill_samples_s: measured.prompt_s,
            time_to_first_token_ms: 1e3 * median(&measured.first_token_s),
            first_token_samples_s: measured.first_token_s,
            read_samples_bytes_per_s: measured.read_bytes_per_s,
            joules_per_token: known_energy(&measured.joules_per_token),
            joules_samples: measured.joules_per_token,
            energy_of: measured.energy_of,
            decode_tokens_per_s: 1e6 * samples.len() as f64 / samples.iter().sum::<f64>(),
            interleaved: measured.interleaved,
            batches: measured.batches,
            context: session.options().state.context,
            bytes_per_token: mean_of(&depths, |d| d.bytes_per_token as f64) as u64,
            bandwidth_share: mean_of(&depths, |d| d.bandwidth_share),
            depths,
            read_bytes_per_s,
            allocations_per_token: measured.allocations as f64 / measured.counted_tokens as f64,
            peak_rss_bytes: measured.peak_bytes,
            device_bytes: session.device_bytes() as u64,
            shared_bytes: shared_bytes as u64,
            memory: memory
                .map(|(position, rss_bytes)| Memory {
                    position,
                    rss_bytes,
                })
                .collect(),
            hash: measured.hash,
        }
    }

    /// The times of all tokens, in microseconds.
    pub fn samples_us(&self) -> Vec<f64> {
        let samples = self.depths.iter().flat_map(|depth| &depth.samples_us);
        samples.copied().collect()
    }
}

/// Returns the mean energy of runs. A GPU's counter is updated only about ten times a second, so most runs see no
/// change, and a run that does see one counts the energy of many. The mean is therefore meaningful only after ten
/// updates.
fn known_energy(turns: &[f64]) -> Option<f64> {
    let moves = turns.iter().filter(|&&joules| joules > 0.0).count();
    let known = moves > 0 && (moves == turns.len() || moves >= 10);
    known.then(|| mean(turns))
}

#[cfg(test)]
mod tests {
    use super::known_energy;

    #[test]
    fn energy_is_unknown_where_the_counter_moved_seldom() {
        assert_eq!(known_energy(&[0.25, 0.75]), Some(0.5));
        assert_eq!(known_energy(&[0.0, 0.0, 1.5]), None);
        assert_eq!(known_energy(&[0.0, 2.0].repeat(10)), Some(1.0));
        assert_eq!(known_energy(&[]), None);
    }
}
