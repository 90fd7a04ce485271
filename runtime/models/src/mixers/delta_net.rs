//! DeltaNet (arXiv 2406.06484; flash-linear-attention `layers/delta_net.py`).
//!
//! With x the normed input, per head:
//! ```text
//! q, k = norm(activation(conv(W_q x))), norm(activation(conv(W_k x)))    norm: l2, or division by the sum
//! v    = silu(conv(W_v x))                                                convolutions optional
//! beta = sigmoid(W_b x), doubled where negative eigenvalues are allowed
//! S <- S + k^T beta (v - k S);  o = head_dim^-1/2 q S
//! y  = W_o (rms(o) silu(W_g x))                                           gate optional
//! ```
//! State: `S [heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Decay, Finish, Gate, HeadOp, Key, Prepare, Recur, Write};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "delta_net";

/// How queries and keys are normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyNorm {
    /// To unit length.
    L2,
    /// To absolute values that sum to one.
    Sum,
}

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Heads.
    pub heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the short convolutions; `None` for no convolutions.
    pub conv: Option<usize>,
    /// Activation of queries and keys; `None` for no activation.
    pub activation: Option<Activation>,
    /// The norm of queries and keys.
    pub key_norm: KeyNorm,
    /// Whether the write strength is learned; otherwise it is 1.
    pub beta: bool,
    /// Whether the output is gated.
    pub gate: bool,
    /// Whether the write strength is doubled.
    pub negative_eigenvalues: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl DeltaNet {
    fn branches(&self) -> [Branch; 3] {
        short_conv::qkv([self.heads; 3], self.head_dim, self.value_dim)
    }
}

impl Mixer for DeltaNet {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        if self.beta {
            weights.push(WeightSpec::full("b_proj.weight", &[self.heads, hidden]));
        }
        let width = self.heads * self.value_dim;
        if self.gate {
            weights.push(WeightSpec::matrix("g_proj.weight", width, hidden));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.heads, self.head_dim, self.value_dim];
        short_conv::matrix_tensors(shape, &self.branches(), self.conv)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mut names = vec!["q_proj", "k_proj", "v_proj"];
        names.extend(self.beta.then_some("b_proj"));
        names.extend(self.gate.then_some("g_proj"));
        let views = layer.project(&names)?;
        let mut groups = Vec::new();
        for (i, branch) in self.branches().iter().enumerate() {
            let maps = match i {
                2 => vec![HeadOp::Activation(Activation::Silu)],
                _ => {
                    let mut maps: Vec<_> = self
                        .activation
                        .map(HeadOp::Activation)
                        .into_iter()
                        .collect();
                    maps.push(match self.key_norm {
                        KeyNorm::L2 => HeadOp::L2Norm,
                        KeyNorm::Sum => HeadOp::SumNorm,
                    });
                    maps
                }
            };
            groups.push(branch.group(layer, views[i], 1 + i, maps)?);
        }
        let scale = if self.negative_eigenvalues { 2.0 } else { 1.0 };
        let (beta, strength) = if self.beta {
            (views[3], Gate::Sigmoid { scale })
        } else {
            (
                layer.buffer(self.heads),
                Gate::Constant(vec![scale; self.heads].into()),
            )
        };
        layer.push(Prepare {
            groups,
            rope: None,
            gates: vec![(beta, strength)],
        });
        let out = layer.buffer(self.heads * self.value_dim);
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q: views[0],
            k: Key::View(views[1]),
            v: views[2],
            decay: Decay::None,
            write: Write::Delta(beta),
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let mut finish = vec![output_norm(layer, self.norm_eps)?];
        if self.gate {
            finish.push(OutputOp::Gate(views[views.len() - 1], Activation::Silu));
        }
        layer.emit(out, finish, "o_proj")
    }
}
