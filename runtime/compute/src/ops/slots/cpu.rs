//! The op on a CPU: one task per head.

use super::Slots;
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::ops::recur::{self, Decays, Inputs, Outputs, Rows};
use crate::ops::softmax::softmax;

/// Tokens whose scores of the slots are held between the first and the second pass.
const PIECE: usize = 16;

/// Whether the matrix form pays for a piece of this many tokens.
fn in_matrix_form(tokens: usize) -> bool {
    tokens >= 4
}

impl CpuOp for Slots {
    fn run(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let state = frame.arena.shared();
        let (keys, values) = (self.dk() * self.slots, self.slots * self.dv());
        {
            let out = Shared::new(&mut out);
            frame.pool.each(self.kv_heads, |worker, head| {
                let buffers = &*frame.buffers;
                let columns = |view: &View, heads: usize, width: usize| {
                    let start = view.start + heads * width;
                    Rows::new(&buffers.get(view.buffer)[start..], view.stride)
                };
                let queries = self.heads / self.kv_heads;
                let task = SlotTask {
                    op: self,
                    queries,
                    q: columns(&self.q, head * queries, self.dk()),
                    k: columns(&self.k, head, self.dk()),
                    v: columns(&self.v, head, self.dv()),
                    weights: columns(&self.weights, head, self.slots),
                };
                // SAFETY: each task has its own head's states (rules: widths, bounds).
                let keys = unsafe { state.tensor(self.keys, head * keys..(head + 1) * keys) };
                // SAFETY: each task has its own head's states (rules: widths, bounds).
                let values =
                    unsafe { state.tensor(self.values, head * values..(head + 1) * values) };
                let width = queries * self.dv();
                let start = self.out.start + head * width;
                // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                let mut out = unsafe { Outputs::new(&out, start, self.out.stride, width) };
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for first in (0..frame.tokens.len()).step_by(PIECE) {
                            let piece = first..(first + PIECE).min(frame.tokens.len());
                            task.run(piece, keys, values, &mut out, &mut scratch);
                        }
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn scratch(&self, chunk: usize) -> usize {
        let piece = chunk.min(PIECE);
        let queries = self.heads / self.kv_heads;
        let softmax = piece * queries * self.slots;
        let first = (piece + 1) * self.slots;
        softmax + first.max(recur::scratch(self.slots, self.dv(), piece))
    }
}

/// One head of keys and values over a chunk.
struct SlotTask<'a> {
    op: &'a Slots,
    queries: usize,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    weights: Rows<'a>,
}

impl SlotTask<'_> {
    #[inline(always)]
    fn run(
        &self,
        piece: std::ops::Range<usize>,
        keys: &mut [f32],
        values: &mut [f32],
        out: &mut Outputs,
        scratch: &mut [f32],
    ) {
        let (first, n) = (piece.start, piece.len());
        let width = self.queries * self.op.slots;
        let (p, scratch) = scratch.split_at_mut(n * width);
        if in_matrix_form(n) {
            self.scores(first, n, keys, p, scratch);
        } else {
            for (i, p) in p.chunks_exact_mut(width).enumerate() {
                self.score(first + i, keys, p);
            }
        }
        for p in p.chunks_exact_mut(self.op.slots) {
            simd::scale(self.op.scale, p);
            match self.op.scores {
                None => softmax(p),
                Some(function) => function.apply(p),
            }
        }
        let weights = self.weights.from(first, 0);
        let second = Inputs {
            erase: None,
            removal: None,
            queries: self.queries,
            dk: self.op.slots,
            dv: self.op.dv(),
            q: Rows::new(p, width),
            k: Some(weights),
            v: self.v.from(first, 0),
            decay: Decays::Complement(weights),
            beta: None,
            write_gate: None,
            read_gate: None,
            scale: 1.0,
        };
        let form = recur::in_matrix_form(n);
        recur::run(&second, (n, form), values, &mut out.from(first), scratch);
    }

    /// Writes one token into the slots' keys; `p[query] = q K`.
    #[inline(always)]
    fn score(&self, t: usize, keys: &mut [f32], p: &mut [f32]) {
        let (dk, slots) = (self.op.dk(), self.op.slots);
        let weights = self.weights.get(t, slots);
        for (row, &k) in keys.chunks_exact_mut(slots).zip(self.k.get(t, dk)) {
            for (x, s) in row.iter_mut().zip(weights) {
                *x = (1.0 - s) * *x + k * s;
            }
        }
        p.fill(0.0);
        let queries = self.q.get(t, self.queries * dk);
        simd::gemm(
            [self.queries, slots, dk],
            queries,
            [dk, 1],
            keys,
            slots,
            p,
            slots,
        );
    }

    /// Like [`SlotTask::score`], but for `n` tokens in matrix form.
    #[inline(always)]
    fn scores(&self, first: usize, n: usize, keys: &mut [f32], p: &mut [f32], scratch: &mut [f32]) {
        let (dk, slots) = (self.op.dk(), self.op.slots);
        let width = self.queries * slots;
        // F_i0, and F_ij s_j for every j up to i.
        let (reach, decayed) = scratch.split_at_mut(slots);
        p.fill(0.0);
        for query in 0..self.queries {
            let q = self.q.from(first, query * dk);
            let p = &mut p[query * slots..];
            simd::gemm(
                [n, slots, dk],
                q.values,
                [q.stride, 1],
                keys,
                slots,
                p,
                width,
            );
        }
        reach.fill(1.0);
        for i in 0..n {
            let weights = self.weights.get(first + i, slots);
            let (earlier, now) = decayed.split_at_mut(i * slots);
            for row in earlier.chunks_exact_mut(slots).chain([&mut *reach]) {
                for (x, s) in row.iter_mut().zip(weights) {
                    *x *= 1.0 - s;
                }
            }
            now[..slots].copy_from_slice(weights);
            let queries = self.q.get(first + i, self.queries * dk).chunks_exact(dk);
            for (p, q) in p[i * width..].chunks_exact_mut(slots).zip(queries) {
                for (p, reach) in p.iter_mut().zip(&*reach) {
                    *p *= reach;
                }
                for (j, decayed) in decayed.chunks_exact(slots).take(i + 1).enumerate() {
                    simd::axpy(simd::dot(q, self.k.get(first + j, dk)), decayed, p);
                }
            }
        }
        for row in keys.chunks_exact_mut(slots) {
            for (x, reach) in row.iter_mut().zip(&*reach) {
                *x *= reach;
            }
        }
        let k = self.k.from(first, 0);
        simd::gemm(
            [dk, slots, n],
            k.values,
            [1, k.stride],
            decayed,
            slots,
            keys,
            slots,
        );
    }
}
