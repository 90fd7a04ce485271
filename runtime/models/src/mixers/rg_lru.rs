//! Griffin's recurrent block (arXiv 2402.19427; transformers `models/recurrent_gemma`): a short convolution and the
//! real-gated linear recurrent unit, gated by a separate branch.
//!
//! With x the normed input, and heads of `width / heads` channels:
//! ```text
//! u     = conv(W_x x + b_x)                                  each channel by itself, with a bias
//! i, r  = sigmoid(u W_i + b_i), sigmoid(u W_r + b_r)         per head
//! log a = -8 r softplus(decay)
//! h    <- a h + sqrt(1 - a^2) i u                            at position 0 the root is one
//! y     = W_o (h gelu(W_y x + b_y)) + b_o
//! ```
//! State: `h [width]` and the last `conv - 1` inputs of the convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer, short_conv};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Conv, HeadGroup, HeadMatrices, Prepare};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "rg_lru";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RgLru {
    /// Channels.
    pub width: usize,
    /// Groups of channels with separate gates.
    pub heads: usize,
    /// Taps of the convolution.
    pub conv: usize,
}

/// Multiplies the softplus of the decay.
const STRENGTH: f32 = -8.0;

impl RgLru {
    fn gate(layer: &Lowering, name: &str) -> Result<HeadMatrices> {
        Ok(HeadMatrices {
            weight: layer.vector(&format!("{name}.weight"))?,
            bias: layer.vector(&format!("{name}.bias"))?,
        })
    }
}

impl Mixer for RgLru {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless_positive(
            &[self.width, self.heads],
            "at least one channel and one head",
        )?;
        Mismatch::unless_shared(self.width, "channels", self.heads, "head")?;
        short_conv::check(Some(self.conv))
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (width, heads) = (self.width, self.heads);
        let dim = width / heads;
        let mut weights = Vec::new();
        for name in ["x_proj", "y_proj"] {
            weights.push(WeightSpec::matrix(&format!("{name}.weight"), width, hidden));
            weights.push(WeightSpec::full(&format!("{name}.bias"), &[width]));
        }
        weights.push(WeightSpec::full("conv1d.weight", &[width, self.conv]));
        weights.push(WeightSpec::full("conv1d.bias", &[width]));
        for name in ["input_gate", "recurrence_gate"] {
            let weight = format!("{name}.weight");
            weights.push(WeightSpec::full(&weight, &[heads, dim, dim]));
            weights.push(WeightSpec::full(&format!("{name}.bias"), &[heads, dim]));
        }
        weights.push(WeightSpec::full("decay", &[width]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights.push(WeightSpec::full("o_proj.bias", &[hidden]));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let conv = [self.conv - 1, self.width];
        vec![
            StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &[self.width]),
            StateTensor::new("conv", StateKind::Shift, StateDtype::F32, &conv),
        ]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let views = layer.project(&["x_proj", "y_proj"])?;
        let conv = Conv::new(
            &layer.vector("conv1d.weight")?,
            self.width,
            Some(layer.vector("conv1d.bias")?),
            layer.state_tensor(1),
        );
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(views[0], Some(conv), Vec::new())],
            rope: None,
            gates: Vec::new(),
        });
        let softplus = |x: &f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let decay = layer.vector("decay")?;
        let out = layer.buffer(self.width);
        layer.push(crate::ops::RgLru {
            heads: self.heads,
            x: views[0],
            input: Self::gate(layer, "input_gate")?,
            recurrence: Self::gate(layer, "recurrence_gate")?,
            rate: decay.iter().map(|x| STRENGTH * softplus(x)).collect(),
            state: layer.state_tensor(0),
            out,
        });
        let gate = OutputOp::Gate(views[1], Activation::Gelu);
        layer.emit(out, vec![gate], "o_proj")
    }
}
