//! Counters, which `/metrics` shows in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use waterline::PrefixStoreStats;

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
}

/// Names and help texts. Times are counted in microseconds and shown in seconds.
const COUNTERS: [(&str, &str); 10] = [
    ("requests_total", "HTTP requests."),
    ("requests_refused_total", "Requests answered by an error."),
    ("answers_total", "Answers that ended."),
    ("answers_cancelled_total", "Answers whose client left."),
    ("prompt_tokens_total", "Tokens of prompts that were read."),
    ("prompt_tokens_reused_total", "Tokens not read again."),
    (
        "prompt_seconds_total",
        "Time of reading, and of steps between.",
    ),
    ("generated_tokens_total", "Tokens of answers."),
    ("steps_total", "Steps, each of all running answers."),
    ("step_seconds_total", "Time of steps."),
];

/// Counters since the start.
#[derive(Default)]
pub struct Metrics([AtomicU64; COUNTERS.len()]);

impl Metrics {
    /// Adds `by` to a counter.
    pub fn add(&self, counter: Count, by: usize) {
        self.0[counter as usize].fetch_add(by as u64, Relaxed);
    }

    /// Adds a time to a counter.
    pub fn add_time(&self, counter: Count, time: Duration) {
        self.add(counter, time.as_micros() as usize);
    }

    /// Returns the page of `/metrics`.
    pub fn page(&self, waiting: usize, store: &PrefixStoreStats) -> String {
        let mut page = String::new();
        let mut row = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = writeln!(
                page,
                "# HELP waterline_{name} {help}\n# TYPE waterline_{name} {kind}\nwaterline_{name} {value}"
            );
        };
        for ((name, help), counter) in COUNTERS.iter().zip(&self.0) {
            let unit = if name.contains("seconds") { 1e-6 } else { 1.0 };
            row(name, "counter", help, unit * counter.load(Relaxed) as f64);
        }
        let gauges = [
            ("requests_waiting", "Answers in the queue.", waiting),
            (
                "store_checkpoints",
                "The store's checkpoints.",
                store.checkpoints,
            ),
            ("store_bytes", "Bytes of the prefix store.", store.bytes),
        ];
        for (name, help, value) in gauges {
            row(name, "gauge", help, value as f64);
        }
        page
    }
}
