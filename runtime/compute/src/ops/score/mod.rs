//! The retention router of learnable token eviction (arXiv 2510.20787): a small stack of convolutions over the keys
//! (before rotary positions) and values of neighbouring tokens gives each token a score.
//!
//! The convolutions look `margin` tokens ahead, so the score of token p is known when token `p + margin` is read, and is needed
//! only when p leaves the window. Each layer keeps the inputs that its next output still needs: every token is scored once, at a
//! constant cost, whereas the reference periodically recomputes the entire window.

mod cpu;
mod launch;

use serde::{Deserialize, Serialize};

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// The map from the router's output z to a score; a token is a candidate if its score is above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreMap {
    /// `sigmoid(z) - 1/2`.
    Sigmoid,
    /// `max(z, 0)`.
    Relu,
}

/// One convolution over time, with zeros outside the sequence, then silu.
pub struct RouterLayer {
    /// `[groups, taps, inputs, outputs]`.
    pub weight: Vector,
    /// `[groups, outputs]`.
    pub bias: Vector,
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Width of the kernel.
    pub taps: usize,
    /// Distance between taps, in tokens.
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

    /// Number of earlier inputs that an output needs.
    fn past(&self) -> usize {
        (self.taps - 1) * self.dilation
    }

    /// Number of later tokens that an output reads: the centred kernel's right half.
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
    /// The convolutions. If there is one group, all heads share it; otherwise each head has a separate one.
    pub layers: Vec<RouterLayer>,
    /// `[groups, outputs of the last layer]`.
    pub weight: Vector,
    /// `[groups]`.
    pub bias: Vector,
    /// The map from the sum to the score.
    pub map: ScoreMap,
    /// Scores `[kv_heads]`.
    pub out: View,
    /// The state tensor of the window's scores `[kv_heads, rows]`, if retention keeps them there; `rows` exceeds `margin`.
    pub window: Option<usize>,
}

impl Op for Score {
    fn access(&self) -> Access {
        // On a GPU the step stores the window's scores; otherwise the next attention op stores them.
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
