//! Gated linear attention with one gate for each head (flash-linear-attention `layers/simple_gla.py`).
//!
//! Like [`super::Gla`], but
//! ```text
//! a = exp(ln sigmoid(W_gk x + b) / 16)
//! ```
//! for each query head. State: `S [heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::linear_attention::LinearAttention;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::{Decay, Gate, Prepare};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "simple_gla";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimpleGla {
    /// Heads and widths.
    pub linear: LinearAttention,
    /// Divides the gate's logarithm.
    pub gate_normalizer: f32,
}

impl Mixer for SimpleGla {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.linear.check()
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let heads = self.linear.heads;
        let decay = vec![
            WeightSpec::full("gk_proj.weight", &[heads, hidden]),
            WeightSpec::full("gk_proj.bias", &[heads]),
        ];
        self.linear.weights(hidden, decay)
    }

    fn state(&self) -> Vec<StateTensor> {
        self.linear.tensors(self.linear.heads)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let gate = Gate::LogSigmoid {
            scale: 1.0 / self.gate_normalizer,
            min: f32::NEG_INFINITY,
        };
        let heads = self.linear.heads;
        self.linear
            .lower(layer, heads, None, None, &["gk_proj"], |layer, views| {
                layer.push(Prepare {
                    groups: Vec::new(),
                    rope: None,
                    gates: vec![(views[0], gate)],
                });
                Ok(Decay::Head(views[0]))
            })
    }
}
