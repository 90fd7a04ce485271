//! Attention over a fixed number of slots (gated slot attention, attention with bounded-memory control): two recurrences that
//! share their writes, with a softmax or a function of each score between them. For each head, `s` is the weight `[slots]` that
//! a token has in each slot, and `K [dk, slots]`, `V [slots, dv]` are the slots' keys and values:
//!
//! ```text
//! K <- K diag(1 - s) + k^T s;  p = softmax(scale q K)
//! V <- diag(1 - s) V + s^T v;  o = p V
//! ```
//!
//! The second pass is the recurrence of `recur` with p as the query. The first pass reads along the other side of its state; in
//! matrix form, with the decay `F_ij = (1 - s_{j+1}) * ... * (1 - s_i)` of each slot from token j to i:
//! `q_i K_i = F_i0 (q_i K) + sum_{j<=i} (q_i . k_j) F_ij s_j`.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::functions::Activation;
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Attention over slots.
pub struct Slots {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys, values, weights and states; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Slots per head.
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
    /// A function of each score, instead of the softmax.
    pub scores: Option<Activation>,
    /// The state tensor of K `[kv_heads, dk, slots]`.
    pub keys: usize,
    /// The state tensor of V `[kv_heads, slots, dv]`.
    pub values: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
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

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![
            Touched::whole(plan, self.keys),
            Touched::whole(plan, self.values),
        ]
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
        if column >= weights.start {
            // Weights that replace a slot, weights that keep it, and weights between.
            [1.0, 0.0, 0.02 * x.abs(), 0.5 + 0.5 * x][(t + column) % 4]
        } else {
            x
        }
    }

    /// A scale of scores that keeps outputs of order one.
    fn scale(scores: Option<Activation>) -> f64 {
        if scores.is_some() { 0.1 } else { 0.7 }
    }

    /// Outputs of every token and both states at the end, by the equations in f64.
    fn plain(case: Case, scores: Option<Activation>) -> [Vec<f64>; 3] {
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
                    let score = scale(scores) * (0..dk).map(score).sum::<f64>();
                    p[m] = match scores {
                        None => score.exp(),
                        Some(Activation::Identity) => score,
                        Some(Activation::SquaredRelu) => score.max(0.0).powi(2),
                        Some(other) => panic!("{other:?} has no equation here"),
                    };
                }
                let sum: f64 = match scores {
                    None => p.iter().sum(),
                    Some(_) => 1.0,
                };
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
        for (case, scores) in [
            ([2, 2, 16, 8, 8], None),
            ([6, 2, 5, 7, 45], None),
            ([3, 1, 33, 13, 9], None),
            ([6, 2, 5, 7, 45], Some(Activation::Identity)),
            ([3, 1, 33, 13, 9], Some(Activation::SquaredRelu)),
        ] {
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
                scale: scale(scores) as f32,
                scores,
                keys: 0,
                values: 1,
                out,
            };
            let widths = [q.stride, out.width];
            let shapes = [[kv_heads, dk, slots], [kv_heads, slots, dv]];
            let states = shapes.each_ref().map(|shape| (StateDtype::F32, &shape[..]));
            let mut rig = Rig::new(&op, &widths, &states);
            let [expected, keys, values] = plain(case, scores);
            let close = |name: &str, found: &[f32], expected: &[f64]| {
                for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(
                        error < 3e-6,
                        "{case:?} {scores:?} {name} {i}: {found} {expected}"
                    );
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
