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

mod cpu;
mod launch;

use serde::{Deserialize, Serialize};

use super::{Access, Op};
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

impl Op for Score {
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
