//! Speed of several sessions of one model that step in one batch.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use waterline::{Batch, Session};

use super::statistics::percentile;
use crate::error::Result;
use crate::splitmix::SplitMix64;

/// Untimed steps before the first timed step.
pub const UNTIMED: usize = 2;
/// Seed of the tokens that all sessions read.
const SEED: u64 = 2;

/// The speed of a batch.
#[derive(Serialize, Deserialize)]
pub struct BatchSpeed {
    /// Number of sessions in the batch.
    pub sessions: usize,
    /// Tokens of all sessions divided by the total time of the steps.
    pub tokens_per_s: f64,
    /// Median time of a step.
    pub p50_us: f64,
    /// 99th percentile of the time of a step.
    pub p99_us: f64,
    /// The time of every step.
    pub samples_us: Vec<f64>,
}

/// Times `generate` steps of batches of each size in `counts`, after a prompt of `prompt` tokens. Afterwards the
/// session is at the end of the prompt.
pub fn measure(
    session: &mut Session,
    counts: &[usize],
    (prompt, generate): (usize, usize),
) -> Result<Vec<BatchSpeed>> {
    if counts.is_empty() {
        return Ok(Vec::new());
    }
    let mut random = SplitMix64(SEED);
    let vocab = session.model().spec().vocab;
    let tokens: Vec<u32> = (0..prompt).map(|_| random.below(vocab) as u32).collect();
    session.reset()?;
    session.feed(&tokens)?;
    let one = |&count: &usize| speed(session, count, generate);
    counts.iter().map(one).collect()
}

/// Times a batch of `count` copies of `session`.
fn speed(session: &Session, count: usize, generate: usize) -> Result<BatchSpeed> {
    let mut batch = Batch::new(session, count)?;
    let forks = (0..count).map(|_| session.fork());
    let mut forks = forks.collect::<waterline::Result<Vec<Session>>>()?;
    let mut sessions: Vec<&mut Session> = forks.iter_mut().collect();
    for _ in 0..UNTIMED {
        batch.step(&mut sessions)?;
    }
    let mut samples_us = Vec::with_capacity(generate);
    for _ in 0..generate {
        let start = Instant::now();
        batch.step(&mut sessions)?;
        samples_us.push(1e6 * start.elapsed().as_secs_f64());
    }
    let seconds = 1e-6 * samples_us.iter().sum::<f64>();
    let mut sorted = samples_us.clone();
    sorted.sort_by(f64::total_cmp);
    Ok(BatchSpeed {
        sessions: count,
        tokens_per_s: (count * generate) as f64 / seconds,
        p50_us: percentile(&sorted, 0.5),
        p99_us: percentile(&sorted, 0.99),
        samples_us,
    })
}
