//! The page of `--html`: latency and memory against position, beside what a Transformer would need.

use super::report::{Depth, Report};
use crate::page::{self, Figure};
use crate::plot::{Axis, Band, Plot, Series};
use crate::units;

/// Points of a computed line.
const COMPUTED: usize = 48;

/// The page.
pub fn page(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report.rows().iter().map(|row| row.to_vec()).collect();
    page::page(
        &format!("{}: latency and memory", report.model.title()),
        &report.titles(),
        &figures(report),
        &rows,
        &report.facts(),
    )
}

/// Its plots alone.
pub fn picture(report: &Report) -> String {
    page::picture(&figures(report))
}

fn figures(report: &Report) -> [Figure; 2] {
    [latency(report), memory(report)]
}

/// The last position that is shown.
fn last(report: &Report) -> f64 {
    let depths = report.depths.iter().map(|depth| depth.position);
    depths.max().unwrap_or(0).max(100) as f64
}

fn positions(report: &Report) -> Axis {
    Axis::log("position (tokens read)", 1.0, last(report), 10.0, |value| {
        round(units::count(value.round() as usize))
    })
}

/// `1.00 K` and `10.0 K` without their zeros.
fn round(number: String) -> String {
    number.replace(".00 ", " ").replace(".0 ", " ")
}

/// Positions at equal distances on the axis, each with a number computed from it.
fn computed(report: &Report, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    let at = |i: usize| last(report).powf(i as f64 / COMPUTED as f64);
    (0..=COMPUTED).map(|i| (at(i), value(at(i)))).collect()
}

fn cache_bytes(report: &Report, position: f64) -> f64 {
    report.model.transformer_bytes_per_token as f64 * position
}

fn latency(report: &Report) -> Figure {
    let highest = report.depths.iter().map(|depth| depth.p99_us);
    let highest = highest.fold(0.0, f64::max);
    let (unit, scale) = if highest < 1e4 {
        ("us", 1.0)
    } else {
        ("ms", 1e-3)
    };
    let points = |value: fn(&Depth) -> f64| {
        let depths = report.depths.iter();
        let point = |depth: &Depth| (depth.position.max(1) as f64, scale * value(depth));
        depths.map(point).collect::<Vec<_>>()
    };
    let (half, most) = (points(|d| d.p50_us), points(|d| d.p99_us));
    let base = half.first().map_or(0.0, |point| point.1);
    let with_cache =
        |position| base + 1e6 * scale * cache_bytes(report, position) / report.read_bytes_per_s;
    let plot = Plot {
        description: "Time of a token against position".into(),
        x: positions(report),
        y: Axis::linear(&format!("time of a token ({unit})"), 1.6 * scale * highest),
        bands: vec![Band {
            label: "p50 to p99".into(),
            points: half
                .iter()
                .zip(&most)
                .map(|(a, b)| (a.0, a.1, b.1))
                .collect(),
            color: 0,
        }],
        series: vec![
            Series {
                label: "with a Transformer's KV cache, computed".into(),
                points: computed(report, with_cache),
                color: 1,
                dashed: true,
                dots: false,
            },
            Series {
                label: "measured, p50".into(),
                points: half,
                color: 0,
                dashed: false,
                dots: true,
            },
        ],
    };
    let turns = if report.interleaved {
        "the depths took turns, 16 tokens each"
    } else {
        "timed when the depth was reached"
    };
    Figure {
        title: "Latency".into(),
        plot,
        caption: format!(
            "{} tokens at each depth, {turns}. The dashed line adds to the first point what it takes at {:.1} GB/s, the plain-read \
             bandwidth measured in the same run, to read a KV cache of {} a token.",
            report.r#gen,
            1e-9 * report.read_bytes_per_s,
            units::bytes(report.model.transformer_bytes_per_token as usize)
        ),
    }
}

fn memory(report: &Report) -> Figure {
    let resident = report.memory.iter();
    let resident: Vec<(f64, f64)> = resident
        .map(|memory| (memory.position.max(1) as f64, memory.rss_bytes as f64))
        .collect();
    let state = report.model.session_bytes as f64;
    let values = resident.iter().map(|point| point.1);
    let highest = values
        .fold(state, f64::max)
        .max(cache_bytes(report, last(report)));
    let lowest = state.min(cache_bytes(report, 1.0));
    let plot = Plot {
        description: "Memory against position".into(),
        x: positions(report),
        y: Axis::log("memory", lowest, 1.5 * highest, 32.0, |value| {
            round(units::bytes(value.round() as usize))
        }),
        bands: Vec::new(),
        series: vec![
            Series {
                label: "process, measured".into(),
                points: resident,
                color: 0,
                dashed: false,
                dots: false,
            },
            Series {
                label: "state of the session".into(),
                points: vec![(1.0, state), (last(report), state)],
                color: 2,
                dashed: false,
                dots: false,
            },
            Series {
                label: "KV cache of a Transformer, computed".into(),
                points: computed(report, |position| cache_bytes(report, position)),
                color: 1,
                dashed: true,
                dots: false,
            },
        ],
    };
    Figure {
        title: "Memory".into(),
        plot,
        caption: "Resident memory of the whole process, its weights included, without the buffer of the bandwidth measurement. The dashed line is \
                  the cache of a Transformer with as many blocks of the same width: a key and a value for each token and block, 16 bits a number."
            .into(),
    }
}
