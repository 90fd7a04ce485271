//! Counters, as `/metrics` shows them in Prometheus' text format.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use waterline::PrefixStoreStats;

/// Counters since the start.
#[derive(Default)]
pub struct Metrics {
    requests: AtomicU64,
    refused: AtomicU64,
    answers: AtomicU64,
    cancelled: AtomicU64,
    read: AtomicU64,
    reused: AtomicU64,
    generated: AtomicU64,
    steps: AtomicU64,
    read_us: AtomicU64,
    step_us: AtomicU64,
}

impl Metrics {
    /// A request was answered with this status.
    pub fn request(&self, status: u16) {
        self.requests.fetch_add(1, Relaxed);
        self.refused.fetch_add(u64::from(status >= 400), Relaxed);
    }

    /// A prompt was read.
    pub fn read(&self, reused: usize, read: usize, time: Duration) {
        self.reused.fetch_add(reused as u64, Relaxed);
        self.read.fetch_add(read as u64, Relaxed);
        self.read_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// These many answers got a token.
    pub fn step(&self, answers: usize, time: Duration) {
        self.steps.fetch_add(1, Relaxed);
        self.generated.fetch_add(answers as u64, Relaxed);
        self.step_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// An answer ended.
    pub fn ended(&self, was_cancelled: bool) {
        self.answers.fetch_add(1, Relaxed);
        self.cancelled.fetch_add(u64::from(was_cancelled), Relaxed);
    }

    /// The page.
    pub fn page(&self, waiting: usize, store: &PrefixStoreStats) -> String {
        let seconds = |us: &AtomicU64| us.load(Relaxed) as f64 / 1e6;
        let count = |number: &AtomicU64| number.load(Relaxed) as f64;
        let rows = [
            (
                "requests_total",
                "counter",
                "HTTP requests.",
                count(&self.requests),
            ),
            (
                "requests_refused_total",
                "counter",
                "Requests answered by an error.",
                count(&self.refused),
            ),
            (
                "answers_total",
                "counter",
                "Answers that ended.",
                count(&self.answers),
            ),
            (
                "answers_cancelled_total",
                "counter",
                "Answers whose client left.",
                count(&self.cancelled),
            ),
            (
                "prompt_tokens_total",
                "counter",
                "Tokens of prompts that were read.",
                count(&self.read),
            ),
            (
                "prompt_tokens_reused_total",
                "counter",
                "Tokens of prompts that were not read again.",
                count(&self.reused),
            ),
            (
                "prompt_seconds_total",
                "counter",
                "Time of reading prompts, with the steps between.",
                seconds(&self.read_us),
            ),
            (
                "generated_tokens_total",
                "counter",
                "Tokens of answers.",
                count(&self.generated),
            ),
            (
                "steps_total",
                "counter",
                "Steps, each of all running answers.",
                count(&self.steps),
            ),
            (
                "step_seconds_total",
                "counter",
                "Time of steps.",
                seconds(&self.step_us),
            ),
            (
                "requests_waiting",
                "gauge",
                "Answers in the queue.",
                waiting as f64,
            ),
            (
                "store_checkpoints",
                "gauge",
                "Checkpoints of the prefix store.",
                store.checkpoints as f64,
            ),
            (
                "store_bytes",
                "gauge",
                "Bytes of the prefix store.",
                store.bytes as f64,
            ),
        ];
        let mut page = String::new();
        for (name, kind, help, value) in rows {
            let _ = writeln!(
                page,
                "# HELP waterline_{name} {help}\n# TYPE waterline_{name} {kind}\nwaterline_{name} {value}"
            );
        }
        page
    }
}
