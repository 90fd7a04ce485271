//! Formats the result of a run for a terminal, as Markdown and as CSV.

use super::batches::BatchSpeed;
use super::report::{Depth, Report};
use super::statistics::{jitter, percentile, spread};
use crate::units::{self, rounded, thousands};

/// Shown in place of the energy if there is no counter.
const NO_COUNTER: &str = "unknown: no counter can be read (RAPL, NVML, the sensors of a Jetson)";
const TOO_SHORT: &str = "unknown: the counter changed too rarely; use a larger --gen";

impl Report {
    /// The columns of [`Report::csv_lines`].
    pub const CSV_HEAD: &str = "position,p50_us,p90_us,p99_us,max_us,jitter_us,tokens_per_s,rss_bytes,sessions,\
        prompt,prefill_tokens_per_s,time_to_first_token_ms,context,\
        model,model_sha256,formats,device,threads,commit,date,others_cores,cpu,gpu,load_before,load_after,mhz_before,mhz_after,throttled,joules_per_token,warning,command";

    /// Returns a line for each depth and for each batch; a batch's times are of a step of all its sessions.
    pub fn csv_lines(&self) -> Vec<String> {
        let text = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let from = &self.provenance;
        let others = from
            .others_cores
            .map_or(String::new(), |n| format!("{n:.3}"));
        let load = |i: usize| from.load.map_or(String::new(), |load| load[i].to_string());
        let mhz = |i: usize| {
            let clocks = from.clocks.mhz;
            clocks.map_or(String::new(), |mhz| format!("{:.0}", mhz[i]))
        };
        let run = [
            self.prompt.to_string(),
            format!("{:.3}", self.prefill_tokens_per_s),
            format!("{:.3}", self.time_to_first_token_ms),
            self.context.to_string(),
            text(self.model.title()),
            from.model_sha256.clone(),
            text(&from.format),
            self.device.clone(),
            self.threads.to_string(),
            text(&from.commit),
            text(&from.date),
            others,
            text(self.machine.cpu.as_deref().unwrap_or_default()),
            text(from.gpu.as_deref().unwrap_or_default()),
            load(0),
            load(1),
            mhz(0),
            mhz(1),
            from.clocks
                .throttled
                .map_or(String::new(), |times| times.to_string()),
            self.joules_per_token
                .map_or(String::new(), |joules| format!("{joules:.6}")),
            text(&from.warning().unwrap_or_default()),
            text(&from.command),
        ];
        let run = run.join(",");
        let depth = |depth: &Depth| {
            let rss = depth.rss_bytes.map_or(String::new(), |n| n.to_string());
            format!(
                "{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{rss},1,{run}",
                depth.position,
                depth.p50_us,
                depth.p90_us,
                depth.p99_us,
                depth.max_us,
                depth.jitter_us,
                depth.tokens_per_s(),
            )
        };
        let batch = |batch: &BatchSpeed| {
            let mut sorted = batch.samples_us.clone();
            sorted.sort_by(f64::total_cmp);
            format!(
                "{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},,{},{run}",
                self.prompt,
                batch.p50_us,
                percentile(&sorted, 0.9),
                batch.p99_us,
                percentile(&sorted, 1.0),
                jitter(&batch.samples_us),
                batch.tokens_per_s,
                batch.sessions,
            )
        };
        let depths = self.depths.iter().map(depth);
        depths.chain(self.batches.iter().map(batch)).collect()
    }

    /// Describes the model and the machine, in one line each.
    pub fn titles(&self) -> [String; 2] {
        let (model, machine) = (&self.model, &self.machine);
        let threads = if self.threads == 1 { "" } else { "s" };
        let vectors = &machine.simd;
        [
            format!(
                "{}: {} parameters, {} of weights for each token, session {}",
                model.title(),
                units::count(model.parameters),
                units::bytes(model.weight_bytes as usize),
                units::bytes(model.session_bytes as usize)
            ),
            format!(
                "{}, {} of {} cores, {} thread{threads}, {vectors}",
                machine.cpu.as_deref().unwrap_or(&machine.arch),
                self.device.to_uppercase(),
                machine.physical_cores,
                self.threads
            ),
        ]
    }

    /// Names and values of the numbers for the whole run.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let bytes = |n: u64| units::bytes(n as usize);
        let cached = self.machine.cache_bytes >= Some(self.model.weight_bytes);
        let cached = if cached {
            " (caches can hold the weights)"
        } else {
            ""
        };
        let times = match self.prefill_samples_s.len() {
            1 => "once".into(),
            n => format!("{n} times"),
        };
        let between = |values: &[f64], scale: &dyn Fn(f64) -> f64| match values {
            [] => String::new(),
            _ => {
                let [low, high] = spread(values).map(scale);
                format!("{} to {}", rounded(low.min(high)), rounded(low.max(high)))
            }
        };
        let prompt = self.prompt as f64;
        let mut facts = vec![
            ("load", format!("{} ms, once", rounded(self.load_ms))),
            (
                "time to first token",
                format!(
                    "{} ms after {} tokens ({times}: {})",
                    rounded(self.time_to_first_token_ms),
                    thousands(self.prompt as u64),
                    between(&self.first_token_samples_s, &|s| 1e3 * s)
                ),
            ),
            (
                "prefill",
                format!(
                    "{} tokens/s ({times}: {})",
                    rounded(self.prefill_tokens_per_s),
                    between(&self.prefill_samples_s, &|s| prompt / s)
                ),
            ),
            (
                "decode",
                format!(
                    "{} tokens/s on average (90 % of tokens: {})",
                    rounded(self.decode_tokens_per_s),
                    between(&self.samples_us(), &|us| 1e6 / us)
                ),
            ),
            ("bytes per token", bytes(self.bytes_per_token)),
            (
                "share of bandwidth",
                format!(
                    "{:.1} % of {} GB/s ({}){cached}",
                    100.0 * self.bandwidth_share,
                    rounded(1e-9 * self.read_bytes_per_s),
                    between(&self.read_samples_bytes_per_s, &|n| 1e-9 * n)
                ),
            ),
            (
                "allocations",
                format!("{} per token", self.allocations_per_token),
            ),
            (
                "most memory",
                self.peak_rss_bytes.map_or("unknown".into(), bytes),
            ),
            (
                "device memory",
                match self.shared_bytes {
                    0 => bytes(self.device_bytes),
                    shared => format!(
                        "{}, and {} of weights in the mapped file",
                        bytes(self.device_bytes),
                        bytes(shared)
                    ),
                },
            ),
            ("output hash", self.hash.clone()),
        ];
        let energy = self.joules_per_token;
        let of = self.energy_of.as_deref().unwrap_or("processor packages");
        facts.push(match energy {
            Some(joules) => {
                let turns = between(&self.joules_samples, &|joules| joules);
                let joules = rounded(joules);
                let energy = format!("{joules} J per token (90 % of turns: {turns}): {of}");
                ("energy", energy)
            }
            None if self.joules_samples.is_empty() => ("energy", NO_COUNTER.into()),
            None => ("energy", TOO_SHORT.into()),
        });
        facts.extend(self.provenance.facts());
        facts
    }

    /// The table of depths: a header row, and a row for each depth.
    pub fn rows(&self) -> Vec<[String; 8]> {
        let head = [
            "position",
            "p50 us",
            "p90 us",
            "p99 us",
            "max us",
            "jitter us",
            "tokens/s",
            "resident",
        ];
        let row = |depth: &Depth| {
            [
                thousands(depth.position),
                rounded(depth.p50_us),
                rounded(depth.p90_us),
                rounded(depth.p99_us),
                rounded(depth.max_us),
                rounded(depth.jitter_us),
                rounded(depth.tokens_per_s()),
                depth
                    .rss_bytes
                    .map_or("unknown".into(), |n| units::bytes(n as usize)),
            ]
        };
        let rows = self.depths.iter().map(row);
        std::iter::once(head.map(String::from))
            .chain(rows)
            .collect()
    }

    /// The table of batches: a header row, and a row for each batch. Empty if no batch was measured.
    pub fn batch_rows(&self) -> Vec<[String; 5]> {
        let head = ["sessions", "tokens/s", "of each", "p50 us", "p99 us"];
        let row = |batch: &BatchSpeed| {
            let of_each = batch.tokens_per_s / batch.sessions as f64;
            [
                batch.sessions.to_string(),
                rounded(batch.tokens_per_s),
                rounded(of_each),
                rounded(batch.p50_us),
                rounded(batch.p99_us),
            ]
        };
        let head = (!self.batches.is_empty()).then(|| head.map(String::from));
        head.into_iter()
            .chain(self.batches.iter().map(row))
            .collect()
    }

    /// Formats the tables for a terminal.
    pub fn to_text(&self) -> String {
        let mut lines = self.titles().to_vec();
        lines.extend(self.provenance.warning());
        lines.push(String::new());
        let facts = self.facts().into_iter();
        lines.extend(facts.map(|(name, value)| format!("{name:<20} {value}")));
        lines.push(String::new());
        for row in self.rows() {
            let cells = row.iter().map(|cell| format!("{cell:>10}"));
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
        for (index, row) in self.batch_rows().iter().enumerate() {
            if index == 0 {
                lines.push(String::new());
            }
            let cells = row.iter().map(|cell| format!("{cell:>10}"));
            lines.push(cells.collect::<Vec<_>>().join(" "));
        }
        lines.join("\n") + "\n"
    }

    /// Formats the tables as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut lines = vec![self.titles().join("; "), String::new()];
        let warning = self.provenance.warning().into_iter();
        lines.extend(warning.flat_map(|warning| [warning, String::new()]));
        let rows = self.rows();
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        lines.push(line(&rows[0]));
        lines.push(format!("|{}", "--:|".repeat(rows[0].len())));
        lines.extend(rows[1..].iter().map(|row| line(row)));
        if let [head, batches @ ..] = &self.batch_rows()[..] {
            lines.extend([String::new(), line(head)]);
            lines.push(format!("|{}", "--:|".repeat(head.len())));
            lines.extend(batches.iter().map(|row| line(row)));
        }
        lines.extend(["", "| | |", "|---|---|"].map(String::from));
        let facts = self.facts().into_iter();
        lines.extend(facts.map(|(name, value)| line(&[name.into(), value])));
        lines.join("\n") + "\n"
    }
}
