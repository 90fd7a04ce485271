//! Finds the tokens that a query sees, on a CPU.

use super::{KeySource, NONE, Pattern, Sources};
use crate::cpu::simd;
use crate::ops::softmax::Element;

/// State of the sources, without the means.
pub(in crate::ops) struct State<'a, E> {
    pub keys: &'a mut [E],
    pub positions: &'a mut [u64],
    pub cursors: &'a mut [u32],
    pub scores: &'a mut [f32],
}

/// The bins of a token's query and key and the score of its key, which do not depend on any row.
#[derive(Clone, Copy, Default)]
pub(in crate::ops) struct Measures {
    query_bin: usize,
    key_bin: usize,
    score: f32,
}

impl Measures {
    /// Floats that the measures take.
    const FLOATS: usize = 3;

    /// Stores the measures at the beginning of a token's plan, until the plan is made.
    pub fn store(self, plan: &mut [f32]) {
        let bins = [self.query_bin, self.key_bin].map(|bin| f32::from_bits(bin as u32));
        plan[..Self::FLOATS].copy_from_slice(&[bins[0], bins[1], self.score]);
    }

    /// Returns the measures stored at the beginning of a plan.
    pub fn stored(plan: &[f32]) -> Self {
        Measures {
            query_bin: plan[0].to_bits() as usize,
            key_bin: plan[1].to_bits() as usize,
            score: plan[2],
        }
    }
}

/// Updates `means`, the mean key and the mean query of the tokens before `position`, with this token.
#[inline(always)]
pub(in crate::ops) fn advance_means(means: &mut [f32], position: u64, k: &[f32], q: &[f32]) {
    let (mean_key, mean_query) = means.split_at_mut(k.len());
    let (scale, count) = (scale(k.len()), (position + 1) as f32);
    for (mean, k) in mean_key.iter_mut().zip(k) {
        *mean += (scale * k - *mean) / count;
    }
    for (mean, q) in mean_query.iter_mut().zip(q) {
        *mean += (q - *mean) / count;
    }
}

fn scale(width: usize) -> f32 {
    1.0 / (width as f32).sqrt()
}

impl Sources {
    /// Floats of scratch for keys of this width.
    pub(in crate::ops) fn scratch(&self, width: usize) -> usize {
        let columns = |source: &KeySource| match &source.pattern {
            Pattern::Bins(hash) => hash.weight.len() / width,
            _ => 0,
        };
        let columns: usize = self.list.iter().map(columns).sum();
        3 * width + columns.max(4 * width)
    }

    /// Rows that a token takes according to its plan.
    #[inline(always)]
    pub(in crate::ops) fn written(&self, plan: &[f32]) -> impl Iterator<Item = usize> {
        let rows = plan[..self.list.len()].iter().map(|row| row.to_bits());
        rows.filter(|&row| row != NONE).map(|row| row as usize)
    }

    /// Rows that a query sees according to its plan, with their weights.
    #[inline(always)]
    pub(in crate::ops) fn seen(&self, plan: &[f32]) -> impl Iterator<Item = (usize, f32)> {
        let (count, entries) = plan[self.list.len()..].split_first().expect("a plan");
        let (rows, weights) = entries.split_at(self.most());
        let rows = rows.iter().map(|row| row.to_bits() as usize);
        rows.zip(weights.iter().copied())
            .take(count.to_bits() as usize)
    }

    /// Measures a token; `means` include it already.
    #[inline(always)]
    pub(in crate::ops) fn measure(
        &self,
        means: &[f32],
        k: &[f32],
        q: &[f32],
        scratch: &mut [f32],
    ) -> Measures {
        let width = k.len();
        let (key, rest) = scratch.split_at_mut(width);
        let (centred, products) = rest.split_at_mut(width);
        let (mean_key, mean_query) = means.split_at(width);
        key.copy_from_slice(k);
        simd::scale(scale(width), key);
        let mut measures = Measures::default();
        for source in &self.list {
            match &source.pattern {
                Pattern::Bins(hash) => {
                    subtract(key, mean_key, centred);
                    measures.key_bin = hash.bin(centred, products);
                    subtract(q, mean_query, centred);
                    measures.query_bin = hash.bin(centred, products);
                }
                Pattern::Best(scorer) => measures.score = scorer.score(key, mean_query, products),
                Pattern::Window | Pattern::Sink | Pattern::Dilated(_) => (),
            }
        }
        measures
    }

    /// Processes one token: adds its key, then plans its writes and the rows that its query reads.
    #[inline(always)]
    pub(in crate::ops) fn step<E: Element>(
        &self,
        position: u64,
        (k, q): (&[f32], &[f32]),
        measures: Measures,
        state: &mut State<E>,
        plan: &mut [f32],
        scratch: &mut [f32],
    ) {
        let width = k.len();
        let (key, rest) = scratch.split_at_mut(width);
        let wide = &mut rest[..width];
        key.copy_from_slice(k);
        simd::scale(scale(width), key);

        let (taken, rest) = plan.split_at_mut(self.list.len());
        for (source, taken) in self.list.iter().zip(taken) {
            let positions = &state.positions[source.first..];
            let rows = source.rows as u64;
            let row = match &source.pattern {
                Pattern::Window => Some((position % rows) as usize),
                Pattern::Sink => (position < rows).then_some(position as usize),
                Pattern::Dilated(every) => {
                    let every = *every as u64;
                    (position % every == every - 1).then_some((position / every % rows) as usize)
                }
                Pattern::Bins(_) => {
                    let cursor = &mut state.cursors[measures.key_bin];
                    let row = measures.key_bin * source.rows + *cursor as usize;
                    *cursor = (*cursor + 1) % source.rows as u32;
                    Some(row)
                }
                Pattern::Best(_) => {
                    let score = measures.score;
                    let scores = &mut state.scores[..source.rows];
                    let row = worst(scores, positions, position, score);
                    if let Some(row) = row {
                        scores[row] = score;
                    }
                    row
                }
            };
            *taken = f32::from_bits(row.map_or(NONE, |row| (source.first + row) as u32));
            if let Some(row) = row {
                let row = source.first + row;
                state.positions[row] = position + 1;
                E::narrow(key, &mut state.keys[row * width..][..width]);
            }
        }

        let (count, entries) = rest.split_first_mut().expect("a plan");
        let (rows, weights) = entries.split_at_mut(self.most());
        let mut seen = 0;
        for source in &self.list {
            let first = match &source.pattern {
                Pattern::Bins(_) => source.first + measures.query_bin * source.rows,
                _ => source.first,
            };
            let others = seen;
            for row in first..first + source.rows {
                let position = state.positions[row];
                let again = |other: &f32| state.positions[other.to_bits() as usize] == position;
                if position == 0 || rows[..others].iter().any(again) {
                    continue;
                }
                E::widen(&state.keys[row * width..][..width], wide);
                rows[seen] = f32::from_bits(row as u32);
                weights[seen] = simd::dot(q, wide);
                seen += 1;
            }
        }
        *count = f32::from_bits(seen as u32);
        softmax(&mut weights[..seen]);
    }
}

/// The row that a token with `score` takes in a set with one row for each score: the next row while there is room, then the row
/// of the lowest score (the newest among equal scores), if that score is lower.
#[inline(always)]
pub(super) fn worst(scores: &[f32], positions: &[u64], position: u64, score: f32) -> Option<usize> {
    if position < scores.len() as u64 {
        return Some(position as usize);
    }
    let mut lowest = 0;
    for row in 1..scores.len() {
        let newer = positions[row] > positions[lowest];
        if scores[row] < scores[lowest] || (scores[row] == scores[lowest] && newer) {
            lowest = row;
        }
    }
    (scores[lowest] < score).then_some(lowest)
}

#[inline(always)]
fn subtract(x: &[f32], mean: &[f32], out: &mut [f32]) {
    for ((out, x), mean) in out.iter_mut().zip(x).zip(mean) {
        *out = x - mean;
    }
}

#[inline(always)]
fn softmax(x: &mut [f32]) {
    let largest = simd::max(x);
    let mut sum = 0.0;
    for x in x.iter_mut() {
        *x = simd::exp(*x - largest);
        sum += *x;
    }
    simd::scale(1.0 / sum, x);
}
