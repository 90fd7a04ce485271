//! The retention router of learnable token eviction (arXiv 2510.20787): a small stack of convolutions over the keys
//! (before rotary positions) and values of neighbouring tokens gives each token a score.
//!
//! The convolutions look `margin` tokens ahead, so the score of token p is known when token `p + margin` is read,
//! and is needed only when p leaves the window. Each layer keeps the inputs that its next output still needs: every
//! token is scored once, at a constant cost, where the reference recomputes the whole window every so often.
//!
//! Backends sum in different orders, so the last bits of a score differ between them. Half of the scores of a trained
//! model are equal to another one, and such bits would decide between equals: 799 of 119,620 evictions differ. So a score is
//! rounded to [`MANTISSA`] bits before anything compares it, on the CPU and on a GPU alike. Equals are equal then, and the
//! older token stays. Scores that are not equal still meet at an edge of the rounding as often as they met before; no
//! rounding changes that. `tests/evictions.rs` counts both.

mod launch;

use serde::{Deserialize, Serialize};

use super::{Access, Op};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// From the router's output z to a score; a token is a candidate if its score is above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreMap {
    /// `sigmoid(z) - 1/2`.
    Sigmoid,
    /// `max(z, 0)`.
    Relu,
}

/// Bits of a score's mantissa, of 23: ten bits more than the noise of a sum, and fewer than tell equal scores apart.
const MANTISSA: u32 = 13;

/// A score as it is compared, half away from zero. As `rounded_score` in score.cu, bit for bit.
#[inline(always)]
fn rounded(score: f32) -> f32 {
    const STEP: u32 = 1 << (23 - MANTISSA);
    match score.is_finite() {
        true => f32::from_bits((score.to_bits() + STEP / 2) & !(STEP - 1)),
        false => score,
    }
}

/// One convolution over time, zeros outside the sequence, then silu.
pub struct RouterLayer {
    /// `[groups, taps, inputs, outputs]`.
    pub weight: Vector,
    /// `[groups, outputs]`.
    pub bias: Vector,
    /// Channels in.
    pub inputs: usize,
    /// Channels out.
    pub outputs: usize,
    /// Width of the kernel.
    pub taps: usize,
    /// Tokens from one tap to the next.
    pub dilation: usize,
    /// The state tensor of the last inputs, `[kv_heads, (taps - 1) * dilation, inputs]`, oldest first.
    pub state: usize,
}

impl RouterLayer {
    /// From a checkpoint's weight `[groups * outputs, inputs, taps]`.
    pub fn new(
        weight: &[f32],
        bias: Vector,
        inputs: usize,
        outputs: usize,
        dilation: usize,
        state: usize,
    ) -> Self {
        let groups = bias.len() / outputs;
        let taps = weight.len() / (groups * outputs * inputs);
        let mut reordered = Vec::with_capacity(weight.len());
        for group in 0..groups {
            for tap in 0..taps {
                for input in 0..inputs {
                    for output in 0..outputs {
                        reordered.push(
                            weight[((group * outputs + output) * inputs + input) * taps + tap],
                        );
                    }
                }
            }
        }
        RouterLayer {
            weight: reordered.into(),
            bias,
            inputs,
            outputs,
            taps,
            dilation,
            state,
        }
    }

    /// Earlier inputs that an output needs.
    fn past(&self) -> usize {
        (self.taps - 1) * self.dilation
    }

    /// Later tokens that an output reads: the centred kernel's right half.
    fn ahead(&self) -> usize {
        self.past() - self.past() / 2
    }
}

/// Scores tokens: row t of the output is the score of the token `margin` before the chunk's token t.
pub struct Score {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Keys before rotary positions, `[kv_heads, head_dim]`.
    pub k: View,
    /// Values, `[kv_heads, head_dim]`.
    pub v: View,
    /// The convolutions. With one group all heads share it, else each head has its own.
    pub layers: Vec<RouterLayer>,
    /// `[groups, outputs of the last layer]`.
    pub weight: Vector,
    /// `[groups]`.
    pub bias: Vector,
    /// From the sum to the score.
    pub map: ScoreMap,
    /// Scores `[kv_heads]`.
    pub out: View,
    /// The state tensor of the window's scores `[kv_heads, rows]`, longer than `margin`, if retention keeps them there.
    pub window: Option<usize>,
}

/// The tokens that pass.
struct Chunk<'a> {
    buffers: &'a Buffers,
    /// Tokens of the chunk, and those before it.
    tokens: usize,
    position: u64,
}

impl Score {
    fn widest_input(&self, tokens: usize) -> usize {
        self.layers
            .iter()
            .map(|layer| (layer.past() + tokens) * layer.inputs)
            .max()
            .unwrap_or(0)
    }

    #[inline(always)]
    fn run_head<'s>(
        &self,
        chunk: &Chunk,
        head: usize,
        history: &impl Fn(&RouterLayer) -> &'s mut [f32],
        score: &impl Fn(usize) -> &'s mut f32,
        scratch: &mut [f32],
    ) {
        let Chunk {
            buffers,
            tokens,
            position,
        } = *chunk;
        let (inputs, outputs) = scratch.split_at_mut(self.widest_input(tokens));
        let head_dim = self.k.width / self.kv_heads;
        let group = if self.bias.len() == 1 { 0 } else { head };
        let columns = |view: &View, t: usize| {
            let row = t * view.stride + view.start + head * head_dim;
            &buffers.get(view.buffer)[row..row + head_dim]
        };
        // The position of the first output of the layer so far.
        let mut first = position as i64;
        for (index, layer) in self.layers.iter().enumerate() {
            let (past, ahead) = (layer.past(), layer.ahead());
            let kept = history(layer);
            inputs[..kept.len()].copy_from_slice(kept);
            let new = &mut inputs[kept.len()..][..tokens * layer.inputs];
            if index == 0 {
                for (t, row) in new.chunks_exact_mut(layer.inputs).enumerate() {
                    row[..head_dim].copy_from_slice(columns(&self.k, t));
                    row[head_dim..].copy_from_slice(columns(&self.v, t));
                }
            } else {
                new.copy_from_slice(&outputs[..tokens * layer.inputs]);
            }
            kept.copy_from_slice(&inputs[tokens * layer.inputs..][..past * layer.inputs]);

            first -= ahead as i64;
            let out = &mut outputs[..tokens * layer.outputs];
            for row in out.chunks_exact_mut(layer.outputs) {
                row.copy_from_slice(&layer.bias[group * layer.outputs..][..layer.outputs]);
            }
            for tap in 0..layer.taps {
                let size = layer.inputs * layer.outputs;
                let weight = &layer.weight[(group * layer.taps + tap) * size..][..size];
                let inputs = &inputs[tap * layer.dilation * layer.inputs..];
                let shape = [tokens, layer.outputs, layer.inputs];
                simd::gemm(
                    shape,
                    inputs,
                    [layer.inputs, 1],
                    weight,
                    layer.outputs,
                    out,
                    layer.outputs,
                );
            }
            for (t, row) in out.chunks_exact_mut(layer.outputs).enumerate() {
                if first + (t as i64) < 0 {
                    // Before the sequence: the next layer's padding.
                    row.fill(0.0);
                } else {
                    row.iter_mut().for_each(|x| *x = simd::silu(*x));
                }
            }
        }
        let last = self.weight.len() / self.bias.len();
        for (t, row) in outputs[..tokens * last].chunks_exact(last).enumerate() {
            let z = simd::dot(row, &self.weight[group * last..][..last]) + self.bias[group];
            *score(t) = rounded(match self.map {
                ScoreMap::Sigmoid => simd::sigmoid(z) - 0.5,
                ScoreMap::Relu => z.max(0.0),
            });
        }
    }
}

impl Op for Score {
    fn run(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let width = self.out.stride;
        {
            let scores = Shared::new(&mut out);
            let state = frame.arena.shared();
            frame.pool.each(self.kv_heads, |worker, head| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                simd::vectorize(
                    #[inline(always)]
                    || {
                        let row = |t: usize| {
                            let at = t * width + self.out.start + head;
                            // SAFETY: each task has its own head's column (rules: widths, disjoint writes).
                            unsafe { &mut scores.part(at..at + 1)[0] }
                        };
                        let history = |layer: &RouterLayer| {
                            let n = layer.past() * layer.inputs;
                            // SAFETY: each task has its own head's history (rules: widths, bounds).
                            unsafe { state.tensor::<f32>(layer.state, head * n..(head + 1) * n) }
                        };
                        let chunk = Chunk {
                            buffers: frame.buffers,
                            tokens: frame.tokens.len(),
                            position: frame.position,
                        };
                        self.run_head(&chunk, head, &history, &row, &mut scratch);
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn access(&self) -> Access {
        // The window's scores are stored by a GPU's step; elsewhere, the attention behind stores them.
        Access::default()
            .reads([self.k, self.v])
            .state(self.layers.iter().map(|layer| layer.state))
            .state(self.window)
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.width("out", self.out, self.kv_heads);
        for layer in &self.layers {
            let shape = [self.kv_heads, layer.past(), layer.inputs].map(Some);
            rules.state(layer.state, &shape);
        }
    }

    fn scratch(&self, chunk: usize) -> usize {
        self.widest_input(chunk)
            + self
                .layers
                .iter()
                .map(|layer| chunk * layer.outputs)
                .max()
                .unwrap_or(0)
    }

    fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(|layer| layer.weight.len()).sum();
        (layers + self.weight.len()) * size_of::<f32>()
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        self.layers
            .iter()
            .map(|layer| Touched::whole(plan, layer.state))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{MANTISSA, rounded};

    #[test]
    fn a_rounded_score_is_the_nearest_of_its_bits() {
        let step = 0.5f32.powi(MANTISSA as i32);
        for sign in [1.0, -1.0] {
            let all = [
                (1.0, 1.0),
                (1.0 + step / 2.0, 1.0 + step),
                (1.0 + step / 2.1, 1.0),
            ];
            for (score, expected) in all {
                assert_eq!(rounded(sign * score), sign * expected);
                assert_eq!(rounded(sign * score / 1024.0), sign * expected / 1024.0);
            }
        }
        // The mantissa's carry, zero, and what is no number.
        assert_eq!(rounded(2.0 - step / 8.0), 2.0);
        assert_eq!(rounded(0.0).to_bits(), 0);
        assert_eq!(rounded(f32::from_bits(1)), 0.0);
        assert_eq!(rounded(f32::INFINITY), f32::INFINITY);
        assert!(rounded(f32::from_bits(u32::MAX)).is_nan());
        assert_eq!(rounded(rounded(0.3)), rounded(0.3));
    }

    /// Half of the scores are equal to others, as where a trained router's sigmoid saturates. Noise of two units in the last place
    /// decides between them, unless it is rounded away.
    #[test]
    fn noise_in_the_last_bits_seldom_changes_who_is_evicted() {
        const TOKENS: usize = 20_000;
        const CAPACITY: usize = 64;
        let mut random = fastrand::Rng::with_seed(7);
        let scores: Vec<f32> = (0..TOKENS)
            .map(|_| match random.bool() {
                true => 0.5 - random.u32(0..20) as f32 / 1024.0 / 3.0,
                false => random.f32() / 2.0 + 1e-3,
            })
            .collect();
        let noisy: Vec<f32> = scores
            .iter()
            .map(|score| f32::from_bits(score.to_bits() + random.u32(0..5) - 2))
            .collect();
        // Decisions of both on the sets of the first.
        let differing = |map: fn(f32) -> f32| {
            let (a, b) = (
                |token: usize| map(scores[token]),
                |token: usize| map(noisy[token]),
            );
            let mut set: Vec<usize> = (0..CAPACITY).collect();
            let mut differ = 0;
            for token in CAPACITY..TOKENS {
                let leaves = |score: &dyn Fn(usize) -> f32| {
                    let lowest = (0..CAPACITY).fold(0, |lowest, row| {
                        if score(set[row]) < score(set[lowest]) {
                            row
                        } else {
                            lowest
                        }
                    });
                    (score(set[lowest]) < score(token)).then_some(lowest)
                };
                let (ours, theirs) = (leaves(&a), leaves(&b));
                differ += usize::from(ours != theirs);
                if let Some(row) = ours {
                    set[row] = token;
                }
            }
            differ
        };
        let (plain, rounding) = (differing(|score| score), differing(rounded));
        println!("of {TOKENS} decisions {plain} differ, {rounding} with rounding");
        assert!(plain > TOKENS / 100, "{plain}: nothing is shown");
        assert!(rounding <= TOKENS / 1_000, "{rounding}");
    }
}
