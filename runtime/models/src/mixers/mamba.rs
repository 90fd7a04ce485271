//! Mamba (arXiv 2312.00752; flash-linear-attention `layers/mamba.py`, transformers `models/mamba`).
//!
//! With u the normed input and x, z of `inner` channels each:
//! ```text
//! x, z    = W_in u;  x <- silu(conv(x))
//! r, b, c = W_x x                                    [rank], [state], [state]
//! r, b, c <- rms(r), rms(b), rms(c)                  (optional)
//! step    = softplus(W_dt r + dt_bias)               [inner]
//! h[n]   <- exp(step A[n]) h[n] + step x b[n]        A is negative
//! y       = W_out ((sum_n c[n] h[n] + D x) silu(z))
//! ```
//! State: `h [state, inner]` and the last `conv - 1` inputs of the convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Hax, Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Conv, HeadGroup, HeadOp, Prepare, Scan};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "mamba";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba {
    /// Channels.
    pub inner: usize,
    /// State values per channel.
    pub state: usize,
    /// Width from which the step sizes are projected.
    pub rank: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projections from and to the residual stream have a bias.
    pub bias: bool,
    /// Epsilon of the norms of r, b and c (Falcon-Mamba, Jamba); `None` for no norms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_eps: Option<f32>,
    /// Whether these norms have gains.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub norm_gains: bool,
    /// Sparse attention in parallel with the scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hax: Option<Hax>,
}

impl Mamba {
    /// Normalizes the parameters r, b and c, if the model does.
    fn norm(&self, layer: &mut Lowering, parameters: [(&str, View); 3]) -> Result<()> {
        let Some(eps) = self.norm_eps else {
            return Ok(());
        };
        let mut groups = Vec::new();
        for (name, view) in parameters {
            let gains = if self.norm_gains {
                layer.vector(&format!("{name}.weight"))?
            } else {
                vec![1.0; view.width].into()
            };
            groups.push(HeadGroup {
                view,
                head_dim: view.width,
                conv: None,
                maps: vec![HeadOp::Rms(Norm::rms(gains, eps))],
            });
        }
        layer.push(Prepare {
            groups,
            rope: None,
            gates: Vec::new(),
        });
        Ok(())
    }
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
        if self.norm_eps.is_some() && self.norm_gains {
            let norms = [("dt_norm", rank), ("b_norm", state), ("c_norm", state)];
            let gains = |(name, width)| WeightSpec::full(&format!("{name}.weight"), &[width]);
            weights.extend(norms.map(gains));
        }
        if let Some(hax) = &self.hax {
            weights.extend(hax.weights(self.state, inner));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let state = [self.state, self.inner];
        let conv = [self.conv - 1, self.inner];
        let mut tensors = vec![
            StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &state),
            StateTensor::new("conv", StateKind::Shift, StateDtype::F32, &conv),
        ];
        if let Some(hax) = &self.hax {
            tensors.extend(hax.tensors(self.state, self.inner));
        }
        tensors
    }

    fn note(&self) -> Option<String> {
        self.hax.as_ref()?.note()
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let Mamba {
            inner, state, rank, ..
        } = *self;
        let both = layer.project(&["in_proj"])?[0];
        let (x, z) = both.split(inner);
        let conv = Conv::new(
            &layer.vector("conv1d.weight")?,
            inner,
            layer.optional_vector("conv1d.bias")?,
            layer.state_tensor(1),
        );
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(
                x,
                Some(conv),
                vec![HeadOp::Activation(Activation::Silu)],
            )],
            rope: None,
            gates: Vec::new(),
        });
        let parameters = layer.project_from(x, None, &["x_proj"])?[0];
        let (low, rest) = parameters.split(rank);
        let (b, c) = rest.split(state);
        self.norm(layer, [("dt_norm", low), ("b_norm", b), ("c_norm", c)])?;
        let step = layer.project_from(low, None, &["dt_proj"])?[0];

        let a = layer.vector("A")?;
        let rate = |i: usize| a[i % inner * state + i / inner];
        let out = layer.buffer(inner);
        layer.push(Scan {
            x,
            step,
            b,
            c,
            rate: (0..state * inner).map(rate).collect(),
            state: layer.state_tensor(0),
            out,
        });
        let mut finish = vec![OutputOp::Add(x, layer.vector("D")?)];
        if let Some(hax) = &self.hax {
            finish.push(hax.lower(layer, x, state, 2)?);
        }
        finish.push(OutputOp::Gate(z, Activation::Silu));
        layer.emit(out, finish, "out_proj")
    }
}
