//! The page of `--html`: latency and memory against position, compared with a Transformer.

use super::overview;
use super::report::{Depth, Report};
use super::transformer::TransformerCache;
use crate::page::{Figure, Page};
use crate::plot::{Axis, Band, COLORS, Plot, Series, round_below, round_step};
use crate::provenance::{self, Provenance};
use crate::text::lines_of;
use crate::units;

/// Number of points of a computed line.
const COMPUTED: usize = 48;
/// Maximum characters of a line below a plot.
const NOTE: usize = 120;

/// Creates the page.
pub fn page(reports: &[Report]) -> Page {
    let labels = overview::labels(reports);
    let figures = figures(reports, &labels);
    let notes = notes(reports, &labels);
    if let [report] = reports {
        let warning = report.provenance.warning();
        let rows = report.rows().into_iter().map(Vec::from);
        let batches = report.batch_rows().into_iter().map(Vec::from);
        let tables: [Vec<Vec<String>>; 2] = [rows.collect(), batches.collect()];
        let facts = report.facts().into_iter();
        return Page {
            title: format!("{}: latency and memory", report.model.title()),
            lines: report.titles().into_iter().chain(warning).collect(),
            notes,
            figures,
            tables: tables
                .into_iter()
                .filter(|table| !table.is_empty())
                .collect(),
            facts: facts.map(|(name, value)| (name.into(), value)).collect(),
        };
    }
    let mut lines: Vec<String> = reports.iter().map(|r| r.titles().join("; ")).collect();
    lines.extend(warnings(reports, &labels));
    let from: Vec<&Provenance> = reports.iter().map(|report| &report.provenance).collect();
    Page {
        title: format!("{}: latency and memory", names(reports)),
        lines,
        notes,
        figures,
        tables: std::iter::once(overview::rows(reports))
            .chain(overview::by_position(reports))
            .collect(),
        facts: provenance::facts(&labels, &from),
    }
}

/// Names of the models in the results, without repetition.
pub fn names<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for report in reports {
        let name = report.model.title();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

fn warnings(reports: &[Report], labels: &[String]) -> Vec<String> {
    let labelled = labels.iter().zip(reports);
    labelled
        .filter_map(|(label, report)| Some(format!("{label}: {}", report.provenance.warning()?)))
        .collect()
}

/// Returns the origins of the results, in lines that fit below a plot.
pub fn notes(reports: &[Report], labels: &[String]) -> Vec<String> {
    let mut notes = Vec::new();
    for (label, report) in labels.iter().zip(reports) {
        let from = &report.provenance;
        let machine = from.gpu.as_deref().or(report.machine.cpu.as_deref());
        let plural = if report.threads == 1 { "" } else { "s" };
        notes.push(format!(
            "{label}: {}, {} thread{plural}; {}; sha256 {}; commit {}, {}",
            machine.unwrap_or(&report.machine.arch),
            report.threads,
            from.format,
            from.short_sha256(),
            from.commit,
            from.date
        ));
    }
    notes.extend(warnings(reports, labels));
    let command = reports.first().map(|report| &report.provenance.command);
    notes.extend(command.map(String::from));
    notes.iter().flat_map(|note| lines_of(note, NOTE)).collect()
}

/// Plots latency and memory of all results together, with their labels.
pub fn figures(reports: &[Report], labels: &[String]) -> Vec<Figure> {
    match reports {
        [] => Vec::new(),
        [first, ..] => vec![
            latency(reports, labels, first),
            memory(reports, labels, first),
        ],
    }
}

/// The last position on the axis.
fn last(reports: &[Report]) -> f64 {
    let depths = reports.iter().flat_map(|report| &report.depths);
    let positions = depths.map(|depth| depth.position);
    positions.max().unwrap_or(0).max(100) as f64
}

fn positions(reports: &[Report]) -> Axis {
    Axis::log(
        "position (tokens read)",
        1.0,
        last(reports),
        10.0,
        |value| round(units::count(value.round() as usize)),
    )
}

/// Shortens `1.00 K` and `10.0 K` by their zero decimals.
fn round(number: String) -> String {
    number.replace(".00 ", " ").replace(".0 ", " ")
}

/// Computes a value at positions that are evenly spaced on the logarithmic axis.
fn computed(last: f64, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let at = |i: usize| last.powf(i as f64 / COMPUTED as f64);
    (0..=COMPUTED).map(|i| (at(i), value(at(i)))).collect()
}

fn cache_bytes(cache: &TransformerCache, position: f64) -> f64 {
    cache.bytes_per_token as f64 * position
}

/// The index of grey in the palette.
const GREY: usize = 5;

/// The colour of computed curves: the second colour for a single result, grey for several.
fn computed_color(reports: &[Report]) -> usize {
    match reports.len() {
        1 => 1,
        _ => GREY,
    }
}

/// The colours of results: all except grey.
fn colors() -> impl Iterator<Item = usize> {
    (0..).filter(|&number| number % COLORS != GREY)
}

fn latency(reports: &[Report], labels: &[String], first: &Report) -> Figure {
    let depths = reports.iter().flat_map(|report| &report.depths);
    let highest = depths.map(|depth| depth.p99_us).fold(0.0, f64::max);
    let medians = reports.iter().flat_map(|report| &report.depths);
    let lowest = medians.map(|d| d.p50_us).fold(f64::INFINITY, f64::min);
    let (unit, scale) = if highest < 1e4 {
        ("us", 1.0)
    } else {
        ("ms", 1e-3)
    };
    let points = |report: &Report, value: fn(&Depth) -> f64| -> Vec<(f64, f64)> {
        let depths = report.depths.iter();
        let point = |depth: &Depth| (depth.position.max(1) as f64, scale * value(depth));
        depths.map(point).collect()
    };
    let base = first
        .depths
        .first()
        .map_or(0.0, |depth| scale * depth.p50_us);
    let transformer = first.model.transformer;
    let with_cache = transformer.map(|cache| {
        let time =
            |position| base + 1e6 * scale * cache_bytes(&cache, position) / first.read_bytes_per_s;
        Series {
            label: "with a Transformer's KV cache, computed".into(),
            points: computed(last(reports), time),
            color: computed_color(reports),
            dashed: true,
            dots: false,
            errors: Vec::new(),
        }
    });
    let mut series: Vec<Series> = with_cache.into_iter().collect();
    let mut bands = Vec::new();
    for (color, (report, label)) in colors().zip(reports.iter().zip(labels)) {
        let (half, most) = (points(report, |d| d.p50_us), points(report, |d| d.p99_us));
        let pairs = half.iter().zip(&most);
        bands.push(Band {
            label: match reports.len() {
                1 => "p50 to p99".into(),
                _ => format!("{label}, p50 to p99"),
            },
            points: pairs.map(|(a, b)| (a.0, a.1, b.1)).collect(),
            color,
        });
        series.push(Series {
            label: match reports.len() {
                1 => "measured, p50".into(),
                _ => label.clone(),
            },
            points: half,
            color,
            dashed: false,
            dots: true,
            errors: Vec::new(),
        });
    }
    let plot = Plot {
        description: "Time of a token against position".into(),
        x: positions(reports),
        y: time_axis(unit, scale * lowest, scale * highest),
        bands,
        series,
    };
    let turns = if first.interleaved {
        "the depths took turns, 16 tokens each"
    } else {
        "timed when the depth was reached"
    };
    let mut caption = format!("{} tokens at each depth, {turns}.", first.r#gen);
    if let Some(cache) = transformer {
        caption += &format!(
            " The dashed line adds to the first point what it takes at {:.1} GB/s, the plain-read bandwidth measured in the same \
             run, to read a KV cache of {} a token ({}).",
            1e-9 * first.read_bytes_per_s,
            units::bytes(cache.bytes_per_token as usize),
            cache.heads()
        );
    }
    Figure {
        title: "Latency".into(),
        plot,
        caption,
    }
}

/// A time axis: linear from zero, or logarithmic if slow tokens would press the medians to the bottom.
fn time_axis(unit: &str, lowest: f64, highest: f64) -> Axis {
    /// The ratio of the longest time to the shortest median from which the axis is logarithmic.
    const WIDE: f64 = 6.0;
    let label = format!("time of a token ({unit})");
    if highest < WIDE * lowest {
        return Axis::linear(&label, 1.6 * highest);
    }
    let (min, max) = (round_below(lowest / 1.2), round_step(1.2 * highest));
    Axis::log(&label, min, max, 10.0, units::rounded)
}

fn memory(reports: &[Report], labels: &[String], first: &Report) -> Figure {
    let last = last(reports);
    let resident = |report: &Report| -> Vec<(f64, f64)> {
        let memory = report.memory.iter();
        memory
            .map(|memory| (memory.position.max(1) as f64, memory.rss_bytes as f64))
            .collect()
    };
    let transformer = first.model.transformer;
    let states = reports
        .iter()
        .map(|report| report.model.session_bytes as f64);
    let values = reports.iter().flat_map(|report| &report.memory);
    let highest = values
        .map(|memory| memory.rss_bytes as f64)
        .chain(states.clone())
        .chain(transformer.map(|cache| cache_bytes(&cache, last)))
        .fold(0.0, f64::max);
    let lowest = states
        .chain(transformer.map(|cache| cache_bytes(&cache, 1.0)))
        .fold(f64::INFINITY, f64::min);
    let mut series = Vec::new();
    let single = reports.len() == 1;
    for (color, (report, label)) in colors().zip(reports.iter().zip(labels)) {
        let state = report.model.session_bytes as f64;
        series.push(Series {
            label: if single {
                "process, measured".into()
            } else {
                label.clone()
            },
            points: resident(report),
            color,
            dashed: false,
            dots: false,
            errors: Vec::new(),
        });
        if single {
            series.push(Series {
                label: "state of the session".into(),
                points: vec![(1.0, state), (last, state)],
                color: 2,
                dashed: false,
                dots: false,
                errors: Vec::new(),
            });
        }
    }
    series.extend(transformer.map(|cache| Series {
        label: "KV cache of a Transformer, computed".into(),
        points: computed(last, |position| cache_bytes(&cache, position)),
        color: computed_color(reports),
        dashed: true,
        dots: false,
        errors: Vec::new(),
    }));
    let plot = Plot {
        description: "Memory against position".into(),
        x: positions(reports),
        y: Axis::log(
            if single {
                "memory"
            } else {
                "memory of the process"
            },
            2f64.powf(lowest.log2().floor()),
            2f64.powf(highest.log2().ceil()),
            32.0,
            |value| round(units::bytes(value.round() as usize)),
        ),
        bands: Vec::new(),
        series,
    };
    let mut caption = "Resident memory of the whole process, its weights included, without the buffer of the bandwidth measurement.".to_string();
    if let Some(cache) = transformer {
        caption += &format!(
            " The dashed line is the cache of a Transformer with as many layers ({}): a key and a value for each token and layer, \
             16 bits a number.",
            cache.heads()
        );
    }
    Figure {
        title: "Memory".into(),
        plot,
        caption,
    }
}
