//! Two results side by side.

use std::path::Path;

use super::report::Report;
use crate::error::{Error, Result};

/// The table for `--compare A B`.
pub fn compare(a: &Path, b: &Path) -> Result<String> {
    Ok(table([&read(a)?, &read(b)?]))
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let report: Report = serde_json::from_slice(&text).map_err(|e| {
        let reason = format!("this is not a result that bench --json has written: {e}");
        Error::input(path, reason)
    })?;
    if report.depths.is_empty() {
        return Err(Error::input(
            path,
            "depths: found none, expected one or more",
        ));
    }
    Ok(report)
}

fn table(reports: [&Report; 2]) -> String {
    let [a, b] = reports;
    let mut lines = Vec::new();
    for (name, report) in ["A", "B"].iter().zip(reports) {
        let [model, machine] = report.titles();
        lines.extend([format!("{name}  {model}"), format!("   {machine}")]);
    }
    lines.push(String::new());
    lines.push(format!(
        "{:<24} {:>14} {:>14} {:>9}",
        "", "A", "B", "B to A"
    ));
    let mut line = |name: &str, a: f64, b: f64, decimals: usize| {
        let change = match (a, b) {
            _ if a == b => "same".into(),
            (0.0, _) => String::new(),
            _ => format!("{:+.1} %", 100.0 * (b / a - 1.0)),
        };
        lines.push(format!(
            "{name:<24} {a:>14.decimals$} {b:>14.decimals$} {change:>9}"
        ));
    };
    type Number = (&'static str, fn(&Report) -> f64, usize);
    let numbers: [Number; 9] = [
        ("load ms", |r| r.load_ms, 1),
        ("time to first token ms", |r| r.time_to_first_token_ms, 1),
        ("prefill tokens/s", |r| r.prefill_tokens_per_s, 1),
        ("decode tokens/s", |r| r.decode_tokens_per_s, 1),
        ("bytes per token", |r| r.bytes_per_token as f64, 0),
        ("share of bandwidth %", |r| 100.0 * r.bandwidth_share, 1),
        ("allocations per token", |r| r.allocations_per_token, 3),
        (
            "most memory bytes",
            |r| r.peak_rss_bytes.unwrap_or(0) as f64,
            0,
        ),
        ("device memory bytes", |r| r.device_bytes as f64, 0),
    ];
    for (name, number, decimals) in numbers {
        line(name, number(a), number(b), decimals);
    }
    for depth in &a.depths {
        let same = |other: &&super::report::Depth| other.position == depth.position;
        if let Some(other) = b.depths.iter().find(same) {
            let at = |what: &str| format!("{what} us at {}", depth.position);
            line(&at("p50"), depth.p50_us, other.p50_us, 1);
            line(&at("p99"), depth.p99_us, other.p99_us, 1);
        }
    }
    let plan = |report: &Report| {
        let depths = report.depths.iter().map(|depth| depth.position);
        (report.prompt, report.r#gen, depths.collect::<Vec<_>>())
    };
    lines.push(match (a.hash == b.hash, plan(a) == plan(b)) {
        (true, _) => format!("same tokens and logits, bit for bit ({})", a.hash),
        (false, true) => format!("other tokens or logits ({} and {})", a.hash, b.hash),
        (false, false) => "other prompts or depths, so the hashes cannot be compared".into(),
    });
    lines.join("\n") + "\n"
}
