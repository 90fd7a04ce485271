//! Two results side by side.

use std::path::Path;

use super::overview::columns;
use super::page::{figures, notes};
use super::report::{Depth, Report};
use super::statistics::{mean, median, p99, ratio};
use crate::error::{Error, Result};
use crate::page::Page;
use crate::provenance;
use crate::units::{bytes, rounded, thousands};

/// Two results.
pub struct Comparison {
    reports: [Report; 2],
}

/// The note below the table.
const EXPLANATION: &str = "In brackets: where the change lies in 95 of 100 repetitions, from the times of the tokens (a bootstrap of blocks of 16); \
    for the prompt, the extremes of its passes. A bracket without 0 is a difference that noise within a run does not explain.";

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    if text.trim_ascii_start().starts_with(b"[") {
        let reason = "several results; expected one: bench of one model with one number of threads";
        return Err(Error::input(path, reason));
    }
    let report: Report = serde_json::from_slice(&text).map_err(|e| {
        let reason = format!("this is not a result of one run that bench --json has written: {e}");
        Error::input(path, reason)
    })?;
    let timed = |depth: &Depth| !depth.samples_us.is_empty();
    if report.depths.is_empty() || !report.depths.iter().all(timed) {
        let reason = "depths: found none or one without times, expected one or more";
        return Err(Error::input(path, reason));
    }
    Ok(report)
}

impl Comparison {
    /// The results in two files.
    pub fn read(a: &Path, b: &Path) -> Result<Self> {
        Ok(Comparison {
            reports: [read(a)?, read(b)?],
        })
    }

    /// Descriptions of both, in a line or two each.
    fn titles(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, report) in ["A", "B"].iter().zip(&self.reports) {
            let [model, machine] = report.titles();
            let from = &report.provenance;
            lines.push(format!("{name}  {model}"));
            lines.push(format!("   {machine}"));
            if !from.commit.is_empty() {
                lines.push(format!(
                    "   commit {}, {}, {}, sha256 {}",
                    from.commit,
                    from.date,
                    from.format,
                    from.short_sha256()
                ));
            }
            lines.extend(from.warning().map(|warning| format!("   {warning}")));
        }
        lines
    }

    /// A head, and a line for each number.
    fn rows(&self) -> Vec<Vec<String>> {
        let [a, b] = &self.reports;
        let mut rows = vec![["", "A", "B", "B to A", "95 %"].map(String::from).to_vec()];
        let mut row = |name: String, [x, y]: [f64; 2], interval: Option<[f64; 2]>| {
            let percent = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
            let change = match (x, y) {
                _ if x == y => "same".into(),
                (0.0, _) => String::new(),
                _ => percent(y / x),
            };
            let interval = interval.map_or(String::new(), |[low, high]| {
                format!("[{}, {}]", percent(low), percent(high))
            });
            rows.push(vec![name, rounded(x), rounded(y), change, interval]);
        };
        row("load ms".into(), [a.load_ms, b.load_ms], None);
        let extremes = |of: fn(&Report) -> &[f64]| {
            let ends = |values: &[f64]| {
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                [low, values.iter().copied().fold(0.0, f64::max)]
            };
            let ([a_low, a_high], [b_low, b_high]) = (ends(of(a)), ends(of(b)));
            let some = a_high > 0.0 && b_high > 0.0;
            some.then_some([b_low / a_high, b_high / a_low])
        };
        let first = [a.time_to_first_token_ms, b.time_to_first_token_ms];
        row(
            "time to first token ms".into(),
            first,
            extremes(|r| &r.first_token_samples_s),
        );
        let prefill = [a.prefill_tokens_per_s, b.prefill_tokens_per_s];
        let of_times = extremes(|r| &r.prefill_samples_s);
        let inverse = |[low, high]: [f64; 2]| [1.0 / high, 1.0 / low];
        row("prefill tokens/s".into(), prefill, of_times.map(inverse));
        let decode = [a.decode_tokens_per_s, b.decode_tokens_per_s];
        let (_, of_times) = ratio(&a.samples_us(), &b.samples_us(), mean);
        row("decode tokens/s".into(), decode, Some(inverse(of_times)));
        for depth in &a.depths {
            let same = |other: &&Depth| other.position == depth.position;
            let Some(other) = b.depths.iter().find(same) else {
                continue;
            };
            let at = |what: &str| format!("{what} us at {}", thousands(depth.position));
            let interval = |of| Some(ratio(&depth.samples_us, &other.samples_us, of).1);
            row(at("p50"), [depth.p50_us, other.p50_us], interval(median));
            row(at("p99"), [depth.p99_us, other.p99_us], interval(p99));
        }
        let share = [a, b].map(|r| 100.0 * r.bandwidth_share);
        row("share of bandwidth %".into(), share, None);
        let allocations = [a, b].map(|r| r.allocations_per_token);
        row("allocations per token".into(), allocations, None);
        if let (Some(x), Some(y)) = (a.joules_per_token, b.joules_per_token) {
            let (x_turns, y_turns) = (&a.joules_samples, &b.joules_samples);
            let counted = !x_turns.is_empty() && !y_turns.is_empty();
            let interval = counted.then(|| ratio(x_turns, y_turns, mean).1);
            row("J per token".into(), [x, y], interval);
        }
        type Size = (&'static str, fn(&Report) -> u64);
        let sizes: [Size; 3] = [
            ("bytes per token", |r| r.bytes_per_token),
            ("most memory", |r| r.peak_rss_bytes.unwrap_or(0)),
            ("device memory", |r| r.device_bytes),
        ];
        for (name, size) in sizes {
            let (x, y) = (size(a), size(b));
            let change = match x {
                _ if x == y => "same".into(),
                0 => String::new(),
                _ => format!("{:+.1} %", 100.0 * (y as f64 / x as f64 - 1.0)),
            };
            let [x, y] = [x, y].map(|n| bytes(n as usize));
            rows.push(vec![name.into(), x, y, change, String::new()]);
        }
        rows
    }

    /// Whether the two gave the same tokens and logits.
    fn verdict(&self) -> String {
        let [a, b] = &self.reports;
        let plan = |report: &Report| {
            let depths = report.depths.iter().map(|depth| depth.position);
            (report.prompt, report.r#gen, depths.collect::<Vec<_>>())
        };
        match (a.hash == b.hash, plan(a) == plan(b)) {
            (true, _) => format!("same tokens and logits, bit for bit ({})", a.hash),
            (false, true) => format!("other tokens or logits ({} and {})", a.hash, b.hash),
            (false, false) => "other prompts or depths, so the hashes cannot be compared".into(),
        }
    }

    /// The table for a terminal.
    pub fn to_text(&self) -> String {
        format!(
            "{}\n\n{}\n{}\n{EXPLANATION}\n",
            self.titles().join("\n"),
            columns(&self.rows()),
            self.verdict()
        )
    }

    /// A page with both results in each plot.
    pub fn to_page(&self) -> Page {
        let names = ["A", "B"].map(String::from);
        let named = names.iter().zip(&self.reports);
        let labels: Vec<String> = named
            .map(|(name, report)| format!("{name}: {}", report.model.title()))
            .collect();
        let mut lines = self.titles();
        lines.extend([self.verdict(), EXPLANATION.into()]);
        let from = self.reports.each_ref().map(|report| &report.provenance);
        Page {
            title: "Two results".into(),
            lines,
            notes: notes(&self.reports, &labels),
            figures: figures(&self.reports, &labels),
            rows: self.rows(),
            facts: provenance::facts(&names, &from),
        }
    }
}
