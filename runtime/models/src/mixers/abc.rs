//! Attention with bounded-memory control (arXiv 2110.02488; flash-linear-attention `layers/abc.py`).
//!
//! With x the normed input, per head:
//! ```text
//! q, k, v = W_q x, W_k x, W_v x;  each silu(conv(.)) (optional);  q, k <- rotary(position) (optional)
//! c  = clamp(W_s x, min, max)                                     [slots]
//! s  = e^c_t / sum_{j<=t} e^c_j                                   weight of the token in a softmax over time
//! K <- K diag(1 - s) + k^T s;  V <- diag(1 - s) V + s^T v;  o = softmax(head_dim^-1/2 q K) V
//! y  = W_o (rms(o) silu(W_g x))
//! ```
//! State: `K [heads, head_dim, slots]`, `V [heads, slots, value_dim]`, the largest exponent of each softmax over time
//! and the sum relative to it, and the last `conv - 1` inputs of each convolution. (The reference does not store the
//! sum, so its decoding differs from its prefill; this code follows its prefill.)

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, gsa, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Gate, HeadOp, Prepare, Rope, Slots};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "abc";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abc {
    /// Heads.
    pub heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Slots of a head.
    pub slots: usize,
    /// Taps of the short convolutions, which end in silu; `None` for neither convolution nor silu.
    pub conv: Option<usize>,
    /// Base of the rotary positions; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Lower bound of a write's exponent, if any.
    pub min: Option<f32>,
    /// Upper bound of a write's exponent, if any.
    pub max: Option<f32>,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl Abc {
    fn branches(&self) -> [Branch; 3] {
        short_conv::qkv([self.heads; 3], self.head_dim, self.value_dim)
    }
}

impl Mixer for Abc {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless_base(self.rope_theta)?;
        let dims = [self.heads, self.head_dim, self.value_dim, self.slots];
        Mismatch::unless_positive(
            &dims,
            "positive numbers of heads and slots, and positive widths",
        )?;
        Mismatch::unless(
            self.rope_theta.is_none() || self.head_dim.is_multiple_of(2),
            || format!("rotary positions on {} values", self.head_dim),
            "an even number of values",
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        let width = self.heads * self.value_dim;
        weights.extend([
            WeightSpec::full("s_proj.weight", &[self.heads * self.slots, hidden]),
            WeightSpec::matrix("g_proj.weight", width, hidden),
            WeightSpec::full("o_norm.weight", &[self.value_dim]),
            WeightSpec::matrix("o_proj.weight", hidden, width),
        ]);
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let slots = gsa::slots(self.heads, self.slots, self.head_dim, self.value_dim);
        let shape = [2, self.heads * self.slots];
        let sums = StateTensor::new("sums", StateKind::Counter, StateDtype::F32, &shape);
        let mut all = Vec::from(slots);
        all.push(sums);
        all.extend(short_conv::tensors(&self.branches(), self.conv));
        all
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let views = layer.project(&["q_proj", "k_proj", "v_proj", "s_proj", "g_proj"])?;
        let (q, k, v, weights, gate) = (views[0], views[1], views[2], views[3], views[4]);
        let mut groups = Vec::new();
        for (i, branch) in self.branches().iter().enumerate() {
            let silu = HeadOp::Activation(Activation::Silu);
            let mut maps: Vec<_> = self.conv.map(|_| silu).into_iter().collect();
            if i < 2 {
                maps.extend(self.rope_theta.map(|_| HeadOp::Rope));
            }
            if !maps.is_empty() {
                groups.push(branch.group(layer, views[i], 3 + i, maps)?);
            }
        }
        let clamp = [
            self.min.unwrap_or(f32::NEG_INFINITY),
            self.max.unwrap_or(f32::INFINITY),
        ];
        let state = layer.state_tensor(2);
        let rope = self
            .rope_theta
            .map(|theta| Rope::new(theta, None, layer.buffer(self.head_dim)));
        layer.push(Prepare {
            groups,
            rope,
            gates: vec![(weights, Gate::RunningSoftmax { clamp, state })],
        });
        let out = layer.buffer(self.heads * self.value_dim);
        layer.push(Slots {
            heads: self.heads,
            kv_heads: self.heads,
            slots: self.slots,
            q,
            k,
            v,
            weights,
            scale: (self.head_dim as f32).powf(-0.5),
            scores: None,
            keys: layer.state_tensor(0),
            values: layer.state_tensor(1),
            out,
        });
        let norm = output_norm(layer, self.norm_eps)?;
        let gate = OutputOp::Gate(gate, Activation::Silu);
        layer.emit(out, vec![norm, gate], "o_proj")
    }
}
