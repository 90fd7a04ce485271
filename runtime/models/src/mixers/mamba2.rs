//! Mamba-2 (arXiv 2405.21060; flash-linear-attention `layers/mamba2.py`, transformers `models/mamba2`).
//!
//! With u the normed input, per head (head h uses group `h / (heads / groups)` of b and c):
//! ```text
//! z, xbc, s = W_in u;  x, b, c = silu(conv(xbc))     [heads, head_dim], [groups, state], [groups, state]
//! step      = softplus(s + dt_bias), clamped         [heads]
//! S        <- exp(step A) S + b^T step x             A is negative
//! o         = c S + D x
//! y         = W_out rms(o silu(z))                   the norm in groups of channels
//! ```
//! State: `S [heads, state, head_dim]` and the last `conv - 1` inputs of the convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Hax, Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    Conv, Decay, Finish, Gate, HeadGates, HeadGroup, HeadOp, Key, Prepare, Recur, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::{Vector, WeightSpec};

pub(super) const KIND: &str = "mamba2";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share b and c.
    pub groups: usize,
    /// Rows of a head's state.
    pub state: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections from and to the residual stream have a bias.
    pub bias: bool,
    /// Whether D has a value for each channel instead of each head.
    pub skip_per_channel: bool,
    /// Groups of channels in which the output is normalized; `None` for no norm.
    pub norm_groups: Option<usize>,
    /// Whether the output is normalized before it is gated.
    pub norm_before_gate: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
    /// Smallest step.
    pub step_min: f32,
    /// Largest step; `None` for no bound.
    pub step_max: Option<f32>,
    /// Whether the projection to the residual stream has a bias; `None` for the value of `bias`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_bias: Option<bool>,
    /// Multipliers of z, x, b, c and the step after projection and bias; `None` for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multipliers: Option<[f32; 5]>,
    /// Sparse attention in parallel with the scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hax: Option<Hax>,
}

impl Mamba2 {
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    fn convolved(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    fn projected(&self) -> usize {
        self.inner() + self.convolved() + self.heads
    }

    /// D, expanded to one value per channel.
    fn skip(&self, layer: &Lowering) -> Result<Vector> {
        let skip = layer.vector("D")?;
        let channels = self.inner() / skip.len();
        Ok((0..self.inner()).map(|i| skip[i / channels]).collect())
    }
}

impl Mixer for Mamba2 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim, self.groups, self.state];
        Mismatch::unless(
            dims.iter().all(|n| (1..1 << 20).contains(n)),
            || format!("{dims:?}"),
            "heads, widths and groups of one or more",
        )?;
        Mismatch::unless(
            self.heads.is_multiple_of(self.groups),
            || format!("{} heads in {} groups", self.heads, self.groups),
            "a whole number of heads in each group",
        )?;
        let parts = self.norm_groups;
        Mismatch::unless(
            parts.is_none_or(|n| n > 0 && self.inner().is_multiple_of(n)),
            || format!("a norm over {parts:?} parts of {} channels", self.inner()),
            "equal parts",
        )?;
        Mismatch::unless(
            self.step_max.is_none_or(|max| self.step_min <= max) && self.step_min >= 0.0,
            || format!("steps from {} to {:?}", self.step_min, self.step_max),
            "a smallest step of at least 0, then the largest step",
        )?;
        Mismatch::unless(
            (1..=64).contains(&self.conv),
            || format!("conv {}", self.conv),
            "1 to 64 taps",
        )?;
        let multipliers = self.multipliers.unwrap_or([1.0; 5]);
        Mismatch::unless(
            multipliers.iter().all(|x| x.is_finite()),
            || format!("multipliers {multipliers:?}"),
            "finite multipliers",
        )?;
        self.hax.as_ref().map_or(Ok(()), Hax::check)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (inner, heads) = (self.inner(), self.heads);
        let skip = if self.skip_per_channel { inner } else { heads };
        let mut weights = vec![
            WeightSpec::matrix("in_proj.weight", self.projected(), hidden),
            WeightSpec::full("conv1d.weight", &[self.convolved(), self.conv]),
            WeightSpec::full("dt_bias", &[heads]),
            WeightSpec::full("A", &[heads]),
            WeightSpec::full("D", &[skip]),
            WeightSpec::matrix("out_proj.weight", hidden, inner),
        ];
        if self.norm_groups.is_some() {
            weights.push(WeightSpec::full("norm.weight", &[inner]));
        }
        if self.conv_bias {
            weights.push(WeightSpec::full("conv1d.bias", &[self.convolved()]));
        }
        if self.bias {
            weights.push(WeightSpec::full("in_proj.bias", &[self.projected()]));
        }
        if self.out_bias.unwrap_or(self.bias) {
            weights.push(WeightSpec::full("out_proj.bias", &[hidden]));
        }
        if let Some(hax) = &self.hax {
            weights.extend(hax.weights(self.state, inner));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let state = [self.heads, self.state, self.head_dim];
        let conv = [self.conv - 1, self.convolved()];
        let mut tensors = vec![
            StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &state),
            StateTensor::new("conv", StateKind::Shift, StateDtype::F32, &conv),
        ];
        if let Some(hax) = &self.hax {
            tensors.extend(hax.tensors(self.state, self.inner()));
        }
        tensors
    }

    fn note(&self) -> Option<String> {
        self.hax.as_ref()?.note()
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let shared = self.groups * self.state;
        let first = match self.multipliers {
            None => layer.project(&["in_proj"])?[0],
            Some([z, x, b, c, step]) => {
                let inner = self.inner();
                let sections = [
                    (inner, z),
                    (inner, x),
                    (shared, b),
                    (shared, c),
                    (self.heads, step),
                ];
                layer.project_sections("in_proj", &sections)?[0]
            }
        };
        let projected = View {
            width: self.projected(),
            ..first
        };
        let (z, rest) = projected.split(self.inner());
        let (xbc, step) = rest.split(self.convolved());
        let (x, bc) = xbc.split(self.inner());
        let (b, c) = bc.split(shared);
        let conv = Conv::new(
            &layer.vector("conv1d.weight")?,
            self.convolved(),
            layer.optional_vector("conv1d.bias")?,
            layer.state_tensor(1),
        );
        let gate = Gate::Step {
            bias: layer.vector("dt_bias")?,
            min: self.step_min,
            max: self.step_max.unwrap_or(f32::INFINITY),
        };
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(
                xbc,
                Some(conv),
                vec![HeadOp::Activation(Activation::Silu)],
            )],
            rope: None,
            gates: vec![(step, gate)],
        });

        // The recurrence gates its own columns once; in the output projection, every thread block of a GPU would repeat the gate.
        let gates_first = self.hax.is_none() && !self.norm_before_gate;
        let rate = layer.vector("A")?;
        let out = layer.buffer(self.inner());
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.state,
            dv: self.head_dim,
            q: c,
            k: Key::View(b),
            v: x,
            decay: Decay::Step(step, rate),
            write: Write::Add,
            gates: Some(HeadGates {
                write: step,
                read: None,
            }),
            scale: 1.0,
            finish: Finish {
                skip: Some(self.skip(layer)?),
                gate: gates_first.then_some((z, Activation::Silu)),
            },
            state: layer.state_tensor(0),
            out,
        });

        let mut finish = Vec::new();
        if let Some(hax) = &self.hax {
            finish.push(hax.lower(layer, x, self.state, 2)?);
        }
        let gate = (!gates_first).then_some(OutputOp::Gate(z, Activation::Silu));
        let norm = match self.norm_groups {
            Some(groups) => Some(OutputOp::GroupNorm(
                Norm::rms(layer.vector("norm.weight")?, self.norm_eps),
                groups,
            )),
            None => None,
        };
        if self.norm_before_gate {
            finish.extend(norm.into_iter().chain(gate));
        } else {
            finish.extend(gate.into_iter().chain(norm));
        }
        layer.emit(out, finish, "out_proj")
    }
}
