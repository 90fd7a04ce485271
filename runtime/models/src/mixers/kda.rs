//! Kimi delta attention (arXiv 2510.26692; flash-linear-attention `layers/kda.py`): Gated DeltaNet with a decay for each
//! key channel.
//!
//! With x the normed input, per value head (value head h uses query and key head `h / (value_heads / heads)`):
//! ```text
//! q, k = l2(silu(conv(W_q x))), l2(silu(conv(W_k x)))    [head_dim]
//! v    = silu(conv(W_v x))                                [value_dim]
//! beta = sigmoid(W_b x), doubled where negative eigenvalues are allowed
//! z    = W_f2 W_f1 x + dt_bias, or W_f x + dt_bias        [head_dim]
//! a    = exp(-exp(A_log) softplus(z)), or exp(bound sigmoid(exp(A_log) z)) where the decay is bounded
//! S   <- diag(a) S;  S <- S + k^T beta (v - k S);  o = head_dim^-1/2 q S
//! y    = W_o (rms(o) sigmoid(W_g2 W_g1 x + b)), or with W_g x
//! ```
//! Ling 3.0 (transformers `models/bailing_hybrid`) uses the full-rank matrices and the bounded decay.
//! State: `S [value_heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Decay, Finish, Gate, Key, Prepare, Recur, Write};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "kda";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kda {
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
    /// Whether the write strength ranges up to 2.
    pub negative_eigenvalues: bool,
    /// Lower bound of a decay's logarithm; `None` for no bound.
    pub decay_bound: Option<f32>,
    /// Whether the output gate has a bias b.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub gate_bias: bool,
    /// Whether the decay and the output gate have one matrix each instead of two of low rank.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full_rank: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Kda {
    fn branches(&self) -> [Branch; 3] {
        let heads = [self.heads, self.heads, self.value_heads];
        short_conv::qkv(heads, self.head_dim, self.value_dim)
    }
}

impl Mixer for Kda {
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
        Mismatch::unless(
            self.decay_bound.is_none_or(|bound| bound < 0.0),
            || format!("decay_bound {:?}", self.decay_bound),
            "a logarithm below zero",
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        let (rank, decays) = (self.value_dim, self.value_heads * self.head_dim);
        let width = self.value_heads * self.value_dim;
        weights.extend([
            WeightSpec::full("b_proj.weight", &[self.value_heads, hidden]),
            WeightSpec::full("A_log", &[self.value_heads]),
            WeightSpec::full("dt_bias", &[decays]),
            WeightSpec::full("o_norm.weight", &[self.value_dim]),
            WeightSpec::matrix("o_proj.weight", hidden, width),
        ]);
        let gate = if self.full_rank {
            weights.push(WeightSpec::matrix("f_proj.weight", decays, hidden));
            weights.push(WeightSpec::matrix("g_proj.weight", width, hidden));
            "g_proj"
        } else {
            weights.extend([
                WeightSpec::full("f_proj.0.weight", &[rank, hidden]),
                WeightSpec::full("f_proj.1.weight", &[decays, rank]),
                WeightSpec::matrix("g_proj.0.weight", rank, hidden),
                WeightSpec::matrix("g_proj.1.weight", width, rank),
            ]);
            "g_proj.1"
        };
        if self.gate_bias {
            weights.push(WeightSpec::full(&format!("{gate}.bias"), &[width]));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.value_heads, self.head_dim, self.value_dim];
        short_conv::matrix_tensors(shape, &self.branches(), self.conv)
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let [f, g] = if self.full_rank {
            ["f_proj", "g_proj"]
        } else {
            ["f_proj.0", "g_proj.0"]
        };
        let views = layer.project(&["q_proj", "k_proj", "v_proj", "b_proj", f, g])?;
        let (beta, mut decay, mut gate) = (views[3], views[4], views[5]);
        if !self.full_rank {
            decay = layer.project_from(decay, None, &["f_proj.1"])?[0];
            gate = layer.project_from(gate, None, &["g_proj.1"])?[0];
        }

        let groups = short_conv::unit_qkv(layer, &self.branches(), &views, 1)?;
        let rates = layer.vector("A_log")?;
        let rate = rates
            .iter()
            .flat_map(|a| std::iter::repeat_n(a.exp(), self.head_dim))
            .collect();
        let bias = layer.vector("dt_bias")?;
        let decay_gate = match self.decay_bound {
            Some(bound) => Gate::BoundedDecay { rate, bias, bound },
            None => Gate::Decay { rate, bias },
        };
        let scale = if self.negative_eigenvalues { 2.0 } else { 1.0 };
        layer.push(Prepare {
            groups,
            rope: None,
            gates: vec![(decay, decay_gate), (beta, Gate::Sigmoid { scale })],
        });
        let out = layer.buffer(self.value_heads * self.value_dim);
        layer.push(Recur {
            heads: self.value_heads,
            states: self.value_heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q: views[0],
            k: Key::View(views[1]),
            v: views[2],
            decay: Decay::Key(decay),
            write: Write::Delta(beta),
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
