//! RWKV's channel mixing (arXiv 2503.14456; flash-linear-attention `models/rwkv7`): a feed-forward network on a mix of
//! each token with the previous one. It has a state and is therefore a mixer in a separate layer.
//!
//! ```text
//! y = W_v f(W_k (h + m (h_before - h)))     h: the normed input
//! y = sigmoid(W_r (h + m_r (h_before - h))) W_v f(...)     with a receptance, as in RWKV-6
//! ```
//! State: the last h.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::token_shift::token_shift;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::{RESIDUAL, View};
use crate::ops::{HeadGroup, HeadOp, Prepare, Project};
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
    /// The activation between them.
    pub activation: Activation,
    /// Whether a receptance gates the output.
    #[serde(default, skip_serializing_if = "is_false")]
    pub receptance: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl RwkvChannelMix {
    /// Adds the product of the value matrix and `inner`, gated by the receptance of `mixed`, to the residual stream.
    fn gated(&self, layer: &mut Lowering, inner: View, mixed: View) -> Result<()> {
        let maps = |view, maps| Prepare {
            groups: vec![HeadGroup::per_channel(view, None, maps)],
            rope: None,
            gates: Vec::new(),
        };
        let activated = vec![HeadOp::Activation(self.activation)];
        layer.push(maps(inner, activated));
        let linear = layer.linear("value", layer.plain_multiplier()?, 0)?;
        layer.wide_inputs(inner.width);
        let value = layer.buffer(layer.hidden());
        layer.push(Project::new(inner, None, vec![linear], value));
        let receptance = layer.project_from(mixed, None, &["receptance"])?[0];
        let sigmoid = vec![HeadOp::Activation(Activation::Sigmoid)];
        let share = vec![HeadOp::Multiply(value)];
        layer.push(maps(
            receptance,
            [sigmoid, share].into_iter().flatten().collect(),
        ));
        let residual = View::whole(RESIDUAL, layer.hidden());
        layer.push(maps(residual, vec![HeadOp::Add(receptance)]));
        Ok(())
    }
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
            &format!("{hidden} channels to at least one"),
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = vec![
            WeightSpec::full("x_k", &[hidden]),
            WeightSpec::matrix("key.weight", self.intermediate, hidden),
            WeightSpec::matrix("value.weight", hidden, self.intermediate),
        ];
        if self.receptance {
            weights.push(WeightSpec::full("x_r", &[hidden]));
            weights.push(WeightSpec::matrix("receptance.weight", hidden, hidden));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shift = StateTensor::new("shift", StateKind::Shift, StateDtype::F32, &[self.hidden]);
        vec![shift]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let names: &[&str] = if self.receptance {
            &["x_k", "x_r"]
        } else {
            &["x_k"]
        };
        let mixed = token_shift(layer, names, 0)?;
        let inner = layer.project_from(mixed[0], None, &["key"])?[0];
        if let Some(&mixed) = mixed.get(1) {
            return self.gated(layer, inner, mixed);
        }
        layer.emit(inner, vec![OutputOp::Map(self.activation)], "value")
    }
}
