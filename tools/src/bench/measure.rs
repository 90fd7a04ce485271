//! The steps of a measurement and their order.

use std::time::Instant;

use indicatif::ProgressBar;
use waterline::{Session, Snapshot};

use super::bandwidth::Bandwidth;
use super::batches::BatchSpeed;
use super::energy::Energy;
use super::statistics::Hash;
use crate::allocations;
use crate::error::Result;
use crate::machine;
use crate::progress::{self, Unit};
use crate::splitmix::SplitMix64;

/// Number of tokens that a depth generates in one turn.
const TURN: usize = 16;
/// Untimed tokens at the start of a turn, when the caches still hold the copied state instead of the weights.
const UNTIMED: usize = 1;
/// Number of times that the prompt is read, unless that takes long.
const PASSES: usize = 3;
/// A prompt that takes longer than this, in seconds, is read once.
const LONG: f64 = 5.0;
/// Maximum total size of the copies of the state; larger copies are not made.
const MOST_COPIED: usize = 1 << 30;
/// Memory is measured again when the position has grown by this fraction.
const STRIDE: f64 = 0.03;
/// Seed of the random tokens.
const SEED: u64 = 1;
/// Approximate number of prompt tokens read in the time of one generated token; for the progress bar.
const STEP_COST: usize = 8;

/// Settings of a measurement.
pub struct RunPlan {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to time at each depth.
    pub generate: usize,
    /// Depths: positions in ascending order.
    pub depths: Vec<usize>,
    /// The GPU whose energy is counted.
    pub gpu: Option<usize>,
}

impl RunPlan {
    fn turns(&self) -> usize {
        self.generate.div_ceil(TURN)
    }

    /// Number of tokens to time in this turn.
    fn turn(&self, turn: usize) -> usize {
        TURN.min(self.generate - turn * TURN)
    }

    /// Number of tokens that a depth generates, timed or untimed.
    fn steps(&self) -> usize {
        self.generate + UNTIMED * self.turns()
    }

    fn deepest(&self) -> usize {
        self.depths.last().copied().unwrap_or(0)
    }

    /// An upper bound of the positions that the run reaches.
    pub fn positions(&self) -> usize {
        self.prompt.max(self.deepest()) + self.depths.len() * self.steps()
    }

    /// The cost of the run, in prompt tokens.
    fn cost(&self) -> usize {
        let steps = self.depths.len() * self.steps();
        PASSES * self.prompt + self.deepest() + STEP_COST * steps
    }
}

/// All measured values.
pub struct Measured {
    /// Seconds of each reading of the prompt.
    pub prompt_s: Vec<f64>,
    /// Seconds from the start of a prompt to the first token after it.
    pub first_token_s: Vec<f64>,
    /// The times at each depth.
    pub depths: Vec<Timed>,
    /// Positions and resident bytes on the way to the deepest position.
    pub memory: Vec<(u64, u64)>,
    /// The peak of resident memory.
    pub peak_bytes: Option<u64>,
    /// Speed of plain reading, in bytes per second.
    pub read_bytes_per_s: Vec<f64>,
    /// Number of allocations during [`Measured::counted_tokens`] tokens.
    pub allocations: u64,
    /// Number of tokens that were read or generated while allocations were counted.
    pub counted_tokens: u64,
    /// Joules per token of each turn, where the machine counts energy.
    pub joules_per_token: Vec<f64>,
    /// The sources of the energy counts.
    pub energy_of: Option<String>,
    /// The speed of batches, measured by [`super::batches`].
    pub batches: Vec<BatchSpeed>,
    /// Hash of the generated tokens and the logits.
    pub hash: String,
    /// Whether the depths were interleaved.
    pub interleaved: bool,
}

/// The measurements at one depth.
pub struct Timed {
    /// The position before the first token.
    pub position: u64,
    /// Resident bytes when the depth was reached.
    pub resident_bytes: Option<u64>,
    /// Time of each token, in microseconds.
    pub samples_us: Vec<f64>,
}

/// A measurement in progress.
struct Run<'a> {
    session: &'a mut Session,
    bandwidth: Bandwidth,
    random: SplitMix64,
    bar: ProgressBar,
    hash: Hash,
    memory: Vec<(u64, u64)>,
    allocations: u64,
    counted_tokens: u64,
    energy: Option<Energy>,
    joules_per_token: Vec<f64>,
}

/// Measures a new session.
pub fn measure(
    session: &mut Session,
    plan: &RunPlan,
    cache_bytes: Option<u64>,
) -> Result<Measured> {
    // Allocated before memory is first measured, so that the run itself adds nothing.
    let interleaved =
        plan.depths.len() > 1 && plan.depths.len() * session.state_bytes() <= MOST_COPIED;
    let copies = if interleaved { plan.depths.len() } else { 0 };
    let mut copies: Vec<Snapshot> = (0..copies)
        .map(|_| session.snapshot())
        .collect::<waterline::Result<_>>()?;
    let timed = |_| Timed {
        position: 0,
        resident_bytes: None,
        samples_us: Vec::with_capacity(plan.generate),
    };
    let mut depths: Vec<Timed> = plan.depths.iter().map(timed).collect();
    let peak_before = machine::peak_resident_bytes();
    let mut run = Run {
        bandwidth: Bandwidth::new(session.threads(), cache_bytes)?,
        random: SplitMix64(SEED),
        bar: progress::bar(plan.cost(), Unit::Share),
        hash: Hash::new(),
        memory: Vec::with_capacity(1 << 10),
        allocations: 0,
        counted_tokens: 0,
        energy: Energy::new(plan.gpu),
        joules_per_token: Vec::with_capacity(plan.depths.len() * plan.turns()),
        session,
    };

    let (prompt_s, first_token_s) = run.read_prompt(plan.prompt)?;
    for (i, timed) in depths.iter_mut().enumerate() {
        run.read_up_to(plan.depths[i] as u64)?;
        timed.position = run.session.position();
        timed.resident_bytes = run.resident_bytes();
        if interleaved {
            run.session.snapshot_into(&mut copies[i])?;
            continue;
        }
        for turn in 0..plan.turns() {
            run.bandwidth.pass();
            run.turn(plan.turn(turn), timed)?;
        }
    }
    for turn in 0..if interleaved { plan.turns() } else { 0 } {
        run.bandwidth.pass();
        for (copy, timed) in copies.iter_mut().zip(&mut depths) {
            run.session.restore(copy)?;
            run.turn(plan.turn(turn), timed)?;
            run.session.snapshot_into(copy)?;
        }
    }
    run.hash_logits()?;
    run.bar.finish_and_clear();
    let buffer = run.bandwidth.bytes();
    let peak_after = machine::peak_resident_bytes().map(|bytes| bytes.saturating_sub(buffer));
    Ok(Measured {
        prompt_s,
        first_token_s,
        depths,
        memory: run.memory,
        peak_bytes: peak_before.max(peak_after),
        read_bytes_per_s: run.bandwidth.passes,
        allocations: run.allocations,
        counted_tokens: run.counted_tokens,
        joules_per_token: run.joules_per_token,
        energy_of: run.energy.map(|energy| energy.sources().to_string()),
        batches: Vec::new(),
        hash: run.hash.digits(),
        interleaved,
    })
}

impl Run<'_> {
    /// Reads a prompt several times from an empty state, and leaves an empty state. Returns the seconds of each reading, and the
    /// seconds until the next token was known.
    fn read_prompt(&mut self, length: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let prompt = self.random_tokens(length);
        // The first use of a weight loads it into memory, which counts as loading.
        let chunk = self.session.options().chunk;
        self.session.feed(&prompt[..length.min(chunk)])?;
        self.session.step()?;
        let (mut read, mut first) = (Vec::new(), Vec::new());
        while read.len() < PASSES && read.iter().all(|&seconds| seconds < LONG) {
            self.session.reset()?;
            let start = Instant::now();
            self.feed(&prompt)?;
            read.push(start.elapsed().as_secs_f64());
            self.session.sample()?;
            first.push(start.elapsed().as_secs_f64());
            self.bar.inc(length as u64);
        }
        self.bar.inc(((PASSES - read.len()) * length) as u64);
        self.hash_logits()?;
        self.session.reset()?;
        Ok((read, first))
    }

    /// Reads random tokens until the session is at `position`.
    fn read_up_to(&mut self, position: u64) -> Result<()> {
        self.look_at_memory();
        // Number of tokens between updates of the bar and of memory.
        let piece = 8 * self.session.options().chunk as u64;
        while self.session.position() < position {
            let length = piece.min(position - self.session.position());
            let tokens = self.random_tokens(length as usize);
            self.feed(&tokens)?;
            self.bar.inc(length);
            self.bar
                .set_message(format!("position {}", self.session.position()));
            self.look_at_memory();
        }
        Ok(())
    }

    /// Generates `tokens` tokens and records the time of each.
    fn turn(&mut self, tokens: usize, timed: &mut Timed) -> Result<()> {
        for _ in 0..UNTIMED {
            if self.session.position() == 0 {
                let first = self.random_tokens(1);
                self.feed(&first)?;
            } else {
                self.step()?;
            }
        }
        // Discard the energy used before the first timed token.
        let _ = self.energy.as_mut().map(Energy::joules);
        for _ in 0..tokens {
            let start = Instant::now();
            self.step()?;
            let nanoseconds = start.elapsed().as_nanos();
            timed.samples_us.push(nanoseconds as f64 / 1e3);
        }
        if let Some(energy) = &mut self.energy {
            self.joules_per_token.push(energy.joules() / tokens as f64);
        }
        self.bar.inc((STEP_COST * (tokens + UNTIMED)) as u64);
        self.bar.set_message("timing");
        Ok(())
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let before = allocations::count();
        self.session.feed(tokens)?;
        self.allocations += allocations::count() - before;
        self.counted_tokens += tokens.len() as u64;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let before = allocations::count();
        let token = self.session.step()?;
        self.allocations += allocations::count() - before;
        self.counted_tokens += 1;
        self.hash.add(token);
        Ok(())
    }

    fn random_tokens(&mut self, length: usize) -> Vec<u32> {
        let vocab = self.session.model().spec().vocab;
        let token = |_| self.random.below(vocab) as u32;
        (0..length).map(token).collect()
    }

    fn hash_logits(&mut self) -> Result<()> {
        for logit in self.session.logits()? {
            self.hash.add(logit.to_bits());
        }
        Ok(())
    }

    /// Records the resident memory if the position has grown enough since the last record.
    fn look_at_memory(&mut self) {
        let position = self.session.position();
        let next = |&(last, _): &(u64, u64)| (last as f64 * (1.0 + STRIDE)) as u64 + 1;
        if self.memory.last().is_some_and(|last| position < next(last)) {
            return;
        }
        if let Some(bytes) = self.resident_bytes() {
            self.memory.push((position, bytes));
        }
    }

    /// Resident memory without the bandwidth buffer, all of which is resident.
    fn resident_bytes(&self) -> Option<u64> {
        machine::resident_bytes().map(|bytes| bytes.saturating_sub(self.bandwidth.bytes()))
    }
}
