//! Raven (flash-linear-attention `layers/raven.py`): slot attention in which a router chooses the slots that a token writes.
//!
//! With x the normed input, per head (head h uses the keys, values and slots of head `h / (heads / kv_heads)`):
//! ```text
//! q, k = rms(f(W_q x)), rms(f(W_k x))               f: silu, relu, or relu(W .); rotary positions (optional)
//! v    = silu(W_v x)
//! r    = sigmoid(W_r x), zero except its `written` largest, divided by their sum; or softmax(W_r x), not divided   [slots]
//! g    = -exp(A_log) softplus(W_a x + dt_bias)       one for each head; or ln sigmoid(W_f x) / normalizer            [slots]
//! s    = 1 - exp(g r)
//! K <- K diag(1 - s) + k^T s;  V <- diag(1 - s) V + s^T v;  o = softmax(q K) V
//! y    = W_o rms(silu(o))  over all heads;  or W_o (rms(silu(o)) silu(W_g x)), the norm per head
//! ```
//! The lower slot wins a tie. The scores are not scaled. State: `K [kv_heads, head_dim, slots]`, `V [kv_heads, slots, value_dim]`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer, gsa, output_norm};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Gate, HeadGroup, HeadOp, Prepare, Rope, Slots};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "raven";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raven {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Slots of a key and value head.
    pub slots: usize,
    /// Slots that a token writes.
    pub written: usize,
    /// Whether the router's scores are a softmax over the slots, instead of sigmoids divided by the chosen ones' sum.
    pub softmax_router: bool,
    /// Activation of queries and keys, after the learned matrix if there is one.
    pub feature_map: Activation,
    /// Whether a learned matrix comes before the feature map.
    pub learned_map: bool,
    /// Divides the logarithm of a decay per slot; `None` for one decay per head.
    pub slot_decay: Option<f32>,
    /// Base of the rotary positions; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Whether the output is gated.
    pub gate: bool,
    /// Epsilon of all norms.
    pub norm_eps: f32,
}

impl Raven {
    /// Columns of queries, keys and values.
    fn widths(&self) -> [usize; 3] {
        [
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.kv_heads * self.value_dim,
        ]
    }
}

impl Mixer for Raven {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless_base(self.rope_theta)?;
        gsa::check_slots(
            [self.heads, self.kv_heads],
            [self.head_dim, self.value_dim],
            [self.slots, self.written],
        )?;
        Mismatch::unless(
            self.rope_theta.is_none() || self.head_dim.is_multiple_of(2),
            || format!("rotary positions on {} values", self.head_dim),
            "an even number of values",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let [q, k, v] = self.widths();
        let (slots, heads) = (self.kv_heads * self.slots, self.kv_heads);
        let width = self.heads * self.value_dim;
        let mut weights = vec![
            WeightSpec::matrix("q_proj.weight", q, hidden),
            WeightSpec::matrix("k_proj.weight", k, hidden),
            WeightSpec::matrix("v_proj.weight", v, hidden),
            WeightSpec::full("r_proj.weight", &[slots, hidden]),
            WeightSpec::full("q_norm.weight", &[self.head_dim]),
            WeightSpec::full("k_norm.weight", &[self.head_dim]),
        ];
        if self.learned_map {
            let square = [self.head_dim; 2];
            weights.push(WeightSpec::full("feature_map.layer.weight", &square));
        }
        if self.slot_decay.is_some() {
            weights.push(WeightSpec::full("f_proj.weight", &[slots, hidden]));
        } else {
            weights.extend([
                WeightSpec::full("a_proj.weight", &[heads, hidden]),
                WeightSpec::full("A_log", &[heads]),
                WeightSpec::full("dt_bias", &[heads]),
            ]);
        }
        if self.gate {
            weights.extend([
                WeightSpec::matrix("o_gate_proj.weight", width, hidden),
                WeightSpec::full("o_norm.weight", &[self.value_dim]),
            ]);
        } else {
            weights.push(WeightSpec::full("o_norm.weight", &[width]));
        }
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        gsa::slots(self.kv_heads, self.slots, self.head_dim, self.value_dim).into()
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let decay = if self.slot_decay.is_some() {
            "f_proj"
        } else {
            "a_proj"
        };
        let mut names = vec!["q_proj", "k_proj", "v_proj", "r_proj", decay];
        names.extend(self.gate.then_some("o_gate_proj"));
        let views = layer.project(&names)?;
        let (q, k, v, weights, decay) = (views[0], views[1], views[2], views[3], views[4]);
        let group = |view, head_dim, maps| HeadGroup {
            view,
            head_dim,
            conv: None,
            maps,
        };
        let mut groups = Vec::new();
        for (view, norm) in [(q, "q_norm.weight"), (k, "k_norm.weight")] {
            let mut maps = Vec::new();
            if self.learned_map {
                maps.push(HeadOp::Linear(layer.vector("feature_map.layer.weight")?));
            }
            maps.push(HeadOp::Activation(self.feature_map));
            maps.push(HeadOp::Rms(Norm::rms(layer.vector(norm)?, self.norm_eps)));
            maps.extend(self.rope_theta.map(|_| HeadOp::Rope));
            groups.push(group(view, self.head_dim, maps));
        }
        let silu = HeadOp::Activation(Activation::Silu);
        groups.push(group(v, self.value_dim, vec![silu]));
        let gate = match self.slot_decay {
            Some(normalizer) => Gate::LogSigmoid {
                scale: 1.0 / normalizer,
                min: f32::NEG_INFINITY,
            },
            None => Gate::Decay {
                rate: layer.vector("A_log")?.iter().map(|a| a.exp()).collect(),
                bias: layer.vector("dt_bias")?,
            },
        };
        let rope = self
            .rope_theta
            .map(|theta| Rope::new(theta, None, layer.buffer(self.head_dim)));
        layer.push(Prepare {
            groups,
            rope,
            gates: vec![(decay, gate)],
        });
        let largest = HeadOp::Largest(self.written);
        let mut maps = if self.softmax_router {
            vec![HeadOp::Softmax, largest]
        } else {
            let sigmoid = HeadOp::Activation(Activation::Sigmoid);
            vec![sigmoid, largest, HeadOp::SumNorm]
        };
        maps.push(if self.slot_decay.is_some() {
            HeadOp::Multiply(decay)
        } else {
            HeadOp::Weigh(decay)
        });
        maps.push(HeadOp::WriteStrength);
        layer.push(Prepare {
            groups: vec![group(weights, self.slots, maps)],
            rope: None,
            gates: Vec::new(),
        });
        let out = layer.buffer(self.heads * self.value_dim);
        layer.push(Slots {
            heads: self.heads,
            kv_heads: self.kv_heads,
            slots: self.slots,
            q,
            k,
            v,
            weights,
            scale: 1.0,
            scores: None,
            keys: layer.state_tensor(0),
            values: layer.state_tensor(1),
            out,
        });
        let silu = OutputOp::Map(Activation::Silu);
        let mut end = vec![silu, output_norm(layer, self.norm_eps)?];
        end.extend((views.get(5)).map(|gate| OutputOp::Gate(*gate, Activation::Silu)));
        layer.emit(out, end, "o_proj")
    }
}
