//! Counters and histograms, which `/metrics` shows in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A counter; its value is the index in the table.
#[derive(Clone, Copy)]
pub enum Count {
    Requests,
    Refused,
    Answers,
    Cancelled,
    Read,
    Reused,
    ReadTime,
    Generated,
    Steps,
    StepTime,
    LinesLost,
}

/// Names and help texts, and the name in llama.cpp's server. Times are counted in microseconds and shown in seconds.
const COUNTERS: [(&str, &str, Option<&str>); 11] = [
    ("requests_total", "HTTP requests.", None),
    (
        "requests_refused_total",
        "Requests answered by an error.",
        None,
    ),
    ("answers_total", "Answers that ended.", None),
    (
        "answers_cancelled_total",
        "Answers whose client left.",
        None,
    ),
    (
        "prompt_tokens_total",
        "Tokens of prompts that were read.",
        Some("prompt_tokens_total"),
    ),
    ("prompt_tokens_reused_total", "Tokens not read again.", None),
    (
        "prompt_seconds_total",
        "Time of reading, and of steps between.",
        Some("prompt_seconds_total"),
    ),
    (
        "generated_tokens_total",
        "Tokens of answers.",
        Some("tokens_predicted_total"),
    ),
    (
        "steps_total",
        "Steps, each of all running answers.",
        Some("n_decode_total"),
    ),
    (
        "step_seconds_total",
        "Time of steps.",
        Some("tokens_predicted_seconds_total"),
    ),
    (
        "log_lines_lost_total",
        "Lines of the log that were dropped because its reader was too slow.",
        None,
    ),
];

/// A histogram of times; its value is the index in the table.
#[derive(Clone, Copy)]
pub enum Time {
    Queue,
    FirstToken,
    BetweenTokens,
    Total,
}

/// Names and help texts of histograms. The names follow vLLM's server.
const HISTOGRAMS: [(&str, &str); 4] = [
    (
        "request_queue_time_seconds",
        "Time from a request to the start of reading its prompt.",
    ),
    (
        "time_to_first_token_seconds",
        "Time from a request to the first token of each answer.",
    ),
    (
        "inter_token_latency_seconds",
        "Time between the tokens of an answer. Tokens accepted together have 0 between them.",
    ),
    (
        "e2e_request_latency_seconds",
        "Time from a request for answers to their end.",
    ),
];

/// Upper bounds of the buckets, in seconds: three per decade.
const BOUNDS: [f64; 17] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// The number of times per bucket, the last without a bound, and their sum in microseconds.
#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

/// Counters and histograms since the start.
#[derive(Default)]
pub struct Metrics {
    counters: [AtomicU64; COUNTERS.len()],
    histograms: [Histogram; HISTOGRAMS.len()],
    /// Most tokens that a session had read at the end of its answer.
    longest: AtomicU64,
}

/// The present values that `/metrics` shows.
#[derive(Default)]
pub struct Gauges {
    /// Loaded models.
    pub models: usize,
    /// Answers in the queue.
    pub waiting: usize,
    /// Answers that run.
    pub processing: usize,
    /// Checkpoints of prefix stores, and their bytes.
    pub checkpoints: usize,
    pub store_bytes: usize,
}

impl Metrics {
    /// Adds `by` to a counter.
    pub fn add(&self, counter: Count, by: usize) {
        self.counters[counter as usize].fetch_add(by as u64, Relaxed);
    }

    /// Adds a time to a counter.
    pub fn add_time(&self, counter: Count, time: Duration) {
        self.add(counter, time.as_micros() as usize);
    }

    /// Records the tokens that a session has read at the end of its answer.
    pub fn ends_at(&self, position: u64) {
        self.longest.fetch_max(position, Relaxed);
    }

    /// Adds a time to a histogram.
    pub fn observe(&self, histogram: Time, time: Duration) {
        let histogram = &self.histograms[histogram as usize];
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        histogram.buckets[bucket].fetch_add(1, Relaxed);
        let micros = time.as_micros() as u64;
        histogram.sum.fetch_add(micros, Relaxed);
    }

    /// Returns the page of `/metrics`.
    pub fn page(&self, gauges: &Gauges) -> String {
        let mut page = String::new();
        for ((name, help, theirs), counter) in COUNTERS.iter().zip(&self.counters) {
            let unit = if name.contains("seconds") { 1e-6 } else { 1.0 };
            let value = unit * counter.load(Relaxed) as f64;
            row(
                &mut page,
                &format!("waterline_{name}"),
                ("counter", help),
                value,
            );
            if let Some(theirs) = theirs {
                row(
                    &mut page,
                    &format!("llamacpp:{theirs}"),
                    ("counter", help),
                    value,
                );
            }
        }
        for (names, help, value) in self.gauges(gauges) {
            for name in names.iter().filter(|name| !name.is_empty()) {
                row(&mut page, name, ("gauge", help), value);
            }
        }
        for ((name, help), histogram) in HISTOGRAMS.iter().zip(&self.histograms) {
            histogram.write(&mut page, name, help);
        }
        page
    }

    /// The names, ours and llama.cpp's, help texts and values of gauges.
    fn gauges(&self, gauges: &Gauges) -> [([&'static str; 2], &'static str, f64); 9] {
        let value = |counter: Count| self.counters[counter as usize].load(Relaxed) as f64;
        let rate = |tokens, time| value(tokens) / (1e-6 * value(time)).max(1e-6);
        [
            (
                ["waterline_models_loaded", ""],
                "Models in memory.",
                gauges.models as f64,
            ),
            (
                [
                    "waterline_requests_processing",
                    "llamacpp:requests_processing",
                ],
                "Answers that run.",
                gauges.processing as f64,
            ),
            (
                ["waterline_requests_waiting", "llamacpp:requests_deferred"],
                "Answers in the queue.",
                gauges.waiting as f64,
            ),
            (
                ["waterline_store_checkpoints", ""],
                "The store's checkpoints.",
                gauges.checkpoints as f64,
            ),
            (
                ["waterline_store_bytes", ""],
                "Bytes of the prefix store.",
                gauges.store_bytes as f64,
            ),
            (
                ["", "llamacpp:prompt_tokens_seconds"],
                "Tokens of prompts read per second, since the start.",
                rate(Count::Read, Count::ReadTime),
            ),
            (
                ["", "llamacpp:predicted_tokens_seconds"],
                "Tokens of answers generated per second of steps, since the start.",
                rate(Count::Generated, Count::StepTime),
            ),
            (
                ["", "llamacpp:n_busy_slots_per_decode"],
                "Mean tokens per step.",
                value(Count::Generated) / value(Count::Steps).max(1.0),
            ),
            (
                ["", "llamacpp:n_tokens_max"],
                "Most tokens that a session had read at the end of its answer.",
                self.longest.load(Relaxed) as f64,
            ),
        ]
    }
}

/// Writes a metric with one value.
fn row(page: &mut String, name: &str, (kind, help): (&str, &str), value: f64) {
    let _ = writeln!(
        page,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
    );
}

impl Histogram {
    fn write(&self, page: &mut String, name: &str, help: &str) {
        let _ = writeln!(
            page,
            "# HELP waterline_{name} {help}\n# TYPE waterline_{name} histogram"
        );
        let bounds = BOUNDS.iter().map(f64::to_string);
        let mut count = 0;
        for (bound, bucket) in bounds.chain(["+Inf".into()]).zip(&self.buckets) {
            count += bucket.load(Relaxed);
            let _ = writeln!(page, "waterline_{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum = 1e-6 * self.sum.load(Relaxed) as f64;
        let _ = writeln!(
            page,
            "waterline_{name}_sum {sum}\nwaterline_{name}_count {count}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_all_times_up_to_their_bound() {
        let metrics = Metrics::default();
        for millis in [1, 3, 40, 400_000] {
            metrics.observe(Time::Total, Duration::from_millis(millis));
        }
        let page = metrics.page(&Gauges::default());
        let name = "waterline_e2e_request_latency_seconds";
        for (bound, count) in [
            ("0.0005", 0),
            ("0.001", 1),
            ("0.005", 2),
            ("0.05", 3),
            ("300", 3),
            ("+Inf", 4),
        ] {
            let line = format!("{name}_bucket{{le=\"{bound}\"}} {count}\n");
            assert!(page.contains(&line), "{line} {page}");
        }
        assert!(page.contains(&format!("{name}_sum 400.044\n")), "{page}");
        assert!(page.contains(&format!("{name}_count 4\n")), "{page}");
    }
}
