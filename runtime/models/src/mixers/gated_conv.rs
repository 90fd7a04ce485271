//! Gated short convolution (LFM2; transformers `models/lfm2/modeling_lfm2.py`).
//!
//! With x the normed input, all of the residual stream's width:
//! ```text
//! B, C, u = W_in x (+ bias)
//! y       = W_out (C * conv(B * u)) (+ bias)      conv: causal, each channel by itself (+ bias), no activation
//! ```
//! State: the last `conv - 1` products `B * u`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer, short_conv};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::{Conv, HeadGroup, HeadOp, Prepare};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "gated_conv";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedConv {
    /// Channels; the width of the residual stream.
    pub channels: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Whether the projections and the convolution have a bias.
    pub bias: bool,
}

impl Mixer for GatedConv {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless(
            self.channels == hidden,
            || format!("{} channels", self.channels),
            &format!("the width {hidden} of the residual stream"),
        )?;
        short_conv::check(Some(self.conv))
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = vec![
            WeightSpec::matrix("in_proj.weight", 3 * hidden, hidden),
            WeightSpec::full("conv.weight", &[hidden, self.conv]),
            WeightSpec::matrix("out_proj.weight", hidden, hidden),
        ];
        if self.bias {
            weights.extend([
                WeightSpec::full("in_proj.bias", &[3 * hidden]),
                WeightSpec::full("conv.bias", &[hidden]),
                WeightSpec::full("out_proj.bias", &[hidden]),
            ]);
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.conv - 1, self.channels];
        vec![StateTensor::new(
            "conv",
            StateKind::Shift,
            StateDtype::F32,
            &shape,
        )]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let projected = layer.project(&["in_proj"])?[0];
        let (b, rest) = projected.split(self.channels);
        let (c, u) = rest.split(self.channels);
        let conv = Conv {
            gate: Some(b),
            ..Conv::new(
                &layer.vector("conv.weight")?,
                self.channels,
                layer.optional_vector("conv.bias")?,
                layer.state_tensor(0),
            )
        };
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(
                u,
                Some(conv),
                vec![HeadOp::Multiply(c)],
            )],
            rope: None,
            gates: Vec::new(),
        });
        layer.emit(u, Vec::new(), "out_proj")
    }
}
