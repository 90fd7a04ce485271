use crate::cpu::simd::exp;
use crate::error::{Error, Result};
use std::cmp::Ordering;

/// Logits compared together: vector instructions skip a block without a larger logit.
const BLOCK: usize = 64;

/// A token that can still be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub token: u32,
    pub logit: f32,
    /// Probability relative to the most probable token, whose weight is exactly 1.
    pub weight: f32,
}

/// Orders larger logits first, and lower tokens first among equal logits. No logit is NaN here; `total_cmp` would distinguish 0 from -0.
fn most_probable_first(a: &Candidate, b: &Candidate) -> Ordering {
    let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    by_logit.then(a.token.cmp(&b.token))
}

/// Returns the largest logit.
///
/// # Errors
/// [`Error::Logits`] if a logit is NaN or +inf, or if all are -inf.
pub(super) fn maximum(logits: &[f32]) -> Result<f32> {
    // Independent lanes, so that the loop compiles to vector instructions.
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut bad = [0u32; LANES];
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            let x = block[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            bad[lane] |= not_a_logit(x) as u32;
        }
    }
    let max = max
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    if bad.contains(&1) || rest.iter().any(|&x| not_a_logit(x)) {
        let token = logits
            .iter()
            .position(|&x| not_a_logit(x))
            .unwrap_or_default();
        return Err(Error::Logits {
            reason: format!(
                "token {token} has {}; expected a finite number or -inf (the weights or the \
                 state are damaged)",
                logits[token]
            ),
        });
    }
    if max == f32::NEG_INFINITY {
        return Err(Error::Logits {
            reason: "all are -inf: no token can be chosen".into(),
        });
    }
    Ok(max)
}

/// Whether `x` is NaN or +inf.
fn not_a_logit(x: f32) -> bool {
    x.is_nan() || x == f32::INFINITY
}

/// Returns the lowest token whose logit is `max`; there must be one.
pub(super) fn first_equal(logits: &[f32], max: f32) -> u32 {
    let holds = |block: &[f32]| block.iter().fold(false, |any, &x| any | (x == max));
    let block = logits.chunks(BLOCK).position(holds).unwrap_or_default() * BLOCK;
    let within = logits[block..]
        .iter()
        .position(|&x| x == max)
        .unwrap_or_default();
    (block + within) as u32
}

/// Largest number of candidates that [`top_k`] holds at once.
pub(super) fn capacity(k: usize, vocab: usize) -> usize {
    if k == 0 || k >= vocab {
        vocab
    } else {
        (2 * k).max(64)
    }
}

/// Fills `candidates` with the `k` largest logits (all if `k` is 0), in no particular order. Logits of -inf are never candidates.
///
/// One pass: logits above the k-th largest so far are collected, and a full buffer shrinks to the best k. Tokens come in ascending order,
/// so a logit equal to the k-th largest loses the tie, and the comparison is strict.
pub(super) fn top_k(logits: &[f32], k: usize, candidates: &mut Vec<Candidate>) {
    let capacity = capacity(k, logits.len());
    let k = if k == 0 {
        logits.len()
    } else {
        k.min(logits.len())
    };
    let mut threshold = f32::NEG_INFINITY;
    candidates.clear();
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if !block.iter().fold(false, |any, &x| any | (x > threshold)) {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            if logit > threshold {
                let token = (index * BLOCK + offset) as u32;
                candidates.push(Candidate {
                    token,
                    logit,
                    weight: 0.0,
                });
                if candidates.len() == capacity && k < capacity {
                    keep_best(candidates, k);
                    threshold = candidates[k - 1].logit;
                }
            }
        }
    }
    if candidates.len() > k {
        keep_best(candidates, k);
    }
}

/// Shrinks the list to the best `count` candidates, with the worst of them last.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    candidates.select_nth_unstable_by(count - 1, most_probable_first);
    candidates.truncate(count);
}

/// Computes the weights of the candidates at `temperature`; `max` is the largest logit.
pub(super) fn weigh(candidates: &mut [Candidate], max: f32, temperature: f32) {
    for candidate in candidates {
        candidate.weight = exp((candidate.logit - max) / temperature);
    }
}

/// Applies top-p, then min-p.
pub(super) fn truncate(candidates: &mut Vec<Candidate>, top_p: f32, min_p: f32) {
    let keep = |candidates: &mut Vec<Candidate>, least: f32| {
        if least > 0.0 {
            candidates.retain(|candidate| candidate.weight >= least);
        }
    };
    if top_p < 1.0 {
        let enough = (top_p as f64 * total(candidates) as f64).ceil() as u64;
        // Tokens below min-p need not be sorted. Rounding can raise the weight of a smaller logit, but by less than this margin.
        keep(candidates, min_p * 0.999);
        keep_weight(candidates, enough);
    }
    keep(candidates, min_p);
}

/// Keeps the shortest run of the most probable candidates whose weights reach `enough`, or all candidates.
fn keep_weight(candidates: &mut Vec<Candidate>, enough: u64) {
    // The run is short for all but flat distributions, so only a prefix is sorted, and grows as needed.
    let mut ordered = 64.min(candidates.len());
    loop {
        if ordered < candidates.len() {
            candidates.select_nth_unstable_by(ordered - 1, most_probable_first);
        }
        candidates[..ordered].sort_unstable_by(most_probable_first);
        let mut sum = 0;
        for count in 1..=ordered {
            sum += parts(&candidates[count - 1]);
            if sum >= enough {
                candidates.truncate(count);
                return;
            }
        }
        if ordered == candidates.len() {
            return;
        }
        ordered = (4 * ordered).min(candidates.len());
    }
}

/// Picks a candidate by `number` in [0, 1), with the candidates ordered by ascending token.
pub(super) fn draw(candidates: &mut [Candidate], number: f64) -> u32 {
    if !candidates.is_sorted_by_key(|candidate| candidate.token) {
        candidates.sort_unstable_by_key(|candidate| candidate.token);
    }
    let total = total(candidates);
    let target = ((number * total as f64) as u64).min(total - 1);
    let mut sum = 0;
    let chosen = candidates.iter().find(|candidate| {
        sum += parts(candidate);
        sum > target
    });
    // The most probable candidate has a positive weight, so a candidate is always found.
    chosen.map_or(0, |candidate| candidate.token)
}

/// A candidate's weight in integer units of 2^-40, whose sum does not depend on the order.
fn parts(candidate: &Candidate) -> u64 {
    const PARTS: f32 = (1u64 << 40) as f32;
    (candidate.weight * PARTS) as u64
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(parts).sum()
}
