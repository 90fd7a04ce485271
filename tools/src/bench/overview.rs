//! Results as text, JSON, CSV and Markdown.

use super::report::Report;
use super::statistics::spread;
use crate::text::json_line;
use crate::units::{bytes, rounded};

/// Returns a label for each result: whichever of model file, number format and number of threads differ.
pub fn labels(reports: &[Report]) -> Vec<String> {
    let differ = |of: fn(&Report) -> String| {
        let mut values = reports.iter().map(of);
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let models = differ(|report| report.model.file.clone());
    let formats = differ(|report| report.provenance.format.clone());
    let threads = differ(|report| report.threads.to_string());
    let label = |report: &Report| {
        let mut parts = Vec::new();
        if models || !threads {
            parts.push(report.model.title().to_string());
        }
        if formats {
            parts.extend(report.provenance.format.split(' ').next().map(String::from));
        }
        if threads {
            let plural = if report.threads == 1 { "" } else { "s" };
            parts.push(format!("{} thread{plural}", report.threads));
        }
        parts.join(", ")
    };
    reports.iter().map(label).collect()
}

/// Returns a header row, and a row for each result.
pub fn rows(reports: &[Report]) -> Vec<Vec<String>> {
    let mut head = vec![
        "run",
        "prefill tok/s",
        "of its passes",
        "decode tok/s",
        "90 % of tokens",
        "session",
        "most memory",
    ];
    let has_energy = reports
        .iter()
        .any(|report| report.joules_per_token.is_some());
    if has_energy {
        head.push("J per token");
    }
    let row = |(report, label): (&Report, String)| {
        let [slow, fast] = spread(&report.samples_us()).map(|us| rounded(1e6 / us));
        let [most, least] =
            spread(&report.prefill_samples_s).map(|s| rounded(report.prompt as f64 / s));
        let memory = report.peak_rss_bytes;
        let mut row = vec![
            label,
            rounded(report.prefill_tokens_per_s),
            format!("{least} to {most}"),
            rounded(report.decode_tokens_per_s),
            format!("{fast} to {slow}"),
            bytes(report.model.session_bytes as usize),
            memory.map_or("unknown".into(), |n| bytes(n as usize)),
        ];
        if has_energy {
            let energy = report.joules_per_token;
            row.push(energy.map_or("unknown".into(), rounded));
        }
        row
    };
    let rows = reports.iter().zip(labels(reports)).map(row);
    let head = head.into_iter().map(String::from).collect();
    std::iter::once(head).chain(rows).collect()
}

/// Formats the tables for a terminal. If there are several results, an overview with one line each comes first.
pub fn to_text(reports: &[Report]) -> String {
    let mut parts: Vec<String> = Vec::new();
    if reports.len() > 1 {
        parts.push(columns(&rows(reports)));
    }
    parts.extend(reports.iter().map(Report::to_text));
    parts.join("\n")
}

/// Aligns the cells of rows in columns.
pub fn columns(rows: &[Vec<String>]) -> String {
    let length = |cell: &String| cell.chars().count();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(length).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, width))| match i {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Formats the results as one JSON object, or as a list if there are several.
pub fn to_json(reports: &[Report]) -> String {
    match reports {
        [report] => json_line(report),
        _ => json_line(&reports),
    }
}

/// Formats the results as CSV, with a line for each depth of each result.
pub fn to_csv(reports: &[Report]) -> String {
    let lines = reports.iter().flat_map(Report::csv_lines);
    let head = std::iter::once(Report::CSV_HEAD.to_string());
    head.chain(lines).map(|line| line + "\n").collect()
}

/// Formats the tables as Markdown.
pub fn to_markdown(reports: &[Report]) -> String {
    let mut parts: Vec<String> = Vec::new();
    if reports.len() > 1 {
        parts.push(markdown(&rows(reports)));
    }
    parts.extend(reports.iter().map(Report::to_markdown));
    parts.join("\n")
}

/// Formats a table as Markdown; the first row is the header.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let line = |cells: &Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = |head: &Vec<String>| format!("|{}\n", "--:|".repeat(head.len()));
    let Some((head, body)) = rows.split_first() else {
        return String::new();
    };
    line(head) + &rule(head) + &body.iter().map(line).collect::<String>()
}

/// Returns a table of all results by position, with a header row, and a table of their batches if any were measured.
pub fn by_position(reports: &[Report]) -> Vec<Vec<Vec<String>>> {
    let labelled = |of: fn(&Report) -> Vec<Vec<String>>| {
        let mut table: Vec<Vec<String>> = Vec::new();
        for (label, report) in labels(reports).into_iter().zip(reports) {
            for (index, row) in of(report).into_iter().enumerate() {
                let first = match index {
                    0 if table.is_empty() => "run".into(),
                    0 => continue,
                    _ => label.clone(),
                };
                table.push(std::iter::once(first).chain(row).collect());
            }
        }
        table
    };
    let tables = [
        labelled(|report| report.rows().into_iter().map(Vec::from).collect()),
        labelled(|report| report.batch_rows().into_iter().map(Vec::from).collect()),
    ];
    tables
        .into_iter()
        .filter(|table| !table.is_empty())
        .collect()
}
