//! Gated linear attention (arXiv 2312.06635; flash-linear-attention `layers/gla.py`).
//!
//! With x the normed input, per head (head h uses the keys, values and gate of head `h / (heads / kv_heads)`):
//! ```text
//! q, k, v = W_q x, W_k x, W_v x;  each silu(conv(.)) (optional);  q, k <- feature map (optional)
//! a  = exp(max(ln sigmoid(W_2 W_1 x + b) / 16, min))       [head_dim]
//! S <- diag(a) S + k^T v;  o = head_dim^-1/2 q S
//! y  = W_o (rms(o) silu(W_g x))
//! ```
//! Row-sparse updates (optional; arXiv 2507.16577, equations 7 and 8): k becomes the softmax over its `written` largest
//! values and zero elsewhere, and `a = 1` where k is zero, so that a token changes only these rows. The lower row wins a
//! tie.
//!
//! State: `S [kv_heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution. Heads that share keys
//! share their state, unless the heads are weighted (see `head_gates`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::linear_attention::LinearAttention;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::{Decay, Gate, Prepare};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "gla";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gla {
    /// Heads and widths.
    pub linear: LinearAttention,
    /// Width between the two matrices of the gate.
    pub gate_rank: usize,
    /// Divides the gate's logarithm.
    pub gate_normalizer: f32,
    /// Lower bound of the gate's logarithm, if any.
    pub gate_min: Option<f32>,
    /// Rows of the state that a token writes and decays; `None` for all.
    #[serde(default)]
    pub written: Option<usize>,
}

impl Gla {
    fn states(&self) -> usize {
        match self.linear.head_gates {
            Some(_) => self.linear.heads,
            None => self.linear.kv_heads,
        }
    }
}

impl Mixer for Gla {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.linear.check()?;
        let rows = self.linear.head_dim;
        Mismatch::unless(
            self.written.is_none_or(|n| (1..=rows).contains(&n)),
            || format!("{:?} rows written of {rows}", self.written),
            "at least one row and at most all of them",
        )?;
        Mismatch::unless(
            self.gate_rank > 0,
            || "gate_rank 0".into(),
            "a rank of one or more",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let width = self.linear.kv_heads * self.linear.head_dim;
        let decay = vec![
            WeightSpec::full("gk_proj.0.weight", &[self.gate_rank, hidden]),
            WeightSpec::full("gk_proj.1.weight", &[width, self.gate_rank]),
            WeightSpec::full("gk_proj.1.bias", &[width]),
        ];
        self.linear.weights(hidden, decay)
    }

    fn state(&self) -> Vec<StateTensor> {
        self.linear.tensors(self.states())
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let gate = Gate::LogSigmoid {
            scale: 1.0 / self.gate_normalizer,
            min: self.gate_min.unwrap_or(f32::NEG_INFINITY),
        };
        let names = ["gk_proj.0"];
        self.linear.lower(
            layer,
            self.states(),
            None,
            self.written,
            &names,
            |layer, views| {
                let decay = layer.project_from(views[0], None, &["gk_proj.1"])?[0];
                layer.push(Prepare {
                    groups: Vec::new(),
                    rope: None,
                    gates: vec![(decay, gate)],
                });
                Ok(Decay::Key(decay))
            },
        )
    }
}
