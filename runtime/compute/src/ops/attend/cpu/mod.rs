//! The op on a CPU: a task is a key and value head with all or some of its query heads.

mod retain;

use std::ops::Range;

use half::f16;

use super::Attend;
use super::retain::{Eviction, Policy};
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::ops::softmax::{Element, Running, TILE};
use crate::state::StateDtype;

/// Most tokens whose queries pass over a tile together.
const QUERIES: usize = 16;

impl Attend {
    /// Tasks for each key and value head. A head is one task if tokens may be retained, because retention is decided per head.
    fn parts(&self, threads: usize) -> usize {
        match self.eviction {
            Some(_) => 1,
            None => threads
                .div_ceil(self.kv_heads)
                .min(self.heads / self.kv_heads),
        }
    }

    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let out_width = self.out.stride;
        // Keys and values share the projections' buffer with the queries: tasks write their own heads' columns.
        let mut projected = frame.buffers.take(self.k.buffer);
        let width = self.k.stride;
        let rows = frame.arena.plan().tensors()[self.keys].shape[1];
        {
            let out = Shared::new(&mut out);
            let projected = Shared::new(&mut projected);
            let state = frame.arena.shared();
            let task = |head: usize, members: Range<usize>| HeadTask::<E> {
                attend: self,
                buffers: frame.buffers,
                tokens: frame.tokens.len(),
                position: frame.position,
                head,
                members,
                rows,
                projected: &projected,
                width,
                out: &out,
                out_width,
                state: &state,
                element: std::marker::PhantomData,
            };
            let group = self.heads / self.kv_heads;
            let parts = self.parts(frame.pool.threads());
            if parts == 1 {
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    task(head, 0..group).run(true, &mut scratch);
                });
            } else {
                // Tasks of one key and value head share its keys and values, so these are read-only here.
                frame
                    .pool
                    .each(self.kv_heads, |_, head| task(head, 0..0).round());
                frame.pool.each(self.kv_heads * parts, |worker, index| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    let (head, part) = (index / parts, index % parts);
                    let members = part * group / parts..(part + 1) * group / parts;
                    task(head, members).run(false, &mut scratch);
                });
                frame
                    .pool
                    .each(self.kv_heads, |_, head| task(head, 0..0).keep());
            }
        }
        frame.buffers.put(self.k.buffer, projected);
        frame.buffers.put(self.out.buffer, out);
    }
}

impl CpuOp for Attend {
    fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().tensors()[self.keys].dtype {
            StateDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        let head_dim = self.head_dim();
        QUERIES * self.heads / self.kv_heads * (head_dim + 2) + 2 * TILE * head_dim + TILE
    }
}

/// One key and value head over a chunk, or some of its query heads.
struct HeadTask<'a, E> {
    attend: &'a Attend,
    buffers: &'a Buffers,
    tokens: usize,
    position: u64,
    head: usize,
    /// The task's query heads, counted within the head's group.
    members: Range<usize>,
    rows: usize,
    projected: &'a Shared<'a, f32>,
    width: usize,
    out: &'a Shared<'a, f32>,
    out_width: usize,
    state: &'a SharedArena<'a>,
    element: std::marker::PhantomData<E>,
}

impl<E: Element> HeadTask<'_, E> {
    /// Rounds the new keys and values as they will be cached, so that a chunk gives the same result as
    /// single steps.
    #[inline(always)]
    fn round(&self) {
        for t in 0..self.tokens {
            for view in [&self.attend.k, &self.attend.v] {
                let row = self.projection_mut(view, self.head, t);
                let mut rounded = [E::zeroed(); TILE];
                for part in row.chunks_mut(TILE) {
                    E::narrow(part, &mut rounded[..part.len()]);
                    E::widen(&rounded[..part.len()], part);
                }
            }
        }
    }

    /// Computes the queries. A task that is alone with its head's keys and values also rounds and caches them. One function,
    /// because it is large and compiled for each vector unit.
    #[inline(never)]
    fn run(&self, alone: bool, scratch: &mut [f32]) {
        E::vectorize(
            #[inline(always)]
            || {
                if alone {
                    self.round();
                }
                self.answer(scratch);
                if alone {
                    self.keep();
                }
            },
        );
    }

    #[inline(always)]
    fn answer(&self, scratch: &mut [f32]) {
        let (tokens, dim, group) = (self.tokens, self.attend.head_dim(), self.members.len());
        let (running, tile) = scratch.split_at_mut(QUERIES * group * (dim + 2));
        // If a query's weights decide which tokens the next query sees, queries run one at a time.
        let weighs = |e: &Eviction| matches!(e.policy, Policy::Attention(_));
        let side_by_side = if self.attend.eviction.as_ref().is_some_and(weighs) {
            1
        } else {
            QUERIES
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
            if let Some(sinks) = &self.attend.sinks {
                let entries = running.chunks_exact_mut(dim + 2).enumerate();
                for (i, entry) in entries.take(queries.len() * group) {
                    entry[1] += simd::exp(sinks[self.query_head(i % group)] - entry[0]);
                }
            }
            if let Some(eviction) = &self.attend.eviction
                && let Policy::Attention(scores) = &eviction.policy
            {
                self.weigh(eviction, scores, first, running, tile);
            }
            for t in queries.clone() {
                for g in 0..group {
                    let entry = &running[((t - first) * group + g) * (dim + 2)..][..dim + 2];
                    let start =
                        t * self.out_width + self.attend.out.start + self.query_head(g) * dim;
                    // SAFETY: each task has its own heads' output columns (rules: widths, disjoint writes).
                    let out = unsafe { self.out.part(start..start + dim) };
                    for (out, x) in out.iter_mut().zip(&entry[2..]) {
                        *out = x / entry[1];
                    }
                }
            }
            first = queries.end;
        }
    }

    /// Caches the new keys and values, if this op does.
    #[inline(always)]
    fn keep(&self) {
        if !self.attend.caches {
            return;
        }
        let tokens = self.tokens;
        for t in tokens.saturating_sub(self.rows)..tokens {
            let row = self.row(self.position + t as u64);
            for (tensor, view) in [
                (self.attend.keys, &self.attend.k),
                (self.attend.values, &self.attend.v),
            ] {
                E::narrow(
                    self.projection(view, self.head, t),
                    self.cached_mut(tensor, row..row + 1),
                );
            }
        }
    }

    /// The index of member `g` among all query heads.
    #[inline(always)]
    fn query_head(&self, g: usize) -> usize {
        self.head * (self.attend.heads / self.attend.kv_heads) + self.members.start + g
    }

    /// Where the columns of one head of token `t` lie in the projections.
    #[inline(always)]
    fn columns(&self, view: &View, head: usize, t: usize) -> Range<usize> {
        let dim = self.attend.head_dim();
        let start = t * self.width + view.start + head * dim;
        start..start + dim
    }

    /// The columns of one head in the projections of token `t`.
    #[inline(always)]
    fn projection(&self, view: &View, head: usize, t: usize) -> &[f32] {
        // SAFETY: only `round` writes keys and values, in one task per head (rules: widths, disjoint writes), which does not
        // overlap other tasks of the head; queries are never written.
        unsafe { self.projected.read(self.columns(view, head, t)) }
    }

    /// Like `projection`, for writing.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn projection_mut(&self, view: &View, head: usize, t: usize) -> &mut [f32] {
        // SAFETY: one task per head rounds its keys and values (rules: widths, disjoint writes), and no other task of the head
        // runs at that time.
        unsafe { self.projected.part(self.columns(view, head, t)) }
    }

    /// The row of a position in the circular segment.
    #[inline(always)]
    fn row(&self, position: u64) -> usize {
        (position % self.rows as u64) as usize
    }

    /// Where rows of this head lie in a state tensor of cached keys or values.
    #[inline(always)]
    fn span(&self, tensor: usize, rows: Range<usize>) -> Range<usize> {
        let dim = self.attend.head_dim();
        let first = self.head * self.state.rows(tensor);
        (first + rows.start) * dim..(first + rows.end) * dim
    }

    /// Rows of this head in a state tensor of cached keys or values, for writing.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn cached_mut(&self, tensor: usize, rows: Range<usize>) -> &mut [E] {
        // SAFETY: one task per head writes the head's rows (rules: widths, bounds), and no other task of the head runs at that time.
        unsafe { self.state.tensor(tensor, self.span(tensor, rows)) }
    }

    /// Rows of this head in a state tensor of cached keys or values.
    #[inline(always)]
    fn cached(&self, tensor: usize, rows: Range<usize>) -> &[E] {
        // SAFETY: only tasks of this head use its rows (rules: widths, bounds), and none of them writes while parts of the head read.
        unsafe { self.state.read(tensor, self.span(tensor, rows)) }
    }

    /// Attends to the window: cached positions first, then the positions of the chunk.
    #[inline(always)]
    fn attend_window(&self, queries: Range<usize>, running: &mut [f32], tile: &mut [f32]) {
        let dim = self.attend.head_dim();
        let per_query = self.members.len() * (dim + 2);
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
        for g in 0..self.members.len() {
            let query = self.projection(&self.attend.q, self.query_head(g), t);
            let running = Running::new(&mut running[g * (dim + 2)..][..dim + 2]);
            running.add(query, self.attend.scale, n, keys, values, scores);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rig::{Rig, noise, side_by_side};

    const HEADS: usize = 5;
    const DIM: usize = 6;
    const WINDOW: usize = 9;
    const TOKENS: usize = 40;

    fn attend(kv_heads: usize) -> Attend {
        let width = HEADS * DIM;
        let [q, k, v] = side_by_side([width, kv_heads * DIM, kv_heads * DIM]);
        Attend {
            heads: HEADS,
            kv_heads,
            q,
            k,
            v,
            scale: 0.7,
            keys: 0,
            values: 1,
            caches: true,
            sinks: None,
            eviction: None,
            out: View::whole(1, width),
        }
    }

    /// Outputs with this many key heads, all of which have equal keys and values.
    fn outputs(kv_heads: usize, chunks: &[usize]) -> Vec<f32> {
        let (width, stride) = (HEADS * DIM, (HEADS + 2 * kv_heads) * DIM);
        let op = attend(kv_heads);
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, x) in row.iter_mut().enumerate() {
                let key = |i: usize| width + i / (kv_heads * DIM) * DIM + i % DIM;
                let i = i.checked_sub(width).map_or(i, key);
                *x = noise(t * 1000 + i);
            }
        };
        let tensor = (StateDtype::F16, &[kv_heads, WINDOW, DIM][..]);
        let widths = [stride, width];
        let mut rig = Rig::new(&op, &widths, &[tensor, tensor]);
        rig.read(chunks, fill, View::whole(1, width)).0
    }

    #[test]
    fn a_sink_takes_its_share_of_the_weights() {
        let read = |sinks: Option<[f32; HEADS]>| {
            let op = Attend {
                sinks: sinks.map(|sinks| sinks.to_vec().into()),
                ..attend(1)
            };
            let tensor = (StateDtype::F32, &[1, WINDOW, DIM][..]);
            let widths = [(HEADS + 2) * DIM, HEADS * DIM];
            let mut rig = Rig::new(&op, &widths, &[tensor, tensor]);
            // Equal keys: each of the first token's scores is zero.
            let fill = |buffer: usize, _: usize, row: &mut [f32]| {
                row.fill(0.0);
                if buffer == 0 {
                    row[(HEADS + 1) * DIM..].fill(1.0);
                }
            };
            rig.read(&[1], fill, View::whole(1, HEADS * DIM)).0
        };
        assert_eq!(read(None), [1.0; HEADS * DIM]);
        // Against one key of score zero, a sink of ln(3) takes three quarters; scores far apart do not overflow.
        let found = read(Some([0.0, 3f32.ln(), -200.0, 200.0, 0.0]));
        let expected = [0.5, 0.25, 1.0, 0.0, 0.5];
        for (found, expected) in found.chunks(DIM).zip(expected) {
            assert!(found.iter().all(|x| (x - expected).abs() < 1e-6));
        }
    }

    #[test]
    fn query_heads_that_threads_share_give_what_they_give_alone() {
        let shared = attend(1);
        assert_eq!(
            [1, 2, 8].map(|threads| shared.parts(threads)),
            [1, 2, HEADS]
        );
        for chunks in [&[TOKENS][..], &[1; TOKENS], &[3, 17, 1, 19]] {
            assert_eq!(outputs(1, chunks), outputs(HEADS, chunks), "{chunks:?}");
        }
    }
}
