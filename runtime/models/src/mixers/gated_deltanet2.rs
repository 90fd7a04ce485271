//! Gated DeltaNet-2 (arXiv 2605.22791; flash-linear-attention `layers/gdn2.py`): separate gates per channel for erasing
//! and writing.
//!
//! With x the normed input, per value head (value head h uses key head `h / (value_heads / heads)`):
//! ```text
//! q, k = l2(silu(conv(W_q x))), l2(silu(conv(W_k x)))    [head_dim]
//! v    = silu(conv(W_v x))                                [value_dim]
//! b, w = sigmoid(W_b x), sigmoid(W_w x)                   [head_dim], [value_dim]; b doubled where negative
//!                                                         eigenvalues are allowed
//! a    = exp(-exp(A_log) softplus(W_f2 W_f1 x + dt_bias)) [head_dim]
//! S   <- diag(a) S;  S <- S + k^T ((w v) - (b k) S);  o = head_dim^-1/2 q S
//! y    = W_o (rms(o) sigmoid(W_g2 W_g1 x + bias))
//! ```
//! State: `S [value_heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Decay, Finish, Gate, HeadGroup, HeadOp, Key, Prepare, Recur, Write};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "gated_deltanet2";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDeltaNet2 {
    /// Query and key heads.
    pub heads: usize,
    /// Value heads, a multiple of `heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the short convolutions; `None` for silu only.
    pub conv: Option<usize>,
    /// Whether the convolutions have a bias.
    pub conv_bias: bool,
    /// Whether the erase gate ranges up to 2.
    pub negative_eigenvalues: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl GatedDeltaNet2 {
    fn branches(&self) -> [Branch; 3] {
        let heads = [self.heads, self.heads, self.value_heads];
        short_conv::qkv(heads, self.head_dim, self.value_dim)
    }

    /// The logarithm of the decay `[heads, head_dim]`.
    fn decay(&self, layer: &Lowering) -> Result<Gate> {
        let rates = layer.vector("A_log")?;
        let per_channel = |a: &f32| std::iter::repeat_n(a.exp(), self.head_dim);
        Ok(Gate::Decay {
            rate: rates.iter().flat_map(per_channel).collect(),
            bias: layer.vector("dt_bias")?,
        })
    }
}

impl Mixer for GatedDeltaNet2 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.value_heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless_shared(self.value_heads, "value heads", self.heads, "head")?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let branches = self.branches();
        let (keys, values) = (branches[1].width(), branches[2].width());
        let rank = self.value_dim;
        let mut weights = short_conv::weights(&branches, hidden, self.conv, self.conv_bias);
        weights.extend([
            WeightSpec::matrix("b_proj.weight", keys, hidden),
            WeightSpec::matrix("w_proj.weight", values, hidden),
            WeightSpec::full("f_proj.0.weight", &[rank, hidden]),
            WeightSpec::full("f_proj.1.weight", &[keys, rank]),
            WeightSpec::full("A_log", &[self.heads]),
            WeightSpec::full("dt_bias", &[keys]),
            WeightSpec::matrix("g_proj.0.weight", rank, hidden),
            WeightSpec::matrix("g_proj.1.weight", values, rank),
            WeightSpec::full("g_proj.1.bias", &[values]),
            WeightSpec::full("o_norm.weight", &[self.value_dim]),
            WeightSpec::matrix("o_proj.weight", hidden, values),
        ]);
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.value_heads, self.head_dim, self.value_dim];
        short_conv::matrix_tensors(shape, &self.branches(), self.conv)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let names = [
            "q_proj", "k_proj", "v_proj", "b_proj", "w_proj", "f_proj.0", "g_proj.0",
        ];
        let views = layer.project(&names)?;
        let (q, k, v, erase, write) = (views[0], views[1], views[2], views[3], views[4]);
        let decay = layer.project_from(views[5], None, &["f_proj.1"])?[0];
        let gate = layer.project_from(views[6], None, &["g_proj.1"])?[0];

        let groups = short_conv::unit_qkv(layer, &self.branches(), &views, 1)?;
        let scale = if self.negative_eigenvalues { 2.0 } else { 1.0 };
        let gates = vec![
            (decay, self.decay(layer)?),
            (erase, Gate::Sigmoid { scale }),
            (write, Gate::Sigmoid { scale: 1.0 }),
        ];
        layer.push(Prepare {
            groups,
            rope: None,
            gates,
        });
        let times = |view: View, head_dim: usize, factor: View| HeadGroup {
            view,
            head_dim,
            conv: None,
            maps: vec![HeadOp::Multiply(factor)],
        };
        layer.push(Prepare {
            groups: vec![
                times(erase, self.head_dim, k),
                times(v, self.value_dim, write),
            ],
            rope: None,
            gates: Vec::new(),
        });
        let out = layer.buffer(self.value_heads * self.value_dim);
        layer.push(Recur {
            heads: self.value_heads,
            states: self.value_heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::View(k),
            v,
            decay: Decay::Key(decay),
            write: Write::Erase { key: erase },
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let norm = output_norm(layer, self.norm_eps)?;
        let gate = OutputOp::Gate(gate, Activation::Sigmoid);
        layer.emit(out, vec![norm, gate], "o_proj")
    }
}
