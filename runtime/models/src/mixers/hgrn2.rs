//! HGRN2 (arXiv 2404.07904; flash-linear-attention `layers/hgrn2.py`).
//!
//! With x the normed input and L the layer's lower bound (zero in the first layer), per head:
//! ```text
//! q, f, v = silu(conv(W_q x)), conv(W_f x), conv(W_i x)     convolutions optional
//! a  = L + (1 - L) sigmoid(f)                               [head_dim]
//! S <- diag(a) S + (1 - a)^T v;  o = head_dim^-1/2 q S
//! y  = W_o rms(o)                                           over all heads, epsilon 1e-5
//! ```
//! Row-sparse updates (optional; arXiv 2507.16577, section 10, where MetaLA couples decay and key in this way): `a = 1`
//! except in the `written` smallest values of each head, so that a token changes only these rows. The lower row wins a tie.
//!
//! State: `S [heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::Lowering;
use crate::ops::{Decay, Finish, Gate, HeadGroup, HeadOp, Key, Prepare, Recur, Write};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "hgrn2";

/// Epsilon of the output norm; the reference uses this default regardless of its configuration.
const NORM_EPS: f32 = 1e-5;

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hgrn2 {
    /// Heads.
    pub heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the short convolutions; `None` for no convolutions.
    pub conv: Option<usize>,
    /// Whether the decays have a lower bound.
    pub lower_bound: bool,
    /// Rows of the state that a token writes and decays; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<usize>,
}

impl Hgrn2 {
    fn branches(&self) -> [Branch; 3] {
        let branch = |projection, conv, head_dim| Branch {
            projection,
            conv,
            head_dim,
            heads: self.heads,
        };
        [
            branch("q_proj", "q_conv1d", self.head_dim),
            branch("f_proj", "f_conv1d", self.head_dim),
            branch("i_proj", "i_conv1d", self.value_dim),
        ]
    }
}

impl Mixer for Hgrn2 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless(
            self.written
                .is_none_or(|n| (1..=self.head_dim).contains(&n)),
            || format!("{:?} rows written of {}", self.written, self.head_dim),
            "at least one row and at most all of them",
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        if self.lower_bound {
            let width = self.heads * self.head_dim;
            weights.push(WeightSpec::full("lower_bound", &[width]));
        }
        let width = self.heads * self.value_dim;
        weights.push(WeightSpec::full("o_norm.weight", &[width]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.heads, self.head_dim, self.value_dim];
        short_conv::matrix_tensors(shape, &self.branches(), self.conv)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let branches = self.branches();
        let views = layer.project(&branches.each_ref().map(|branch| branch.projection))?;
        let (q, f, v) = (views[0], views[1], views[2]);
        let mut groups = Vec::new();
        for (i, branch) in branches.iter().enumerate() {
            let maps = match i {
                0 => vec![HeadOp::Activation(Activation::Silu)],
                _ => Vec::new(),
            };
            if self.conv.is_some() || !maps.is_empty() {
                groups.push(branch.group(layer, views[i], 1 + i, maps)?);
            }
        }
        let decay = if self.lower_bound {
            Gate::LowerBound(layer.vector("lower_bound")?)
        } else {
            Gate::LogSigmoid {
                scale: 1.0,
                min: f32::NEG_INFINITY,
            }
        };
        layer.push(Prepare {
            groups,
            rope: None,
            gates: vec![(f, decay)],
        });
        if let Some(count) = self.written {
            // `f` holds logarithms of decays: the largest magnitudes are the smallest decays, and zero means no decay.
            layer.push(Prepare {
                groups: vec![HeadGroup {
                    view: f,
                    head_dim: self.head_dim,
                    conv: None,
                    maps: vec![HeadOp::Largest(count)],
                }],
                rope: None,
                gates: Vec::new(),
            });
        }
        let out = layer.buffer(self.heads * self.value_dim);
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::Complement,
            v,
            decay: Decay::Key(f),
            write: Write::Add,
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let norm = output_norm(layer, NORM_EPS)?;
        layer.emit(out, vec![norm], "o_proj")
    }
}
