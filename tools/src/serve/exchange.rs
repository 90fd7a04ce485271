//! A request from its arrival to the end of its response: the measurements that go to `/metrics` and the log.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hyper::StatusCode;
use tokio::sync::Notify;
use waterline::Finish;

use super::log::{Line, Log};
use super::metrics::{Count, Metrics, Time};

/// Maximum characters of a path in the log.
const PATH: usize = 128;

/// A request. The connection, the stream of the answer and the scheduler's jobs share it; the last of them that drops it completes
/// the measurements.
pub struct Exchange {
    metrics: Arc<Metrics>,
    log: Option<Log>,
    begun: Instant,
    /// Notified to end the connection of a client that stopped reading.
    pub stuck: Arc<Notify>,
    line: Mutex<Line>,
}

impl Exchange {
    /// A request that arrives now.
    pub fn new(
        (metrics, log): (Arc<Metrics>, Option<Log>),
        stuck: Arc<Notify>,
        client: SocketAddr,
        path: &str,
    ) -> Self {
        let line = Line {
            time: log.as_ref().map_or_else(String::new, |_| now()),
            client: client.to_string(),
            interface: path.chars().take(PATH).collect(),
            ..Line::default()
        };
        Exchange {
            metrics,
            log,
            begun: Instant::now(),
            stuck,
            line: Mutex::new(line),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model that answers the request.
    pub fn model(&self, name: &str) {
        self.line().model = Some(name.into());
    }

    /// The response begins.
    pub fn responds(&self, status: StatusCode) {
        let mut line = self.line();
        line.status = Some(status.as_u16());
        if line.model.is_none() || status.is_client_error() || status.is_server_error() {
            line.ending = if status.is_success() { "done" } else { "error" };
        }
    }

    /// The scheduler begins to read a prompt.
    pub fn leaves_queue(&self) {
        let time = self.begun.elapsed();
        self.metrics.observe(Time::Queue, time);
        self.line().queue.get_or_insert(time.as_secs_f64());
    }

    /// A prompt was read.
    pub fn has_read(&self, reused: usize, read: usize) {
        let mut line = self.line();
        line.reused += reused;
        line.read += read;
    }

    /// An answer got a token; `last` is the time of its token before. Returns the time of this token.
    pub fn token(&self, last: Option<Instant>) -> Instant {
        let now = Instant::now();
        let mut line = self.line();
        line.written += 1;
        if let Some(last) = last {
            self.metrics.observe(Time::BetweenTokens, now - last);
        } else {
            let time = now - self.begun;
            self.metrics.observe(Time::FirstToken, time);
            line.first.get_or_insert(time.as_secs_f64());
        }
        now
    }

    /// An answer ends; without `finish`, for lack of time or room. The line tells how the last answer ended.
    pub fn ends(&self, finish: Option<Finish>) {
        self.line().ending = match finish {
            Some(Finish::Length) => "length",
            Some(Finish::Stop) => "stop",
            Some(_) => "end",
            None => "cut",
        };
    }

    /// An answer failed.
    pub fn fails(&self) {
        self.line().ending = "error";
    }
}

/// The time as RFC 3339 in UTC, with milliseconds.
fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let total = self.begun.elapsed();
        let line = self.line.get_mut().unwrap_or_else(PoisonError::into_inner);
        if line.model.is_some() {
            self.metrics.observe(Time::Total, total);
        }
        let Some(log) = &self.log else { return };
        line.total = total.as_secs_f64();
        if line.ending.is_empty() {
            line.ending = "left";
        }
        if !log.write(line) {
            self.metrics.add(Count::LinesLost, 1);
        }
    }
}
