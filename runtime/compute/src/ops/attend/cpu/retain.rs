//! Retained tokens on a CPU: which tokens stay after leaving the window, and which of them a query sees.

use super::HeadTask;
use crate::cpu::simd;
use crate::ops::attend::retain::{Eviction, Policy, ScoreTensors};
use crate::ops::capped_set::{CappedSet, strided_row};
use crate::ops::softmax::{Element, TILE};

impl<E: Element> HeadTask<'_, E> {
    /// Drops or retains the token that the chunk's token `t` pushes out of the window.
    pub(super) fn retain(&self, eviction: &Eviction, t: usize) {
        let position = self.position + t as u64;
        let head = self.head;
        let leaving = position.checked_sub(self.rows as u64);
        // The evicted token's score is read first: a router without a margin writes the new token's score to the same row.
        let leaving_score = match (&eviction.policy, leaving) {
            (_, Some(leaving)) if leaving < eviction.sink as u64 => f32::INFINITY,
            (Policy::Learned { scores, .. } | Policy::Attention(scores), Some(leaving)) => {
                self.scores(scores.window)[self.row(leaving)]
            }
            _ => 0.0,
        };
        if let Policy::Learned {
            router,
            margin,
            scores,
        } = &eviction.policy
            && let Some(scored) = position.checked_sub(*margin as u64)
        {
            let score = self.buffers.get(router.buffer)[t * router.stride + router.start + head];
            self.scores(scores.window)[self.row(scored)] = score;
        }
        let Some(leaving) = leaving else {
            return;
        };
        let row = self.row(leaving);
        // SAFETY: each task has its own head's count (rules: widths, bounds).
        let count = unsafe {
            &mut self
                .state
                .tensor::<u32>(eviction.set_counts, head..head + 1)[0]
        };
        let kept = match &eviction.policy {
            Policy::Learned { scores, .. } => CappedSet {
                scores: self.scores(scores.set),
                count,
            }
            .offer(leaving_score),
            Policy::Attention(scores) => CappedSet {
                scores: self.scores(scores.set),
                count,
            }
            .insert(leaving_score),
            Policy::Stride(every) => {
                let capacity = self.state.rows(eviction.set_keys);
                let kept = strided_row(leaving, eviction.sink, *every, capacity);
                *count = (*count).max(kept.map_or(0, |kept| kept as u32 + 1));
                kept
            }
        };
        let Some(kept) = kept else {
            return;
        };
        let entry = head * self.state.rows(eviction.set_positions) + kept;
        // SAFETY: each task has its own head's positions (rules: widths, bounds).
        unsafe {
            self.state
                .tensor::<u64>(eviction.set_positions, entry..entry + 1)[0] = leaving + 1;
        }
        for (set, ring, view) in [
            (eviction.set_keys, self.attend.keys, &self.attend.k),
            (eviction.set_values, self.attend.values, &self.attend.v),
        ] {
            let place = self.cached_mut(set, kept..kept + 1);
            match leaving.checked_sub(self.position) {
                // A chunk longer than the window: the token never entered the segment.
                Some(t) => E::narrow(self.projection(view, head, t as usize), place),
                None => place.copy_from_slice(self.cached(ring, row..row + 1)),
            }
        }
    }

    /// This head's scores in a state tensor.
    #[allow(clippy::mut_from_ref)]
    fn scores(&self, tensor: usize) -> &mut [f32] {
        let rows = self.state.rows(tensor);
        // SAFETY: each task has its own head's scores (rules: widths, bounds).
        unsafe {
            self.state
                .tensor::<f32>(tensor, self.head * rows..(self.head + 1) * rows)
        }
    }

    /// Scores the retained tokens, and the token that leaves the window next, by the attention that query `t` paid them.
    #[inline(always)]
    pub(super) fn weigh(
        &self,
        eviction: &Eviction,
        scores: &ScoreTensors,
        t: usize,
        running: &[f32],
        tile: &mut [f32],
    ) {
        let dim = self.attend.head_dim();
        let group = self.attend.heads / self.attend.kv_heads;
        let weight = |key: &[f32]| {
            let mut sum = 0.0;
            for g in 0..group {
                let query = self.projection(&self.attend.q, self.head * group + g, t);
                let score = self.attend.scale * simd::dot(query, key);
                let entry = &running[g * (dim + 2)..];
                sum += simd::exp(score - entry[0]) / entry[1];
            }
            sum / group as f32
        };
        let key = &mut tile[..dim];
        let count = self.count(eviction);
        for (row, score) in self.scores(scores.set)[..count].iter_mut().enumerate() {
            if score.is_finite() {
                E::widen(self.cached(eviction.set_keys, row..row + 1), key);
                *score = weight(key);
            }
        }
        let next = self.position + t as u64 + 1;
        if let Some(leaving) = next.checked_sub(self.rows as u64) {
            let row = self.row(leaving);
            match leaving.checked_sub(self.position) {
                Some(t) => {
                    key.copy_from_slice(self.projection(&self.attend.k, self.head, t as usize))
                }
                None => E::widen(self.cached(self.attend.keys, row..row + 1), key),
            }
            self.scores(scores.window)[row] = weight(key);
        }
    }

    /// Number of retained tokens.
    #[inline(always)]
    fn count(&self, eviction: &Eviction) -> usize {
        let head = self.head;
        // SAFETY: each task has its own head's count (rules: widths, bounds).
        unsafe {
            self.state
                .tensor::<u32>(eviction.set_counts, head..head + 1)[0] as usize
        }
    }

    /// Attends to the retained tokens with query `t`.
    #[inline(always)]
    pub(super) fn attend_set(
        &self,
        eviction: &Eviction,
        t: usize,
        running: &mut [f32],
        tile: &mut [f32],
    ) {
        let count = self.count(eviction);
        let dim = self.attend.head_dim();
        let (keys, rest) = tile.split_at_mut(TILE * dim);
        let (values, scores) = rest.split_at_mut(TILE * dim);
        let mut first = 0;
        while first < count {
            let n = (count - first).min(TILE);
            E::widen(
                self.cached(eviction.set_keys, first..first + n),
                &mut keys[..n * dim],
            );
            E::widen(
                self.cached(eviction.set_values, first..first + n),
                &mut values[..n * dim],
            );
            self.attend_tile(t, n, keys, values, running, scores);
            first += n;
        }
    }
}
