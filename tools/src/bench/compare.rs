//! Comparison of results: the first result and each other result with its change against the first.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::batches::BatchSpeed;
use super::overview::{columns, markdown};
use super::page::{figures, names, notes};
use super::report::{Depth, Report};
use super::statistics::{mean, median, p99, ratio};
use crate::error::{Error, Result};
use crate::page::Page;
use crate::provenance::{self, Provenance};
use crate::text::json_line;
use crate::units::{bytes, rounded, thousands};

/// At least two results of one kind of run.
pub struct Comparison {
    reports: Vec<Report>,
}

/// The note below the table.
const EXPLANATION: &str = "In brackets: where the change lies in 95 of 100 repetitions, from the times of the tokens (a bootstrap of blocks of 16); \
    for the prompt, the extremes of its passes. A bracket without 0 is a difference that noise within a run does not explain.";

/// One number, for all results.
#[derive(Serialize)]
struct Measure {
    name: String,
    /// The number in each result.
    values: Vec<f64>,
    /// The ratio to the first result, for each other result.
    ratios: Vec<Ratio>,
    /// Whether the numbers are bytes.
    #[serde(skip)]
    is_size: bool,
}

/// A ratio to the first result; `None` if the first number is zero.
#[derive(Serialize)]
struct Ratio {
    ratio: Option<f64>,
    /// The 95 % interval of the ratio, if it is known.
    interval: Option<[f64; 2]>,
}

/// Reads the results in a file: one result, or a list of results.
fn read(path: &Path) -> Result<Vec<Report>> {
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let parsed = if text.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice(&text)
    } else {
        serde_json::from_slice(&text).map(|report| vec![report])
    };
    let reports: Vec<Report> = parsed.map_err(|e| {
        let reason = format!("this is not a result that bench --json has written: {e}");
        Error::input(path, reason)
    })?;
    let timed = |depth: &Depth| !depth.samples_us.is_empty();
    let is_whole = |report: &Report| !report.depths.is_empty() && report.depths.iter().all(timed);
    if reports.is_empty() || !reports.iter().all(is_whole) {
        let reason = "depths: expected at least one depth, each with times";
        return Err(Error::input(path, reason));
    }
    Ok(reports)
}

/// Pairs up the results in the files: the first results with each other, the second results with each other, and so on.
/// The results of a single file are compared with each other.
///
/// # Errors
/// A file holds no results, or not as many as the first file.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Comparison>> {
    let files = paths.iter().map(|path| read(path));
    let mut files = files.collect::<Result<Vec<_>>>()?;
    if let [path] = paths {
        let reports = files.remove(0);
        if reports.len() < 2 {
            return Err(Error::input(
                path,
                "one result; expected a second file, or a list of results",
            ));
        }
        return Ok(vec![Comparison { reports }]);
    }
    let count = files[0].len();
    if let Some(other) = files.iter().position(|file| file.len() != count) {
        let reason = format!(
            "{} results, and {} has {count}: expected as many",
            files[other].len(),
            paths[0].display()
        );
        return Err(Error::input(&paths[other], reason));
    }
    let mut comparisons: Vec<Comparison> = (0..count)
        .map(|_| Comparison {
            reports: Vec::new(),
        })
        .collect();
    for file in files {
        for (comparison, report) in comparisons.iter_mut().zip(file) {
            comparison.reports.push(report);
        }
    }
    Ok(comparisons)
}

/// Returns `A`, `B` and so on.
fn letter(index: usize) -> String {
    match u8::try_from(index) {
        Ok(index @ 0..26) => char::from(b'A' + index).to_string(),
        _ => format!("{}", index + 1),
    }
}

/// The smallest and the largest of the values.
fn ends(values: &[f64]) -> [f64; 2] {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    [low, values.iter().copied().fold(0.0, f64::max)]
}

/// The range of ratios between the extreme times of `b` and of `a`.
fn extremes(a: &[f64], b: &[f64]) -> Option<[f64; 2]> {
    let ([a_low, a_high], [b_low, b_high]) = (ends(a), ends(b));
    (a_high > 0.0 && b_high > 0.0).then_some([b_low / a_high, b_high / a_low])
}

fn inverse([low, high]: [f64; 2]) -> [f64; 2] {
    [1.0 / high, 1.0 / low]
}

impl Comparison {
    fn letters(&self) -> Vec<String> {
        (0..self.reports.len()).map(letter).collect()
    }

    /// Descriptions of the results, a few lines for each.
    fn titles(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, report) in self.letters().iter().zip(&self.reports) {
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

    /// Returns a number for all results, if each result has it. `interval` returns the interval of the ratio between
    /// its second and its first argument.
    fn measure(
        &self,
        name: &str,
        of: impl Fn(&Report) -> Option<f64>,
        interval: impl Fn(&Report, &Report) -> Option<[f64; 2]>,
    ) -> Option<Measure> {
        let values: Vec<f64> = self.reports.iter().map(of).collect::<Option<_>>()?;
        let others = values.iter().zip(&self.reports).skip(1);
        let ratios = others.map(|(&value, report)| Ratio {
            ratio: match values[0] {
                first if value == first => Some(1.0),
                0.0 => None,
                first => Some(value / first),
            },
            interval: interval(&self.reports[0], report),
        });
        Some(Measure {
            name: name.into(),
            ratios: ratios.collect(),
            values,
            is_size: false,
        })
    }

    /// Returns the numbers that all results have.
    fn measures(&self) -> Vec<Measure> {
        let unknown = |_: &Report, _: &Report| None;
        let first_token =
            |a: &Report, b: &Report| extremes(&a.first_token_samples_s, &b.first_token_samples_s);
        let prefill = |a: &Report, b: &Report| {
            extremes(&a.prefill_samples_s, &b.prefill_samples_s).map(inverse)
        };
        let decode =
            |a: &Report, b: &Report| Some(inverse(ratio(&a.samples_us(), &b.samples_us(), mean).1));
        let joules = |a: &Report, b: &Report| {
            let turns = (&a.joules_samples, &b.joules_samples);
            let counted = !turns.0.is_empty() && !turns.1.is_empty();
            counted.then(|| ratio(turns.0, turns.1, mean).1)
        };
        let mut all = vec![
            self.measure("load ms", |r| Some(r.load_ms), unknown),
            self.measure(
                "time to first token ms",
                |r| Some(r.time_to_first_token_ms),
                first_token,
            ),
            self.measure(
                "prefill tokens/s",
                |r| Some(r.prefill_tokens_per_s),
                prefill,
            ),
            self.measure("decode tokens/s", |r| Some(r.decode_tokens_per_s), decode),
        ];
        for depth in &self.reports[0].depths {
            all.extend(self.at_depth(depth.position));
        }
        for batch in &self.reports[0].batches {
            all.push(self.of_batch(batch.sessions));
        }
        all.extend([
            self.measure(
                "share of bandwidth %",
                |r| Some(100.0 * r.bandwidth_share),
                unknown,
            ),
            self.measure(
                "allocations per token",
                |r| Some(r.allocations_per_token),
                unknown,
            ),
            self.measure("J per token", |r| r.joules_per_token, joules),
        ]);
        type Size = (&'static str, fn(&Report) -> Option<u64>);
        let sizes: [Size; 3] = [
            ("bytes per token", |r| Some(r.bytes_per_token)),
            ("most memory", |r| r.peak_rss_bytes),
            ("device memory", |r| Some(r.device_bytes)),
        ];
        all.extend(sizes.map(|(name, size)| {
            let measure = self.measure(name, |report| Some(size(report)? as f64), unknown)?;
            Some(Measure {
                is_size: true,
                ..measure
            })
        }));
        all.into_iter().flatten().collect()
    }

    /// The times of tokens at `position`.
    fn at_depth(&self, position: u64) -> [Option<Measure>; 2] {
        fn found(report: &Report, position: u64) -> Option<&Depth> {
            report
                .depths
                .iter()
                .find(|depth| depth.position == position)
        }
        type Part = (&'static str, fn(&Depth) -> f64, fn(&[f64]) -> f64);
        let parts: [Part; 2] = [("p50", |d| d.p50_us, median), ("p99", |d| d.p99_us, p99)];
        parts.map(|(name, of, statistic)| {
            self.measure(
                &format!("{name} us at {}", thousands(position)),
                |report| found(report, position).map(of),
                |a, b| {
                    let (a, b) = (found(a, position)?, found(b, position)?);
                    Some(ratio(&a.samples_us, &b.samples_us, statistic).1)
                },
            )
        })
    }

    /// The speed of a batch of `sessions` sessions.
    fn of_batch(&self, sessions: usize) -> Option<Measure> {
        fn found(report: &Report, sessions: usize) -> Option<&BatchSpeed> {
            report
                .batches
                .iter()
                .find(|batch| batch.sessions == sessions)
        }
        self.measure(
            &format!("tokens/s, sessions: {sessions}"),
            |report| found(report, sessions).map(|batch| batch.tokens_per_s),
            |a, b| {
                let (a, b) = (found(a, sessions)?, found(b, sessions)?);
                Some(inverse(ratio(&a.samples_us, &b.samples_us, mean).1))
            },
        )
    }

    /// Returns a header row, and a row for each number.
    fn rows(&self) -> Vec<Vec<String>> {
        let percent = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
        let letters = self.letters();
        let mut head = vec![String::new(), letters[0].clone()];
        for letter in &letters[1..] {
            head.extend([letter.clone(), format!("{letter} to A"), "95 %".into()]);
        }
        let row = |measure: Measure| {
            let shown = |value: f64| {
                if measure.is_size {
                    bytes(value as usize)
                } else {
                    rounded(value)
                }
            };
            let mut row = vec![measure.name.clone(), shown(measure.values[0])];
            for (&value, ratio) in measure.values[1..].iter().zip(&measure.ratios) {
                let change = match ratio.ratio {
                    Some(1.0) => "same".into(),
                    found => found.map_or(String::new(), percent),
                };
                let interval = ratio.interval.map_or(String::new(), |[low, high]| {
                    format!("[{}, {}]", percent(low), percent(high))
                });
                row.extend([shown(value), change, interval]);
            }
            row
        };
        let rows = self.measures().into_iter().map(row);
        std::iter::once(head).chain(rows).collect()
    }

    /// Returns a sentence for each other result: whether its tokens and logits are those of the first result.
    fn verdicts(&self) -> Vec<String> {
        let plan = |report: &Report| {
            let depths = report.depths.iter().map(|depth| depth.position);
            (report.prompt, report.r#gen, depths.collect::<Vec<_>>())
        };
        let first = &self.reports[0];
        let letters = self.letters();
        let others = letters.iter().zip(&self.reports).skip(1);
        let verdict = |(letter, other): (&String, &Report)| match (
            first.hash == other.hash,
            plan(first) == plan(other),
        ) {
            (true, _) => format!(
                "A and {letter}: same tokens and logits, bit for bit ({})",
                first.hash
            ),
            (false, true) => format!(
                "A and {letter}: different tokens or logits ({} and {})",
                first.hash, other.hash
            ),
            (false, false) => {
                format!("A and {letter}: other prompts or depths, so the hashes cannot be compared")
            }
        };
        others.map(verdict).collect()
    }

    /// Formats the table for a terminal.
    fn to_text(&self) -> String {
        format!(
            "{}\n\n{}\n{}\n{EXPLANATION}\n",
            self.titles().join("\n"),
            columns(&self.rows()),
            self.verdicts().join("\n")
        )
    }

    fn to_json(&self) -> serde_json::Value {
        let runs: Vec<_> = self
            .letters()
            .into_iter()
            .zip(&self.reports)
            .map(|(letter, report)| {
                serde_json::json!({
                    "run": letter,
                    "model": report.model.title(),
                    "device": report.device,
                    "threads": report.threads,
                    "hash": report.hash,
                    "provenance": report.provenance,
                })
            })
            .collect();
        serde_json::json!({ "runs": runs, "measures": self.measures() })
    }
}

/// Formats the tables for a terminal.
pub fn to_text(all: &[Comparison]) -> String {
    let parts: Vec<String> = all.iter().map(Comparison::to_text).collect();
    parts.join("\n")
}

/// Formats the comparisons as one JSON object, or as a list if there are several.
pub fn to_json(all: &[Comparison]) -> String {
    let objects: Vec<_> = all.iter().map(Comparison::to_json).collect();
    match &objects[..] {
        [one] => json_line(one),
        _ => json_line(&objects),
    }
}

/// Formats the comparisons as CSV, with a line for each number and each result but the first.
pub fn to_csv(all: &[Comparison]) -> String {
    let mut text =
        "model,measure,run,first,value,ratio,low,high,first_commit,commit,first_date,date\n"
            .to_string();
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for comparison in all {
        let letters = comparison.letters();
        let first = &comparison.reports[0];
        for measure in comparison.measures() {
            for (index, ratio) in measure.ratios.iter().enumerate() {
                let report = &comparison.reports[index + 1];
                let number = |value: Option<f64>| value.map_or(String::new(), |n| n.to_string());
                let cells = [
                    quoted(report.model.title()),
                    quoted(&measure.name),
                    letters[index + 1].clone(),
                    measure.values[0].to_string(),
                    measure.values[index + 1].to_string(),
                    number(ratio.ratio),
                    number(ratio.interval.map(|ends| ends[0])),
                    number(ratio.interval.map(|ends| ends[1])),
                    quoted(&first.provenance.commit),
                    quoted(&report.provenance.commit),
                    quoted(&first.provenance.date),
                    quoted(&report.provenance.date),
                ];
                text += &(cells.join(",") + "\n");
            }
        }
    }
    text
}

/// Formats the tables as Markdown.
pub fn to_markdown(all: &[Comparison]) -> String {
    let part = |comparison: &Comparison| {
        let titles = comparison.titles().join("\n");
        let verdicts = comparison.verdicts().join("\n");
        let table = markdown(&comparison.rows());
        format!("```\n{titles}\n```\n\n{table}\n{verdicts}\n\n{EXPLANATION}\n")
    };
    let parts: Vec<String> = all.iter().map(part).collect();
    parts.join("\n")
}

/// Creates a page that shows the results of each comparison in one plot.
pub fn to_page(all: &[Comparison]) -> Page {
    let models = all.iter().flat_map(|comparison| &comparison.reports);
    let mut page = Page {
        title: format!("{}: results compared", names(models)),
        lines: Vec::new(),
        notes: Vec::new(),
        figures: Vec::new(),
        tables: Vec::new(),
        facts: Vec::new(),
    };
    for comparison in all {
        let reports = &comparison.reports;
        let letters = comparison.letters();
        let labels = letters.iter().zip(reports);
        let labels = labels.map(|(name, report)| format!("{name}: {}", report.model.title()));
        let labels: Vec<String> = labels.collect();
        page.lines.extend(comparison.titles());
        page.lines.extend(comparison.verdicts());
        page.notes.extend(notes(reports, &labels));
        page.figures.extend(figures(reports, &labels));
        page.tables.push(comparison.rows());
        let from: Vec<&Provenance> = reports.iter().map(|report| &report.provenance).collect();
        page.facts.extend(provenance::facts(&letters, &from));
    }
    page.lines.push(EXPLANATION.into());
    page
}
