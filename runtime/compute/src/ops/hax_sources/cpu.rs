//! How a CPU finds the tokens that a query sees.

use super::{KeySource, NONE, Pattern, Sources};
use crate::cpu::simd;
use crate::ops::softmax::Element;

/// State of the sources.
pub(in crate::ops) struct State<'a, E> {
    pub keys: &'a mut [E],
    pub positions: &'a mut [u64],
    pub means: &'a mut [f32],
    pub cursors: &'a mut [u32],
    pub scores: &'a mut [f32],
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

    /// Rows that a token takes by its plan.
    #[inline(always)]
    pub(in crate::ops) fn written(&self, plan: &[f32]) -> impl Iterator<Item = usize> {
        let rows = plan[..self.list.len()].iter().map(|row| row.to_bits());
        rows.filter(|&row| row != NONE).map(|row| row as usize)
    }

    /// Rows that a query sees by its plan, with their weights.
    #[inline(always)]
    pub(in crate::ops) fn seen(&self, plan: &[f32]) -> impl Iterator<Item = (usize, f32)> {
        let (count, entries) = plan[self.list.len()..].split_first().expect("a plan");
        let (rows, weights) = entries.split_at(self.most());
        let rows = rows.iter().map(|row| row.to_bits() as usize);
        rows.zip(weights.iter().copied())
            .take(count.to_bits() as usize)
    }

    /// One token: adds its key, then plans its writes and the rows that its query reads.
    #[inline(always)]
    pub(in crate::ops) fn step<E: Element>(
        &self,
        position: u64,
        k: &[f32],
        q: &[f32],
        state: &mut State<E>,
        plan: &mut [f32],
        scratch: &mut [f32],
    ) {
        let width = k.len();
        let (key, rest) = scratch.split_at_mut(width);
        let (centred, rest) = rest.split_at_mut(width);
        let (wide, products) = rest.split_at_mut(width);
        let scale = 1.0 / (width as f32).sqrt();
        for (key, k) in key.iter_mut().zip(k) {
            *key = scale * k;
        }
        let (mean_key, mean_query) = state.means.split_at_mut(width);
        let count = (position + 1) as f32;
        for (mean, x) in [(&mut *mean_key, &*key), (&mut *mean_query, q)] {
            for (mean, x) in mean.iter_mut().zip(x) {
                *mean += (x - *mean) / count;
            }
        }

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
                Pattern::Bins(hash) => {
                    subtract(key, mean_key, centred);
                    let bin = hash.bin(centred, products);
                    let cursor = &mut state.cursors[bin];
                    let row = bin * source.rows + *cursor as usize;
                    *cursor = (*cursor + 1) % source.rows as u32;
                    Some(row)
                }
                Pattern::Best(scorer) => {
                    let score = scorer.score(key, mean_query, products);
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
                Pattern::Bins(hash) => {
                    subtract(q, mean_query, centred);
                    source.first + hash.bin(centred, products) * source.rows
                }
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

/// The row that a token with `score` takes in a set with one row for each score: the next while there is room, then
/// that of the lowest score, of equal ones the newest, if it is lower.
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
