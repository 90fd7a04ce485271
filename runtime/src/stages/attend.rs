//! Softmax attention over a circular segment of cached keys, the chunk itself, and optionally a capped set of
//! retained tokens. Position p lies in row `p % rows` of the segment; a query sees the last `rows` positions, its
//! own included.
//!
//! Keys pass in tiles under a running softmax, so that the scratch does not grow with the context.

use half::f16;

use super::capped_set::{CappedSet, strided_row};
use super::softmax::{Element, Running, TILE};
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::program::View;
use crate::state::SlotDtype;

/// Attention with grouped key and value heads.
pub struct Attend {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Queries `[heads, head_dim]`.
    pub q: View,
    /// Keys `[kv_heads, head_dim]`.
    pub k: View,
    /// Values `[kv_heads, head_dim]`.
    pub v: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// The slot of the cached keys `[kv_heads, rows, head_dim]`.
    pub keys: usize,
    /// The slot of the cached values, likewise.
    pub values: usize,
    /// What is kept of tokens that leave the window.
    pub eviction: Option<Eviction>,
    /// Outputs `[heads, head_dim]`.
    pub out: View,
}

/// Retention of tokens beyond the window, in a set of capped size.
pub struct Eviction {
    /// Which tokens stay.
    pub policy: Policy,
    /// The first tokens are always kept.
    pub sink: usize,
    /// The slot of the retained keys `[kv_heads, capacity, head_dim]`.
    pub set_keys: usize,
    /// The slot of the retained values, likewise.
    pub set_values: usize,
    /// The slot of the number of retained tokens `[kv_heads]`.
    pub set_counts: usize,
}

/// Which tokens stay when a set is full.
pub enum Policy {
    /// Those with the highest learned scores, above zero (learnable token eviction).
    Learned {
        /// Scores `[kv_heads]`; row t is the score of the token `margin` before the chunk's token t.
        router: View,
        /// Tokens between a token and the moment when its score is known.
        margin: usize,
        /// Where scores are kept.
        scores: ScoreSlots,
    },
    /// Those to which the last query paid most attention, on average over the heads that share them
    /// (TOVA, arXiv 2401.06104).
    Attention(ScoreSlots),
    /// Every so many leaving tokens one.
    Stride(usize),
}

/// Slots of scores.
pub struct ScoreSlots {
    /// Of the window's tokens, `[kv_heads, rows]`.
    pub window: usize,
    /// Of the retained tokens, `[kv_heads, capacity]`.
    pub set: usize,
}

/// Queries that pass over the same tile together.
const QUERIES: usize = 16;

impl Attend {
    fn head_dim(&self) -> usize {
        self.k.width / self.kv_heads
    }

    pub(crate) fn scratch(&self) -> usize {
        let head_dim = self.head_dim();
        QUERIES * self.heads / self.kv_heads * (head_dim + 2) + 2 * TILE * head_dim + TILE
    }

    pub(crate) fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().slots[self.keys].dtype {
            SlotDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let out_width = self.out.stride;
        // Keys and values share the projections' buffer with the queries: tasks write their own heads' columns.
        let mut projected = frame.buffers.take(self.k.buffer);
        let width = self.k.stride;
        let rows = frame.arena.plan().slots[self.keys].shape[1];
        {
            let out = Shared::new(&mut out);
            let projected = Shared::new(&mut projected);
            let state = frame.arena.shared();
            frame.pool.each(self.kv_heads, |worker, head| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let task = Task::<E> {
                    attend: self,
                    buffers: frame.buffers,
                    tokens: frame.tokens.len(),
                    position: frame.position,
                    head,
                    rows,
                    projected: &projected,
                    width,
                    out: &out,
                    out_width,
                    state: &state,
                    element: std::marker::PhantomData,
                };
                simd::vectorize(|| task.run(&mut scratch));
            });
        }
        frame.buffers.put(self.k.buffer, projected);
        frame.buffers.put(self.out.buffer, out);
    }
}

/// One key and value head over a chunk.
struct Task<'a, E> {
    attend: &'a Attend,
    buffers: &'a Buffers,
    tokens: usize,
    position: u64,
    head: usize,
    rows: usize,
    projected: &'a Shared<'a, f32>,
    width: usize,
    out: &'a Shared<'a, f32>,
    out_width: usize,
    state: &'a SharedArena<'a>,
    element: std::marker::PhantomData<E>,
}

impl<E: Element> Task<'_, E> {
    #[inline(always)]
    fn run(&self, scratch: &mut [f32]) {
        let (tokens, dim) = (self.tokens, self.attend.head_dim());
        // Rounded as they will be cached, so that a chunk gives what single steps give.
        for t in 0..tokens {
            for view in [&self.attend.k, &self.attend.v] {
                let row = self.projection(view, self.head, t);
                let mut rounded = [E::zeroed(); TILE];
                for part in row.chunks_mut(TILE) {
                    E::narrow(part, &mut rounded[..part.len()]);
                    E::widen(&rounded[..part.len()], part);
                }
            }
        }
        let group = self.attend.heads / self.attend.kv_heads;
        let (running, tile) = scratch.split_at_mut(QUERIES * group * (dim + 2));
        // Where a query's weights decide what the next one sees, queries pass one by one.
        let weighs = |e: &Eviction| matches!(e.policy, Policy::Attention(_));
        let side_by_side = match self.attend.eviction.as_ref().is_some_and(weighs) {
            true => 1,
            false => QUERIES,
        };
        let mut first = 0;
        while first < tokens {
            let queries = first..(first + side_by_side).min(tokens);
            for entry in running.chunks_exact_mut(dim + 2) {
                Running::clear(entry);
            }
            if let Some(eviction) = &self.attend.eviction {
                for t in queries.clone() {
                    self.retain(eviction, t);
                    self.attend_set(
                        eviction,
                        t,
                        &mut running[(t - first) * group * (dim + 2)..],
                        tile,
                    );
                }
            }
            self.attend_window(queries.clone(), running, tile);
            if let Some(eviction) = &self.attend.eviction
                && let Policy::Attention(scores) = &eviction.policy
            {
                self.weigh(eviction, scores, first, running, tile);
            }
            for t in queries.clone() {
                for g in 0..group {
                    let entry = &running[((t - first) * group + g) * (dim + 2)..][..dim + 2];
                    let start =
                        t * self.out_width + self.attend.out.start + (self.head * group + g) * dim;
                    // SAFETY: each task has its own heads' output columns.
                    let out = unsafe { self.out.part(start..start + dim) };
                    for (out, x) in out.iter_mut().zip(&entry[2..]) {
                        *out = x / entry[1];
                    }
                }
            }
            first = queries.end;
        }
        for t in tokens.saturating_sub(self.rows)..tokens {
            let row = self.row(self.position + t as u64);
            for (slot, view) in [
                (self.attend.keys, &self.attend.k),
                (self.attend.values, &self.attend.v),
            ] {
                E::narrow(
                    self.projection(view, self.head, t),
                    self.cached(slot, row..row + 1),
                );
            }
        }
    }

    /// The columns of one head in the projections of token `t`.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn projection(&self, view: &View, head: usize, t: usize) -> &mut [f32] {
        let (start, dim) = (t * self.width + view.start, self.attend.head_dim());
        // SAFETY: each task touches its own head of keys and values and its own group of queries.
        unsafe {
            self.projected
                .part(start + head * dim..start + (head + 1) * dim)
        }
    }

    /// The row of a position in the circular segment.
    #[inline(always)]
    fn row(&self, position: u64) -> usize {
        (position % self.rows as u64) as usize
    }

    /// Rows of this head in a slot of cached keys or values.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn cached(&self, slot: usize, rows: std::ops::Range<usize>) -> &mut [E] {
        let dim = self.attend.head_dim();
        let first = self.head * self.state.rows(slot);
        // SAFETY: each task has its own head's rows.
        unsafe {
            self.state
                .slot::<E>(slot, (first + rows.start) * dim..(first + rows.end) * dim)
        }
    }

    /// Lets go of the token that the chunk's token `t` pushes out of the window, or retains it.
    fn retain(&self, eviction: &Eviction, t: usize) {
        let position = self.position + t as u64;
        let head = self.head;
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
        let Some(leaving) = position.checked_sub(self.rows as u64) else {
            return;
        };
        let row = self.row(leaving);
        // SAFETY: each task has its own head's count.
        let count = unsafe { &mut self.state.slot::<u32>(eviction.set_counts, head..head + 1)[0] };
        let score = |scores: &ScoreSlots| match leaving < eviction.sink as u64 {
            true => f32::INFINITY,
            false => self.scores(scores.window)[row],
        };
        let kept = match &eviction.policy {
            Policy::Learned { scores, .. } => CappedSet {
                scores: self.scores(scores.set),
                count,
            }
            .offer(score(scores)),
            Policy::Attention(scores) => CappedSet {
                scores: self.scores(scores.set),
                count,
            }
            .insert(score(scores)),
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
        for (set, ring, view) in [
            (eviction.set_keys, self.attend.keys, &self.attend.k),
            (eviction.set_values, self.attend.values, &self.attend.v),
        ] {
            let place = self.cached(set, kept..kept + 1);
            match leaving.checked_sub(self.position) {
                // A chunk longer than the window: the token never entered the segment.
                Some(t) => E::narrow(self.projection(view, head, t as usize), place),
                None => place.copy_from_slice(self.cached(ring, row..row + 1)),
            }
        }
    }

    /// This head's scores in a slot.
    #[allow(clippy::mut_from_ref)]
    fn scores(&self, slot: usize) -> &mut [f32] {
        let rows = self.state.rows(slot);
        // SAFETY: each task has its own head's scores.
        unsafe {
            self.state
                .slot::<f32>(slot, self.head * rows..(self.head + 1) * rows)
        }
    }

    /// Gives the retained tokens, and the one that leaves the window next, the attention that query `t` paid them.
    #[inline(always)]
    fn weigh(
        &self,
        eviction: &Eviction,
        scores: &ScoreSlots,
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
        // SAFETY: each task has its own head's count.
        unsafe { self.state.slot::<u32>(eviction.set_counts, head..head + 1)[0] as usize }
    }

    /// Query `t` over the retained tokens.
    #[inline(always)]
    fn attend_set(&self, eviction: &Eviction, t: usize, running: &mut [f32], tile: &mut [f32]) {
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

    /// The queries over the window: cached positions first, then those of the chunk.
    #[inline(always)]
    fn attend_window(
        &self,
        queries: std::ops::Range<usize>,
        running: &mut [f32],
        tile: &mut [f32],
    ) {
        let dim = self.attend.head_dim();
        let per_query = self.attend.heads / self.attend.kv_heads * (dim + 2);
        let start = self.position;
        let oldest = |t: usize| (start + t as u64 + 1).saturating_sub(self.rows as u64);
        let end = start + queries.end as u64;
        let (keys, rest) = tile.split_at_mut(TILE * dim);
        let (values, scores) = rest.split_at_mut(TILE * dim);
        let mut first = oldest(queries.start);
        while first < end {
            let cached = first < start;
            let mut n = ((if cached { start } else { end }) - first).min(TILE as u64) as usize;
            if cached {
                let row = self.row(first);
                n = n.min(self.rows - row);
                E::widen(
                    self.cached(self.attend.keys, row..row + n),
                    &mut keys[..n * dim],
                );
                E::widen(
                    self.cached(self.attend.values, row..row + n),
                    &mut values[..n * dim],
                );
            } else {
                for i in 0..n {
                    let t = (first - start) as usize + i;
                    keys[i * dim..][..dim].copy_from_slice(self.projection(
                        &self.attend.k,
                        self.head,
                        t,
                    ));
                    values[i * dim..][..dim].copy_from_slice(self.projection(
                        &self.attend.v,
                        self.head,
                        t,
                    ));
                }
            }
            for t in queries.clone() {
                // The part of the tile that this query sees.
                let low = oldest(t).max(first);
                let high = (start + t as u64 + 1).min(first + n as u64);
                if low < high {
                    let skip = (low - first) as usize * dim;
                    let seen = (high - low) as usize;
                    let running = &mut running[(t - queries.start) * per_query..];
                    self.attend_tile(t, seen, &keys[skip..], &values[skip..], running, scores);
                }
            }
            first += n as u64;
        }
    }

    /// Adds `n` keys and values to the running softmax of each query head of token `t`.
    #[inline(always)]
    fn attend_tile(
        &self,
        t: usize,
        n: usize,
        keys: &[f32],
        values: &[f32],
        running: &mut [f32],
        scores: &mut [f32],
    ) {
        let dim = self.attend.head_dim();
        let group = self.attend.heads / self.attend.kv_heads;
        for g in 0..group {
            let query = self.projection(&self.attend.q, self.head * group + g, t);
            let running = Running::new(&mut running[g * (dim + 2)..][..dim + 2]);
            running.add(query, self.attend.scale, n, keys, values, scores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::super::rig::{Rig, noise};
    use super::*;

    const DIM: usize = 5;

    fn stage(heads: usize, kv_heads: usize, policy: Policy, sink: usize) -> Stage {
        let (width, stride) = (heads * DIM, (heads + 2 * kv_heads) * DIM);
        let columns = |start, width| View {
            buffer: 0,
            start,
            width,
            stride,
        };
        Stage::Attend(Attend {
            heads,
            kv_heads,
            q: columns(0, width),
            k: columns(width, kv_heads * DIM),
            v: columns(width + kv_heads * DIM, kv_heads * DIM),
            scale: 1.5,
            keys: 0,
            values: 1,
            eviction: Some(Eviction {
                policy,
                sink,
                set_keys: 2,
                set_values: 3,
                set_counts: 4,
            }),
            out: View::whole(1, width),
        })
    }

    /// Compares with `keeps(position, weights)`: given the last query's share of each position in view, whether the
    /// token leaving the window enters the set `kept` that it may change.
    fn check(
        [heads, kv_heads, window, capacity]: [usize; 4],
        policy: Policy,
        sink: usize,
        keeps: impl Fn(&mut Vec<usize>, usize, &dyn Fn(usize) -> f64),
    ) {
        const TOKENS: usize = 80;
        let stage = stage(heads, kv_heads, policy, sink);
        let (width, stride) = (heads * DIM, (heads + 2 * kv_heads) * DIM);
        let ring: &[usize] = &[kv_heads, window, DIM];
        let set: &[usize] = &[kv_heads, capacity, DIM];
        let slots = [
            (SlotDtype::F32, ring),
            (SlotDtype::F32, ring),
            (SlotDtype::F32, set),
            (SlotDtype::F32, set),
            (SlotDtype::U32, &set[..1]),
            (SlotDtype::F32, &ring[..2]),
            (SlotDtype::F32, &set[..2]),
        ];
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = noise(t * stride + i);
            }
        };
        let out = View::whole(1, width);
        let widths = [stride, width];
        let mut rig = Rig::new(&stage, &widths, &slots);
        let (whole, state) = rig.read(&[TOKENS], fill, out);
        for chunks in [&[1; TOKENS][..], &[3, 17, 1, 40, 19]] {
            let (split, split_state) = rig.read(chunks, fill, out);
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(whole.iter().zip(&split).all(close));
            let floats = |bytes: &[u8]| -> Vec<f32> {
                let numbers = bytes.as_chunks().0.iter();
                numbers.map(|&b| f32::from_le_bytes(b)).collect()
            };
            let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-5;
            assert!(floats(&state).iter().zip(&floats(&split_state)).all(same));
        }

        let value = |t: usize, column: usize| f64::from(noise(t * stride + column));
        for kv_head in 0..kv_heads {
            let group = heads / kv_heads;
            let mut kept: Vec<usize> = Vec::new();
            let mut weights: Vec<(usize, f64)> = Vec::new();
            for t in 0..TOKENS {
                if let Some(leaving) = t.checked_sub(window) {
                    let weight = |p| weights.iter().find(|(q, _)| *q == p).expect("in view").1;
                    keeps(&mut kept, leaving, &weight);
                }
                let recent = (t + 1).saturating_sub(window)..t + 1;
                let seen: Vec<usize> = kept.iter().copied().chain(recent).collect();
                weights = seen.iter().map(|&p| (p, 0.0)).collect();
                for g in 0..group {
                    let head = kv_head * group + g;
                    let key = |p: usize, i: usize| value(p, width + kv_head * DIM + i);
                    let score = |p: usize| {
                        (0..DIM)
                            .map(|i| value(t, head * DIM + i) * key(p, i))
                            .sum::<f64>()
                    };
                    let shares: Vec<f64> = seen.iter().map(|&p| (1.5 * score(p)).exp()).collect();
                    let sum: f64 = shares.iter().sum();
                    for ((_, weight), share) in weights.iter_mut().zip(&shares) {
                        *weight += share / sum;
                    }
                    for i in 0..DIM {
                        let column = width + (kv_heads + kv_head) * DIM + i;
                        let values = seen.iter().zip(&shares);
                        let expected: f64 = values.map(|(&p, s)| s / sum * value(p, column)).sum();
                        let found = f64::from(whole[t * width + head * DIM + i]);
                        assert!((found - expected).abs() < 1e-5, "token {t} head {head}");
                    }
                }
            }
        }
    }

    #[test]
    fn tova_drops_the_least_attended_token() {
        for shape in [[4, 2, 6, 5], [3, 1, 1, 9], [2, 2, 33, 4], [6, 2, 3, 1]] {
            for sink in [0, 1] {
                let capacity = shape[3];
                let scores = ScoreSlots { window: 5, set: 6 };
                check(
                    shape,
                    Policy::Attention(scores),
                    sink,
                    |kept, leaving, weight| {
                        kept.push(leaving);
                        if kept.len() > capacity {
                            let least = kept.iter().copied().filter(|&p| p >= sink);
                            let least = least.min_by(|&a, &b| weight(a).total_cmp(&weight(b)));
                            kept.retain(|&p| Some(p) != least);
                        }
                    },
                );
            }
        }
    }

    #[test]
    fn a_stride_keeps_every_so_many_token() {
        for (shape, sink, every) in [
            ([4, 2, 6, 5], 2, 3),
            ([3, 1, 1, 9], 0, 1),
            ([2, 2, 33, 4], 4, 2),
        ] {
            let capacity = shape[3];
            check(shape, Policy::Stride(every), sink, |kept, leaving, _| {
                if leaving < sink {
                    kept.push(leaving);
                } else if (leaving - sink).is_multiple_of(every) && capacity > sink {
                    kept.push(leaving);
                    if kept.len() > capacity {
                        kept.remove(sink);
                    }
                }
            });
        }
    }
}
