//! When requests are sent: by a number of clients one after another, or at a rate.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::Timeline;
use crate::splitmix::SplitMix64;

/// The load of a measurement.
#[derive(Clone, Copy, Serialize, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Clients that each send a request after the answer to their last one.
    Clients(usize),
    /// Requests per second, at random times.
    Rate(f64),
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Level::Clients(1) => write!(f, "1 client"),
            Level::Clients(clients) => write!(f, "{clients} clients"),
            Level::Rate(rate) => write!(f, "{rate}/s"),
        }
    }
}

/// The outcomes of the requests at a level, and the seconds from the first request to the last answer.
pub struct Outcomes {
    pub answers: Vec<Result<Timeline, String>>,
    pub seconds: f64,
}

/// Sends the requests with these numbers by `send`, which gets a number and the time at which the request is due.
pub fn run(
    level: Level,
    numbers: Range<usize>,
    send: impl Fn(usize, Instant) -> Result<Timeline, String> + Sync,
) -> Outcomes {
    let answers = Mutex::new(Vec::new());
    let answer = |number, due| {
        let sent = send(number, due);
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(sent);
    };
    let start = Instant::now();
    match level {
        Level::Clients(clients) => {
            let next = AtomicUsize::new(numbers.start);
            let client = || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if !numbers.contains(&number) {
                        return;
                    }
                    answer(number, Instant::now());
                }
            };
            thread::scope(|scope| {
                for _ in 0..clients.min(numbers.len()) {
                    scope.spawn(client);
                }
            });
        }
        Level::Rate(rate) => thread::scope(|scope| {
            let answer = &answer;
            for (number, at) in numbers.clone().zip(arrivals(rate, numbers.start as u64)) {
                let due = start + at;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                scope.spawn(move || answer(number, due));
            }
        }),
    }
    Outcomes {
        seconds: start.elapsed().as_secs_f64(),
        answers: answers.into_inner().unwrap_or_else(PoisonError::into_inner),
    }
}

/// Times of a Poisson process with `rate` events per second.
fn arrivals(rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
    let (mut random, mut at) = (SplitMix64(seed), 0.0);
    std::iter::repeat_with(move || {
        let due = Duration::from_secs_f64(at);
        let uniform = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        at -= (1.0 - uniform).ln() / rate;
        due
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        Timeline {
            first: 0.0,
            gaps: Vec::new(),
            total: 0.0,
            prompt_tokens: None,
            tokens: 1,
        }
    }

    #[test]
    fn arrivals_have_the_rate() {
        let last = arrivals(5.0, 1).nth(20_000).expect("endless").as_secs_f64();
        assert!((3900.0..4100.0).contains(&last), "{last}");
    }

    #[test]
    fn every_request_is_sent_once() {
        for level in [Level::Clients(3), Level::Clients(40), Level::Rate(5000.0)] {
            let sent = Mutex::new(Vec::new());
            let outcomes = run(level, 10..30, |number, _| {
                sent.lock().expect("no panic").push(number);
                Ok(timeline())
            });
            let mut sent = sent.into_inner().expect("no panic");
            sent.sort_unstable();
            assert_eq!(sent, (10..30).collect::<Vec<_>>(), "{level}");
            assert_eq!(outcomes.answers.len(), 20);
        }
    }

    #[test]
    fn clients_wait_for_their_answers() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        run(Level::Clients(3), 0..60, |_, _| {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(timeline())
        });
        assert!(most.into_inner() <= 3);
    }
}
