//! Gated slot attention (arXiv 2409.07146; flash-linear-attention `layers/gsa.py`), including the form of transformers
//! that were fine-tuned to it.
//!
//! With x the normed input, per head (head h uses the keys, values and slots of head `h / (heads / kv_heads)`):
//! ```text
//! q, k, v = W_q x, W_k x, W_v x;  each silu(conv(.)) (optional)
//! q, k <- feature map;  v <- silu(v)                silu, relu, or relu(W .) with one W for q, k and all heads
//! s  = 1 - sigmoid(W_f x)^(1 / normalizer)           [slots]
//! K <- K diag(1 - s) + k^T s;  V <- diag(1 - s) V + s^T v;  o = softmax(q K) V
//! y  = W_o rms(silu(o))                              over all heads, epsilon 1e-5
//! ```
//! Ablations of the paper's Table 2 (optional): `silu(q K)`, `relu(q K)`, `relu(q K)^2` or `q K` in place of the softmax; one
//! learned number `b` per slot in place of `W_f x`, so that the decay does not depend on the data.
//!
//! Row-sparse updates (optional; arXiv 2507.16577, equations 7 and 8): `s = 0` except in its `written` largest values,
//! so that a token changes only these slots. The lower slot wins a tie.
//!
//! The scores are not scaled. State: `K [kv_heads, head_dim, slots]`, `V [kv_heads, slots, value_dim]` and the last
//! `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Gate, HeadGroup, HeadOp, Prepare, Slots};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "gsa";

/// Epsilon of the output norm; the reference uses this default regardless of its configuration.
const NORM_EPS: f32 = 1e-5;

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gsa {
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
    /// Activation of queries and keys, after the learned matrix if there is one.
    pub feature_map: Activation,
    /// Whether a learned matrix comes before the feature map.
    pub learned_map: bool,
    /// Taps of the short convolutions, which end in silu; `None` for neither convolution nor silu.
    pub conv: Option<usize>,
    /// Divides the logarithm of the slots' decay.
    pub gate_normalizer: f32,
    /// Slots that a token writes and decays; `None` for all.
    #[serde(default)]
    pub written: Option<usize>,
    /// Function applied to each score, in place of the softmax over the slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Activation>,
    /// Whether the decay of the slots is a learned constant instead of computed from the input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed_decay: bool,
}

impl Gsa {
    fn branches(&self) -> [Branch; 3] {
        let heads = [self.heads, self.kv_heads, self.kv_heads];
        short_conv::qkv(heads, self.head_dim, self.value_dim)
    }
}

/// Checks the numbers of heads, the widths of keys and values, and the numbers of slots and of slots that a token writes.
pub(super) fn check_slots(
    [heads, kv_heads]: [usize; 2],
    widths: [usize; 2],
    [slots, written]: [usize; 2],
) -> Result<(), Mismatch> {
    let dims = [heads, kv_heads, widths[0], widths[1], slots];
    Mismatch::unless_positive(&dims, "heads, widths and slots of one or more")?;
    Mismatch::unless_shared(heads, "heads", kv_heads, "key and value head")?;
    Mismatch::unless(
        (1..=slots).contains(&written),
        || format!("{written} slots written of {slots}"),
        "at least one slot and at most all of them",
    )
}

/// The state tensors of keys and values over `slots` slots.
pub(super) fn slots(
    heads: usize,
    slots: usize,
    head_dim: usize,
    value_dim: usize,
) -> [StateTensor; 2] {
    let matrix = |name, shape: [usize; 3]| {
        StateTensor::new(name, StateKind::Matrix, StateDtype::F32, &shape)
    };
    [
        matrix("keys", [heads, head_dim, slots]),
        matrix("values", [heads, slots, value_dim]),
    ]
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Mixer for Gsa {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let written = self.written.unwrap_or(self.slots);
        check_slots(
            [self.heads, self.kv_heads],
            [self.head_dim, self.value_dim],
            [self.slots, written],
        )?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = short_conv::weights(&self.branches(), hidden, self.conv, false);
        let gates = self.kv_heads * self.slots;
        weights.push(if self.fixed_decay {
            WeightSpec::full("f_proj.bias", &[gates])
        } else {
            WeightSpec::full("f_proj.weight", &[gates, hidden])
        });
        if self.learned_map {
            let square = [self.head_dim; 2];
            weights.push(WeightSpec::full("feature_map.layer.weight", &square));
        }
        let width = self.heads * self.value_dim;
        weights.push(WeightSpec::full("o_norm.weight", &[width]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let mut all = Vec::from(slots(
            self.kv_heads,
            self.slots,
            self.head_dim,
            self.value_dim,
        ));
        all.extend(short_conv::tensors(&self.branches(), self.conv));
        all
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mut names = vec!["q_proj", "k_proj", "v_proj"];
        names.extend((!self.fixed_decay).then_some("f_proj"));
        let views = layer.project(&names)?;
        let (q, k, v) = (views[0], views[1], views[2]);
        let scale = 1.0 / self.gate_normalizer;
        let (weights, gate) = match views.get(3) {
            Some(view) => (*view, Gate::Forget { scale }),
            None => {
                let learned = layer.vector("f_proj.bias")?;
                let strengths = learned.iter().map(|b| 1.0 - sigmoid(*b).powf(scale));
                let view = layer.buffer(self.kv_heads * self.slots);
                (view, Gate::Constant(strengths.collect()))
            }
        };
        let mut groups = Vec::new();
        for (i, branch) in self.branches().iter().enumerate() {
            let silu = HeadOp::Activation(Activation::Silu);
            let mut maps: Vec<_> = self.conv.map(|_| silu).into_iter().collect();
            if i < 2 {
                if self.learned_map {
                    maps.push(HeadOp::Linear(layer.vector("feature_map.layer.weight")?));
                }
                maps.push(HeadOp::Activation(self.feature_map));
            } else {
                maps.push(HeadOp::Activation(Activation::Silu));
            }
            groups.push(branch.group(layer, views[i], 2 + i, maps)?);
        }
        layer.push(Prepare {
            groups,
            rope: None,
            gates: vec![(weights, gate)],
        });
        if let Some(count) = self.written {
            layer.push(Prepare {
                groups: vec![HeadGroup {
                    view: weights,
                    head_dim: self.slots,
                    conv: None,
                    maps: vec![HeadOp::Largest(count)],
                }],
                rope: None,
                gates: Vec::new(),
            });
        }
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
            scores: self.scores,
            keys: layer.state_tensor(0),
            values: layer.state_tensor(1),
            out,
        });
        let norm = output_norm(layer, NORM_EPS)?;
        let silu = OutputOp::Map(Activation::Silu);
        layer.emit(out, vec![silu, norm], "o_proj")
    }
}
