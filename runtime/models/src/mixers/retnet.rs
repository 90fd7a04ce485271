//! Retention (arXiv 2307.08621; flash-linear-attention `layers/multiscale_retention.py`).
//!
//! With x the normed input, per head (head h uses key and value head `h / (heads / kv_heads)`):
//! ```text
//! q, k, v = W_q x, W_k x, W_v x;  q, k <- feature map (optional);  q, k <- rotary(position)
//! S <- (1 - 2^(-5 - h)) S + k^T v;  o = head_dim^-1/2 q S
//! y  = W_o (rms(o) silu(W_g x))
//! ```
//! State: `S [heads, head_dim, value_dim]`: heads that share keys decay at different rates.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::linear_attention::LinearAttention;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::Decay;
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "retnet";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetNet {
    /// Heads and widths.
    pub linear: LinearAttention,
    /// Base of the rotary positions.
    pub rope_theta: f32,
}

impl Mixer for RetNet {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.linear.check()?;
        Mismatch::unless_base(Some(self.rope_theta))?;
        Mismatch::unless(
            self.linear.head_dim.is_multiple_of(2),
            || format!("rotary positions on {} values", self.linear.head_dim),
            "an even head width",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        self.linear.weights(hidden, Vec::new())
    }

    fn state(&self) -> Vec<StateTensor> {
        self.linear.tensors(self.linear.heads)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let heads = self.linear.heads;
        let decay = |head| (-(-5.0 - head as f64).exp2()).ln_1p() as f32;
        let decay = Decay::Fixed((0..heads).map(decay).collect());
        let theta = Some(self.rope_theta);
        self.linear
            .lower(layer, heads, theta, None, &[], |_, _| Ok(decay))
    }
}
