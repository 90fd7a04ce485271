//! The result of a load: percentiles, and tables and plots of them.

use serde::Serialize;

use super::super::overview::{columns, markdown};
use super::super::statistics::percentile;
use super::client::Timeline;
use super::load::{Level, Outcomes};
use crate::page::{Figure, Page};
use crate::plot::{Axis, COLORS, Plot, Series};
use crate::provenance::Provenance;
use crate::text::lines_of;
use crate::units::rounded;

/// Maximum characters of a line below a plot.
const NOTE: usize = 120;
/// The shares that are reported, and their names.
const SHARES: [(f64, &str); 3] = [(0.5, "p50"), (0.9, "p90"), (0.99, "p99")];

/// Limits in milliseconds that a good request keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Limits {
    first: Option<f64>,
    between: Option<f64>,
    total: Option<f64>,
}

impl Limits {
    /// Parses limits such as `first:500,between:50,total:10000`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text}: expected limits in milliseconds such as first:500,between:50");
        let mut limits = Limits::default();
        for part in text.split(',') {
            let (name, value) = part.split_once(':').ok_or_else(wrong)?;
            let value: f64 = value.parse().ok().filter(|v| *v > 0.0).ok_or_else(wrong)?;
            let limit = match name {
                "first" => &mut limits.first,
                "between" => &mut limits.between,
                "total" => &mut limits.total,
                _ => return Err(wrong()),
            };
            *limit = Some(value);
        }
        Ok(limits)
    }

    /// Whether an answer is within the limits. The time between its tokens is their mean.
    fn hold(&self, answer: &Timeline) -> bool {
        let between =
            (answer.total - answer.first) / (answer.tokens.saturating_sub(1)).max(1) as f64;
        let within =
            |limit: Option<f64>, seconds: f64| limit.is_none_or(|most| 1e3 * seconds <= most);
        within(self.first, answer.first)
            && within(self.between, between)
            && within(self.total, answer.total)
    }
}

/// The server, the load and the circumstances of a result.
#[derive(Serialize)]
pub struct Origin {
    pub server: String,
    pub model: String,
    pub level: Level,
    pub provenance: Provenance,
}

/// Percentiles of times in milliseconds; all are 0 without times.
#[derive(Serialize, Clone, Copy, Default)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    mean: f64,
}

impl Percentiles {
    fn new(mut seconds: Vec<f64>) -> Self {
        if seconds.is_empty() {
            return Percentiles::default();
        }
        seconds.sort_by(f64::total_cmp);
        let [p50, p90, p99] = SHARES.map(|(share, _)| 1e3 * percentile(&seconds, share));
        let mean = 1e3 * seconds.iter().sum::<f64>() / seconds.len() as f64;
        Percentiles {
            p50,
            p90,
            p99,
            mean,
        }
    }

    fn values(&self) -> [f64; 3] {
        [self.p50, self.p90, self.p99]
    }
}

/// The result at one level.
#[derive(Serialize)]
pub struct LoadReport {
    #[serde(flatten)]
    origin: Origin,
    answered: usize,
    failed: usize,
    /// The error of the first failed request.
    error: Option<String>,
    /// From the first request to the last answer.
    seconds: f64,
    requests_per_s: f64,
    /// Tokens of prompts and of answers.
    prompt_tokens: u64,
    tokens: u64,
    tokens_per_s: f64,
    first_token_ms: Percentiles,
    between_tokens_ms: Percentiles,
    total_ms: Percentiles,
    limits_ms: Option<Limits>,
    /// Requests within the limits, per second.
    goodput_per_s: Option<f64>,
    /// First token, total and tokens of each answer, in milliseconds.
    answers: Vec<(f64, f64, u64)>,
}

/// Columns of the table and of CSV.
const HEAD: [&str; 14] = [
    "load",
    "answered",
    "failed",
    "requests/s",
    "tokens/s",
    "first p50 ms",
    "p90",
    "p99",
    "between p50 ms",
    "p90",
    "p99",
    "total p50 ms",
    "p90",
    "p99",
];
const CSV_HEAD: &str = "server,model,clients,rate,answered,failed,seconds,requests_per_s,prompt_tokens,tokens,tokens_per_s,\
    first_p50_ms,first_p90_ms,first_p99_ms,between_p50_ms,between_p90_ms,between_p99_ms,total_p50_ms,total_p90_ms,total_p99_ms,\
    goodput_per_s\n";

impl LoadReport {
    /// Summarizes the outcomes at a level.
    pub fn new(origin: Origin, outcomes: Outcomes, limits: Option<Limits>) -> Self {
        let seconds = outcomes.seconds.max(1e-9);
        let count = outcomes.answers.len();
        let (mut answers, mut error) = (Vec::new(), None);
        for outcome in outcomes.answers {
            match outcome {
                Ok(answer) => answers.push(answer),
                Err(reason) => error = error.or(Some(reason)),
            }
        }
        let times = |of: fn(&Timeline) -> f64| Percentiles::new(answers.iter().map(of).collect());
        let gaps = answers.iter().flat_map(|answer| &answer.gaps);
        let tokens = answers.iter().map(|answer| answer.tokens).sum();
        let good = |limits: Limits| answers.iter().filter(|answer| limits.hold(answer)).count();
        LoadReport {
            origin,
            answered: answers.len(),
            failed: count - answers.len(),
            error,
            seconds,
            requests_per_s: answers.len() as f64 / seconds,
            prompt_tokens: answers
                .iter()
                .filter_map(|answer| answer.prompt_tokens)
                .sum(),
            tokens,
            tokens_per_s: tokens as f64 / seconds,
            first_token_ms: times(|answer| answer.first),
            between_tokens_ms: Percentiles::new(gaps.copied().collect()),
            total_ms: times(|answer| answer.total),
            limits_ms: limits,
            goodput_per_s: limits.map(|limits| good(limits) as f64 / seconds),
            answers: answers
                .iter()
                .map(|answer| (1e3 * answer.first, 1e3 * answer.total, answer.tokens))
                .collect(),
        }
    }

    fn times(&self) -> [f64; 9] {
        let all = [self.first_token_ms, self.between_tokens_ms, self.total_ms];
        let mut times = all.iter().flat_map(Percentiles::values);
        std::array::from_fn(|_| times.next().unwrap_or(0.0))
    }

    fn row(&self, with_server: bool, with_goodput: bool) -> Vec<String> {
        let mut row = vec![self.origin.level.to_string()];
        if with_server {
            row.insert(0, self.label());
        }
        row.extend([self.answered.to_string(), self.failed.to_string()]);
        row.extend([self.requests_per_s, self.tokens_per_s].map(rounded));
        row.extend(self.times().map(rounded));
        if with_goodput {
            row.push(self.goodput_per_s.map_or_else(String::new, rounded));
        }
        row
    }

    /// The server's address without the path.
    fn label(&self) -> String {
        let url = self.origin.server.as_str();
        let address = url.split_once("://").map_or(url, |(_, rest)| rest);
        let address = address.split('/').next().unwrap_or(address);
        format!("{address} {}", self.origin.model)
    }
}

fn rows(reports: &[LoadReport]) -> Vec<Vec<String>> {
    let several = labels(reports).len() > 1;
    let goodput = reports.iter().any(|report| report.goodput_per_s.is_some());
    let mut head: Vec<String> = HEAD.map(String::from).into();
    if several {
        head.insert(0, "server".into());
    }
    if goodput {
        head.push("good/s".into());
    }
    let rows = reports.iter().map(|report| report.row(several, goodput));
    std::iter::once(head).chain(rows).collect()
}

/// The servers, in their order.
fn labels(reports: &[LoadReport]) -> Vec<String> {
    let mut labels = Vec::new();
    for report in reports {
        let label = report.label();
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// Lines about the requests and their failures.
fn notes(reports: &[LoadReport]) -> Vec<String> {
    let mut notes = Vec::new();
    for report in reports {
        let mean = |tokens: u64| rounded(tokens as f64 / report.answered.max(1) as f64);
        notes.push(format!(
            "{} at {}, {}: {} tokens a prompt, {} an answer",
            report.origin.level,
            report.origin.server,
            report.origin.model,
            mean(report.prompt_tokens),
            mean(report.tokens)
        ));
        if let Some(error) = &report.error {
            notes.push(format!("{} failed, the first with: {error}", report.failed));
        }
    }
    notes
}

/// Formats the table for a terminal.
pub fn to_text(reports: &[LoadReport]) -> String {
    let notes = notes(reports).into_iter().map(|note| note + "\n");
    columns(&rows(reports)) + "\n" + &notes.collect::<String>()
}

/// Formats the table as Markdown.
pub fn to_markdown(reports: &[LoadReport]) -> String {
    let notes = notes(reports).into_iter().map(|note| format!("- {note}\n"));
    markdown(&rows(reports)) + "\n" + &notes.collect::<String>()
}

/// Formats a CSV line for each result.
pub fn to_csv(reports: &[LoadReport]) -> String {
    let line = |report: &LoadReport| {
        let (clients, rate) = match report.origin.level {
            Level::Clients(clients) => (clients.to_string(), String::new()),
            Level::Rate(rate) => (String::new(), rate.to_string()),
        };
        let text = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut cells = vec![
            text(&report.origin.server),
            text(&report.origin.model),
            clients,
            rate,
        ];
        cells.extend([report.answered, report.failed].map(|n| n.to_string()));
        cells.extend([report.seconds, report.requests_per_s].map(|x| x.to_string()));
        cells.extend([report.prompt_tokens, report.tokens].map(|n| n.to_string()));
        cells.push(report.tokens_per_s.to_string());
        cells.extend(report.times().map(|x| x.to_string()));
        cells.push(
            report
                .goodput_per_s
                .map_or_else(String::new, |x| x.to_string()),
        );
        cells.join(",") + "\n"
    };
    CSV_HEAD.to_string() + &reports.iter().map(line).collect::<String>()
}

/// A number of a result that is plotted.
type Value = fn(&LoadReport) -> f64;

/// Creates the page, with plots against the load, or for a single load of the answers' times.
pub fn page(reports: &[LoadReport]) -> Page {
    let percentiles: [(&str, [Value; 2]); 3] = [
        (
            "Time to the first token",
            [|r| r.first_token_ms.p50, |r| r.first_token_ms.p99],
        ),
        (
            "Time between tokens",
            [|r| r.between_tokens_ms.p50, |r| r.between_tokens_ms.p99],
        ),
        (
            "Time of an answer",
            [|r| r.total_ms.p50, |r| r.total_ms.p99],
        ),
    ];
    let mut figures: Vec<Figure> = percentiles
        .into_iter()
        .map(|(title, [median, p99])| {
            let lines = [("median", false, median), ("99 % of them", true, p99)];
            by_load(reports, title, "milliseconds", &lines)
        })
        .collect();
    let speed: [(&str, bool, Value); 1] = [("", false, |r| r.tokens_per_s)];
    figures.push(by_load(
        reports,
        "Tokens of all answers per second",
        "tokens/s",
        &speed,
    ));
    let first = reports.first();
    let provenance = first.map(|report| &report.origin.provenance);
    let mut lines = notes(reports);
    lines.extend(provenance.map(|from| format!("{}, {}", from.date, from.command)));
    Page {
        title: format!("{}: under load", labels(reports).join(", ")),
        notes: lines.iter().flat_map(|line| lines_of(line, NOTE)).collect(),
        lines,
        figures,
        tables: vec![rows(reports)],
        facts: Vec::new(),
    }
}

/// Plots numbers against the load, with a line for each of them and server.
fn by_load(
    reports: &[LoadReport],
    title: &str,
    unit: &str,
    lines: &[(&str, bool, Value)],
) -> Figure {
    let load = |report: &LoadReport| match report.origin.level {
        Level::Clients(clients) => clients as f64,
        Level::Rate(rate) => rate,
    };
    let is_rate = matches!(reports.first(), Some(r) if matches!(r.origin.level, Level::Rate(_)));
    let axis = if is_rate {
        "requests per second"
    } else {
        "clients"
    };
    let most = |of: &dyn Fn(&LoadReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
    let servers = labels(reports);
    let mut series = Vec::new();
    for (color, server) in servers.iter().enumerate() {
        for (name, dashed, value) in lines {
            let own = reports.iter().filter(|report| report.label() == *server);
            let mut points: Vec<(f64, f64)> = own.map(|r| (load(r), value(r))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            series.push(Series {
                label: format!("{server} {name}").trim().into(),
                points,
                color: color % COLORS,
                dashed: *dashed,
                dots: true,
                errors: Vec::new(),
            });
        }
    }
    let highest = most(&|report| {
        lines
            .iter()
            .map(|(_, _, of)| of(report))
            .fold(0.0, f64::max)
    });
    Figure {
        title: title.into(),
        caption: format!("By {axis}, measured by the client."),
        plot: Plot {
            description: format!("{title} by {axis}"),
            x: Axis::linear(axis, most(&load)),
            y: Axis::linear(unit, highest),
            bands: Vec::new(),
            series,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first: f64, gaps: &[f64], tokens: u64) -> Timeline {
        Timeline {
            first,
            gaps: gaps.to_vec(),
            total: first + gaps.iter().sum::<f64>(),
            prompt_tokens: Some(10),
            tokens,
        }
    }

    fn report(level: Level, limits: &str) -> LoadReport {
        let origin = Origin {
            server: "http://127.0.0.1:8080/v1/completions".into(),
            model: "a \"model\"".into(),
            level,
            provenance: Provenance::default(),
        };
        let outcomes = Outcomes {
            answers: vec![
                Ok(answer(0.1, &[0.01, 0.03], 3)),
                Ok(answer(0.4, &[0.02], 2)),
                Err("status 503: busy".into()),
            ],
            seconds: 2.0,
        };
        LoadReport::new(origin, outcomes, Limits::parse(limits).ok())
    }

    #[test]
    fn limits_are_parsed() {
        let limits = Limits::parse("first:500,between:50").expect("limits");
        assert_eq!(
            (limits.first, limits.between, limits.total),
            (Some(500.0), Some(50.0), None)
        );
        for text in ["", "first", "first:x", "first:-1", "last:3"] {
            assert!(Limits::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_result_counts_answers_tokens_and_good_requests() {
        let both = report(Level::Clients(2), "total:1000");
        assert_eq!((both.answered, both.failed, both.tokens), (2, 1, 5));
        assert_eq!(both.goodput_per_s, Some(1.0));
        assert_eq!(both.first_token_ms.p99, 400.0);
        assert_eq!(both.between_tokens_ms.p50, 20.0);
        let one = report(Level::Clients(2), "first:200,between:21");
        assert_eq!(one.goodput_per_s, Some(0.5));
        assert_eq!(
            report(Level::Clients(2), "between:15").goodput_per_s,
            Some(0.0)
        );
    }

    #[test]
    fn every_output_holds_the_results() {
        let reports = [
            report(Level::Clients(1), "first:200"),
            report(Level::Clients(8), "first:200"),
        ];
        let text = to_text(&reports);
        assert!(
            text.contains("8 clients") && text.contains("status 503: busy"),
            "{text}"
        );
        let csv = to_csv(&reports);
        let columns = csv.lines().next().map(|head| head.split(',').count());
        assert!(
            csv.lines()
                .all(|line| Some(line.split(',').count()) == columns),
            "{csv}"
        );
        let page = page(&reports).write(crate::page::Kind::Page);
        assert!(page.matches("<svg").count() == 4, "{page}");
        let json = serde_json::to_value(&reports).expect("JSON");
        assert_eq!(json[1]["level"]["clients"], 8);
    }
}
