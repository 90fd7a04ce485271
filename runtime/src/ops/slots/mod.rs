//! Attention over a fixed number of slots (gated slot attention, attention with bounded-memory control): two
//! recurrences that share their writes, with a softmax between. For each head, `s` the weight `[slots]` that a token
//! has in each slot, and `K [dk, slots]`, `V [slots, dv]` the slots' keys and values:
//!
//! ```text
//! K <- K diag(1 - s) + k^T s;  p = softmax(scale q K)
//! V <- diag(1 - s) V + s^T v;  o = p V
//! ```
//!
//! The second pass is the recurrence of `recur` with p for the query. The first reads along the other side of its
//! state; in matrix form, with the fade `F_ij = (1 - s_{j+1}) * ... * (1 - s_i)` of each slot from token j to i:
//! `q_i K_i = F_i0 (q_i K) + sum_{j<=i} (q_i . k_j) F_ij s_j`.

mod launch;

use super::recur::{self, Fade, Inputs, Rows};
use super::softmax::softmax;
use super::{Access, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Attention over slots.
pub struct Slots {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys, values, weights and states; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Slots of a head.
    pub slots: usize,
    /// Queries `[heads, dk]`.
    pub q: View,
    /// Keys `[kv_heads, dk]`.
    pub k: View,
    /// Values `[kv_heads, dv]`.
    pub v: View,
    /// The token's weight in each slot, from 0 to 1, `[kv_heads, slots]`.
    pub weights: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// The slot of the state K `[kv_heads, dk, slots]`.
    pub keys: usize,
    /// The slot of the state V `[kv_heads, slots, dv]`.
    pub values: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
}

/// Tokens between whose first and second pass the softmax is kept.
const PIECE: usize = 16;

/// Whether the matrix form pays for a piece of this many tokens.
fn in_matrix_form(tokens: usize) -> bool {
    tokens >= 4
}

impl Slots {
    fn dk(&self) -> usize {
        self.k.width / self.kv_heads
    }

    fn dv(&self) -> usize {
        self.v.width / self.kv_heads
    }
}

impl Op for Slots {
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
                let task = Task {
                    op: self,
                    queries,
                    q: columns(&self.q, head * queries, self.dk()),
                    k: columns(&self.k, head, self.dk()),
                    v: columns(&self.v, head, self.dv()),
                    weights: columns(&self.weights, head, self.slots),
                };
                // SAFETY: each task has its own head's states (rules: widths, bounds).
                let keys = unsafe { state.tensor(self.keys, head * keys..(head + 1) * keys) };
                // SAFETY: as above.
                let values =
                    unsafe { state.tensor(self.values, head * values..(head + 1) * values) };
                let width = queries * self.dv();
                let start = self.out.start + head * width;
                // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                let mut out = |t: usize| unsafe {
                    let start = t * self.out.stride + start;
                    out.part(start..start + width)
                };
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

    fn access(&self) -> Access {
        Access::default()
            .reads([self.q, self.k, self.v, self.weights])
            .state([self.keys, self.values])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let [heads, slots, dk, dv] = [self.kv_heads, self.slots, self.dk(), self.dv()].map(Some);
        rules.width("out", self.out, self.heads * self.dv());
        rules.state(self.keys, &[heads, dk, slots]);
        rules.state(self.values, &[heads, slots, dv]);
    }

    fn scratch(&self, chunk: usize) -> usize {
        let piece = chunk.min(PIECE);
        let queries = self.heads / self.kv_heads;
        let softmax = piece * queries * self.slots;
        let first = (piece + 1) * self.slots;
        softmax + first.max(recur::scratch(self.slots, self.dv(), piece))
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![
            Touched::whole(plan, self.keys),
            Touched::whole(plan, self.values),
        ]
    }
}

/// One head of keys and values over a chunk.
struct Task<'a> {
    op: &'a Slots,
    queries: usize,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    weights: Rows<'a>,
}

impl Task<'_> {
    #[inline(always)]
    fn run<'o>(
        &self,
        piece: std::ops::Range<usize>,
        keys: &mut [f32],
        values: &mut [f32],
        out: &mut impl FnMut(usize) -> &'o mut [f32],
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
            softmax(p);
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
            decay: Fade::Complement(weights),
            beta: None,
            write_gate: None,
            read_gate: None,
            scale: 1.0,
        };
        recur::run(&second, n, values, &mut |i| out(first + i), scratch);
    }

    /// One token writes the slots' keys; `p[query] = q K`.
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

    /// As [`Task::score`] for `n` tokens, in matrix form.
    #[inline(always)]
    fn scores(&self, first: usize, n: usize, keys: &mut [f32], p: &mut [f32], scratch: &mut [f32]) {
        let (dk, slots) = (self.op.dk(), self.op.slots);
        let width = self.queries * slots;
        // F_i0, and F_ij s_j for every j up to i.
        let (reach, faded) = scratch.split_at_mut(slots);
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
            let (earlier, now) = faded.split_at_mut(i * slots);
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
                for (j, faded) in faded.chunks_exact(slots).take(i + 1).enumerate() {
                    simd::axpy(simd::dot(q, self.k.get(first + j, dk)), faded, p);
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
            faded,
            slots,
            keys,
            slots,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::{Rig, noise, side_by_side};
    use super::*;
    use crate::state::StateDtype;

    const TOKENS: usize = 53;

    /// Numbers of heads, key and value heads, slots, and the widths of keys and values.
    type Case = [usize; 5];

    fn views([heads, kv_heads, slots, dk, dv]: Case) -> [View; 4] {
        let widths = [heads * dk, kv_heads * dk, kv_heads * dv, kv_heads * slots];
        side_by_side(widths)
    }

    fn input(case: Case, t: usize, column: usize) -> f32 {
        let weights = views(case)[3];
        let x = noise(t * 1000 + column);
        match column >= weights.start {
            false => x,
            // Weights that replace a slot, that keep it, and some between.
            true => [1.0, 0.0, 0.02 * x.abs(), 0.5 + 0.5 * x][(t + column) % 4],
        }
    }

    /// Outputs of every token and both states at the end, by the equations in f64.
    fn plain(case: Case) -> [Vec<f64>; 3] {
        let [heads, kv_heads, slots, dk, dv] = case;
        let [q, k, v, weights] = views(case);
        let x = |t, column| f64::from(input(case, t, column));
        let mut out = Vec::new();
        let mut keys = vec![0.0; kv_heads * dk * slots];
        let mut values = vec![0.0; kv_heads * slots * dv];
        for t in 0..TOKENS {
            for h in 0..heads {
                let g = h / (heads / kv_heads);
                let keys = &mut keys[g * dk * slots..][..dk * slots];
                let values = &mut values[g * slots * dv..][..slots * dv];
                let mut p = vec![0.0; slots];
                for m in 0..slots {
                    let s = x(t, weights.start + g * slots + m);
                    if h % (heads / kv_heads) == 0 {
                        for c in 0..dk {
                            let key = &mut keys[c * slots + m];
                            *key = (1.0 - s) * *key + s * x(t, k.start + g * dk + c);
                        }
                        for d in 0..dv {
                            let value = &mut values[m * dv + d];
                            *value = (1.0 - s) * *value + s * x(t, v.start + g * dv + d);
                        }
                    }
                    let score = |c| x(t, q.start + h * dk + c) * keys[c * slots + m];
                    p[m] = (0.7 * (0..dk).map(score).sum::<f64>()).exp();
                }
                let sum: f64 = p.iter().sum();
                for d in 0..dv {
                    let read = (0..slots).map(|m| p[m] * values[m * dv + d]);
                    out.push(read.sum::<f64>() / sum);
                }
            }
        }
        [out, keys, values]
    }

    #[test]
    fn slots_match_their_equations() {
        for case in [[2, 2, 16, 8, 8], [6, 2, 5, 7, 45], [3, 1, 33, 13, 9]] {
            let [heads, kv_heads, slots, dk, dv] = case;
            let [q, k, v, weights] = views(case);
            let out = View::whole(1, heads * dv);
            let op = Slots {
                heads,
                kv_heads,
                slots,
                q,
                k,
                v,
                weights,
                scale: 0.7,
                keys: 0,
                values: 1,
                out,
            };
            let widths = [q.stride, out.width];
            let shapes = [[kv_heads, dk, slots], [kv_heads, slots, dv]];
            let states = shapes.each_ref().map(|shape| (StateDtype::F32, &shape[..]));
            let mut rig = Rig::new(&op, &widths, &states);
            let [expected, keys, values] = plain(case);
            let close = |name: &str, found: &[f32], expected: &[f64]| {
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 3e-6, "{case:?} {name} {i}: {found} {expected}");
                }
            };
            for chunks in [vec![TOKENS], vec![1; TOKENS], vec![3, 1, 16, 17, 4, 12]] {
                let fill = |buffer: usize, t: usize, row: &mut [f32]| {
                    for (column, x) in row.iter_mut().enumerate() {
                        *x = match buffer {
                            0 => input(case, t, column),
                            _ => f32::NAN,
                        };
                    }
                };
                let (found, state) = rig.read(&chunks, fill, out);
                assert_eq!(found.len(), expected.len());
                close("output", &found, &expected);
                let state = state.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x));
                let state: Vec<f32> = state.collect();
                close("keys", &state, &keys);
                close("values", &state[keys.len().next_multiple_of(16)..], &values);
            }
        }
    }
}
