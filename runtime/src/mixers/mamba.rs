//! Mamba (arXiv 2312.00752; flash-linear-attention `layers/mamba.py`, transformers `models/mamba`).
//!
//! With u the normed input and x, z of `inner` channels each:
//! ```text
//! x, z    = W_in u;  x <- silu(conv(x))
//! r, b, c = W_x x                                    [rank], [state], [state]
//! step    = softplus(W_dt r + dt_bias)               [inner]
//! h[n]   <- exp(step A[n]) h[n] + step x b[n]        A is negative
//! y       = W_out ((sum_n c[n] h[n] + D x) silu(z))
//! ```
//! State: `h [state, inner]` and the last `conv - 1` inputs of the convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Hax, Mismatch, Mixer};
use crate::error::Result;
use crate::ops::{Activation, Conv, Finish, Lane, Map, Prepare, Scan};
use crate::program::Lowering;
use crate::spec::WeightSpec;
use crate::state::{SlotDtype, SlotKind, SlotSpec};

pub(super) const KIND: &str = "mamba";

/// Its numbers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba {
    /// Channels.
    pub inner: usize,
    /// Values of state of each channel.
    pub state: usize,
    /// Width from which the step sizes are projected.
    pub rank: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections from and to the residual stream have a bias.
    pub bias: bool,
    /// Sparse attention beside the scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hax: Option<Hax>,
}

impl Mixer for Mamba {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.inner, self.state, self.rank];
        Mismatch::unless(
            dims.iter().all(|n| (1..1 << 24).contains(n)),
            || format!("{dims:?}"),
            "channels, state and rank of one or more",
        )?;
        Mismatch::unless(
            (1..=64).contains(&self.conv),
            || format!("conv {}", self.conv),
            "1 to 64 taps",
        )?;
        self.hax.as_ref().map_or(Ok(()), Hax::check)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let Mamba {
            inner, state, rank, ..
        } = *self;
        let mut weights = vec![
            WeightSpec::matrix("in_proj.weight", 2 * inner, hidden),
            WeightSpec::full("conv1d.weight", &[inner, self.conv]),
            WeightSpec::matrix("x_proj.weight", rank + 2 * state, inner),
            WeightSpec::matrix("dt_proj.weight", inner, rank),
            WeightSpec::full("dt_proj.bias", &[inner]),
            WeightSpec::full("A", &[inner, state]),
            WeightSpec::full("D", &[inner]),
            WeightSpec::matrix("out_proj.weight", hidden, inner),
        ];
        if self.conv_bias {
            weights.push(WeightSpec::full("conv1d.bias", &[inner]));
        }
        if self.bias {
            weights.push(WeightSpec::full("in_proj.bias", &[2 * inner]));
            weights.push(WeightSpec::full("out_proj.bias", &[hidden]));
        }
        if let Some(hax) = &self.hax {
            weights.extend(hax.weights(self.state, inner));
        }
        weights
    }

    fn slots(&self) -> Vec<SlotSpec> {
        let state = [self.state, self.inner];
        let conv = [self.conv - 1, self.inner];
        let mut slots = vec![
            SlotSpec::new("state", SlotKind::Matrix, SlotDtype::F32, &state),
            SlotSpec::new("conv", SlotKind::Shift, SlotDtype::F32, &conv),
        ];
        if let Some(hax) = &self.hax {
            slots.extend(hax.slots(self.state, self.inner));
        }
        slots
    }

    fn lower(&self, block: &mut Lowering) -> Result<()> {
        let Mamba {
            inner, state, rank, ..
        } = *self;
        let both = block.project(&["in_proj"])?[0];
        let (x, z) = both.split(inner);
        let conv = Conv::new(
            &block.vector("conv1d.weight")?,
            inner,
            block.optional_vector("conv1d.bias")?,
            block.slot(1),
        );
        block.push(Prepare {
            lanes: vec![Lane::of_channels(
                x,
                Some(conv),
                vec![Map::Activation(Activation::Silu)],
            )],
            rope: None,
            gates: Vec::new(),
        });
        let parameters = block.project_from(x, None, &["x_proj"])?[0];
        let (low, rest) = parameters.split(rank);
        let (b, c) = rest.split(state);
        let step = block.project_from(low, None, &["dt_proj"])?[0];

        let a = block.vector("A")?;
        let rate = |i: usize| a[i % inner * state + i / inner];
        let out = block.buffer(inner);
        block.push(Scan {
            x,
            step,
            b,
            c,
            rate: (0..state * inner).map(rate).collect(),
            slot: block.slot(0),
            out,
        });
        let mut finish = vec![Finish::Add(x, block.vector("D")?)];
        if let Some(hax) = &self.hax {
            finish.push(hax.lower(block, x, state, 2)?);
        }
        finish.push(Finish::Gate(z, Activation::Silu));
        block.emit(out, finish, "out_proj")
    }
}
