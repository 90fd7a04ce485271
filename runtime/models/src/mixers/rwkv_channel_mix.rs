//! RWKV's channel mixing (arXiv 2503.14456; flash-linear-attention `models/rwkv7`): a feed-forward network on a mix of
//! each token with the one before, which makes it a mixer with a state and a layer of its own.
//!
//! ```text
//! y = W_v f(W_k (h + m (h_before - h)))     h: the normed input
//! ```
//! State: the last h.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::token_shift::token_shift;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "rwkv_channel_mix";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RwkvChannelMix {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the two matrix products.
    pub intermediate: usize,
    /// The function between them.
    pub activation: Activation,
}

impl Mixer for RwkvChannelMix {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless(
            self.hidden == hidden && self.intermediate > 0,
            || format!("{} channels to {}", self.hidden, self.intermediate),
            &format!("{hidden} channels to one or more"),
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        vec![
            WeightSpec::full("x_k", &[hidden]),
            WeightSpec::matrix("key.weight", self.intermediate, hidden),
            WeightSpec::matrix("value.weight", hidden, self.intermediate),
        ]
    }

    fn state(&self) -> Vec<StateTensor> {
        let shift = StateTensor::new("shift", StateKind::Shift, StateDtype::F32, &[self.hidden]);
        vec![shift]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mixed = token_shift(layer, &["x_k"], 0)?;
        let inner = layer.project_from(mixed[0], None, &["key"])?[0];
        layer.emit(inner, vec![OutputOp::Map(self.activation)], "value")
    }
}
