//! RWKV-7's time mixing (arXiv 2503.14456; flash-linear-attention `layers/rwkv7.py`).
//!
//! With h the normed input, `x_c = h + m_c (h_before - h)` for c in r, w, k, v, a, g, per head:
//! ```text
//! r, k, v = W_r x_r, W_k x_k, W_v x_v
//! decay   = exp(-e^-1/2 sigmoid(lora_w x_w)),  a = sigmoid(lora_a x_a),  g = lora_g x_g
//! v      <- v + sigmoid(lora_v x_v) (v_first - v)         v_first: the first layer's v; not in that layer
//! n       = l2(k_k k);  k <- k (1 + k_a (a - 1))
//! S      <- diag(decay) S - (a n)^T (n S) + k^T v;  o = r S
//! y       = W_o (g (group_norm(o) + (sum r k r_k) v))
//! ```
//! A lora is two matrices, with tanh (w), sigmoid (g) or nothing (a, v) between them. ARWKV (arXiv 2501.15570) may lack the norm
//! of o and the gate g.
//! State: `S [heads, head_dim, value_dim]` and the last h.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::token_shift::token_shift;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    Decay, Finish, FirstValues, Gate, HeadGroup, HeadOp, Key, Prepare, Recur, Replace, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "rwkv7";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rwkv7 {
    /// Heads.
    pub heads: usize,
    /// Width of a key; the keys of all heads together are as wide as the residual stream.
    pub head_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Whether this is the layer whose values later layers mix in.
    pub first: bool,
    /// Rank of the decay's matrices.
    pub decay_rank: usize,
    /// Rank of the rate's matrices.
    pub rate_rank: usize,
    /// Rank of the value mix's matrices; not used by the first layer.
    pub value_rank: usize,
    /// Rank of the gate's matrices; `None` for no gate.
    pub gate_rank: Option<usize>,
    /// Epsilon of the removed key's norm.
    pub key_eps: f32,
    /// Epsilon of the output norm; `None` for no norm.
    pub norm_eps: Option<f32>,
}

const STATE: usize = 0;
const SHIFT: usize = 1;
const FIRST_VALUES: &str = "first values";

/// `-e^-1/2`: the logarithm of the fastest decay.
const FASTEST: f32 = -0.606_530_66;

impl Rwkv7 {
    fn value_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Names of the vectors that mix a token with the previous one, one per matrix.
    fn shifts(&self) -> Vec<&'static str> {
        let mut shifts = vec!["x_r", "x_w", "x_k", "x_v", "x_a"];
        shifts.extend(self.gate_rank.map(|_| "x_g"));
        shifts
    }

    /// The low-rank matrix pairs: name, rank, outputs, whether there is a bias.
    fn loras(&self) -> Vec<(&'static str, usize, usize, bool)> {
        let (keys, values) = (self.heads * self.head_dim, self.value_width());
        let mut loras = vec![
            ("w_lora", self.decay_rank, keys, true),
            ("a_lora", self.rate_rank, keys, true),
        ];
        loras.extend(self.gate_rank.map(|rank| ("g_lora", rank, values, false)));
        if !self.first {
            loras.push(("v_lora", self.value_rank, values, true));
        }
        loras
    }
}

/// Applies the second matrix of a lora to `inner`, the product of the first, after `activation` if there is one.
fn lora(
    layer: &mut Lowering,
    name: &str,
    inner: View,
    activation: Option<Activation>,
) -> Result<View> {
    if let Some(activation) = activation {
        let maps = vec![HeadOp::Activation(activation)];
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(inner, None, maps)],
            rope: None,
            gates: Vec::new(),
        });
    }
    Ok(layer.project_from(inner, None, &[&format!("{name}.lora.2")])?[0])
}

impl Mixer for Rwkv7 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        let ranks = self.loras();
        Mismatch::unless(
            self.value_dim > 0 && ranks.iter().all(|(_, rank, ..)| *rank > 0),
            || format!("values of {}, ranks {ranks:?}", self.value_dim),
            "widths and ranks of one or more",
        )?;
        Mismatch::unless(
            self.heads.checked_mul(self.head_dim) == Some(hidden),
            || format!("{} heads of {}", self.heads, self.head_dim),
            &format!("heads that together are as wide as the residual stream, {hidden}"),
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let values = self.value_width();
        let mut weights = vec![
            WeightSpec::matrix("r_proj.weight", hidden, hidden),
            WeightSpec::matrix("k_proj.weight", hidden, hidden),
            WeightSpec::matrix("v_proj.weight", values, hidden),
            WeightSpec::matrix("o_proj.weight", hidden, values),
        ];
        for name in self.shifts().into_iter().chain(["k_k", "k_a"]) {
            weights.push(WeightSpec::full(name, &[hidden]));
        }
        weights.push(WeightSpec::full("r_k", &[self.heads, self.head_dim]));
        for (name, rank, outputs, bias) in self.loras() {
            let parts = [(0, [rank, hidden]), (2, [outputs, rank])];
            for (i, shape) in parts {
                weights.push(WeightSpec::full(&format!("{name}.lora.{i}.weight"), &shape));
            }
            if bias {
                weights.push(WeightSpec::full(&format!("{name}.lora.2.bias"), &[outputs]));
            }
        }
        if self.norm_eps.is_some() {
            for name in ["g_norm.weight", "g_norm.bias"] {
                weights.push(WeightSpec::full(name, &[values]));
            }
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let (matrix, shift) = (
            [self.heads, self.head_dim, self.value_dim],
            [self.heads * self.head_dim],
        );
        vec![
            StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &matrix),
            StateTensor::new("shift", StateKind::Shift, StateDtype::F32, &shift),
        ]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mixed = token_shift(layer, &self.shifts(), SHIFT)?;
        let r = layer.project_from(mixed[0], None, &["r_proj"])?[0];
        let decay = layer.project_from(mixed[1], None, &["w_lora.lora.0"])?[0];
        let decay = lora(layer, "w_lora", decay, Some(Activation::Tanh))?;
        let k = layer.project_from(mixed[2], None, &["k_proj"])?[0];
        let rate = layer.project_from(mixed[4], None, &["a_lora.lora.0"])?[0];
        let rate = lora(layer, "a_lora", rate, None)?;
        let gate = match mixed.get(5) {
            Some(&mixed) => {
                let gate = layer.project_from(mixed, None, &["g_lora.lora.0"])?[0];
                Some(lora(layer, "g_lora", gate, Some(Activation::Sigmoid))?)
            }
            None => None,
        };
        let mut gates = vec![
            (decay, Gate::Sigmoid { scale: FASTEST }),
            (rate, Gate::Sigmoid { scale: 1.0 }),
        ];
        let (v, first) = if self.first {
            let v = layer.project_from(mixed[3], None, &["v_proj"])?[0];
            let first = layer.publish(FIRST_VALUES, self.value_width());
            (v, FirstValues::Keep(first))
        } else {
            let views = layer.project_from(mixed[3], None, &["v_proj", "v_lora.lora.0"])?;
            let mix = lora(layer, "v_lora", views[1], None)?;
            gates.push((mix, Gate::Sigmoid { scale: 1.0 }));
            let first = layer.published(FIRST_VALUES, self.value_width())?;
            (views[0], FirstValues::Mix { first, mix })
        };
        layer.push(Prepare {
            groups: Vec::new(),
            rope: None,
            gates,
        });
        let removal = layer.buffer(self.heads * self.head_dim);
        let bonus = layer.buffer(self.value_width());
        layer.push(Replace {
            heads: self.heads,
            r,
            k,
            v,
            rate,
            key_gain: layer.vector("k_k")?,
            rate_gain: layer.vector("k_a")?,
            bonus_gain: layer.vector("r_k")?,
            eps: self.key_eps,
            first,
            removal,
            bonus,
        });
        let out = layer.buffer(self.value_width());
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q: r,
            k: Key::View(k),
            v,
            decay: Decay::Key(decay),
            write: Write::Replace { key: removal, rate },
            gates: None,
            scale: 1.0,
            finish: Finish::default(),
            state: layer.state_tensor(STATE),
            out,
        });
        let mut finish = Vec::new();
        if let Some(eps) = self.norm_eps {
            let norm = Norm {
                centred: true,
                bias: Some(layer.vector("g_norm.bias")?),
                ..Norm::rms(layer.vector("g_norm.weight")?, eps)
            };
            finish.push(OutputOp::GroupNorm(norm, self.heads));
        }
        finish.push(OutputOp::Add(bonus, vec![1.0; self.value_width()].into()));
        finish.extend(gate.map(|gate| OutputOp::Gate(gate, Activation::Identity)));
        layer.emit(out, finish, "o_proj")
    }
}
