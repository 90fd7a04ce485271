//! RWKV-6's time mixing (arXiv 2404.05892; `modeling_rwkv6.py` of RWKV/rwkv-6-world; llama.cpp `src/models/rwkv6-base.cpp`).
//!
//! With h the normed input and `d = h_before - h`, per head:
//! ```text
//! x_c   = h + d (m_c + B_c tanh(A_c (h + d m_x)))         for c in w, k, v, r, g
//! r, k, v, g = W_r x_r, W_k x_k, W_v x_v, W_g x_g
//! decay = exp(-exp(lora_w x_w))                           lora_w: two matrices with tanh between them, and a bias
//! o     = r S + (sum r u k) v;  S <- diag(decay) S + k^T v
//! y     = W_o (silu(g) group_norm(o))
//! ```
//! A token reads the state before its own write. The recurrence op reads after the write, so it receives keys, values and decays
//! one token late, and the bonus adds the token's own term. State: `S [heads, head_dim, head_dim]`, the last h twice, the last
//! keys, values and decays.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    Conv, Decay, Finish, FirstValues, Gate, HeadGroup, HeadOp, Key, Prepare, Recur, Replace,
    TokenShift, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::{Vector, WeightSpec};

pub(super) const KIND: &str = "rwkv6";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rwkv6 {
    /// Heads.
    pub heads: usize,
    /// Width of a head; all heads together are as wide as the residual stream.
    pub head_dim: usize,
    /// Rank of the matrices that mix a token with the previous one.
    pub mix_rank: usize,
    /// Rank of the decay's matrices.
    pub decay_rank: usize,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

/// The mixed inputs; each has a vector `x_` and a matrix `mix_b.`.
const MIXED: [&str; 5] = ["w", "k", "v", "r", "g"];

const SHIFT: usize = 1;
const DIFFERENCE: usize = 2;
/// Index of the first of the state tensors of keys, values and decays.
const LATE: usize = 3;

impl Rwkv6 {
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Replaces each channel, in place, by `previous` times its value at the previous token plus `current` times its
    /// current value.
    fn with_previous(&self, view: View, [previous, current]: [f32; 2], tensor: usize) -> HeadGroup {
        let taps = [previous, current].repeat(view.width);
        let conv = Conv::new(&taps, view.width, None, tensor);
        HeadGroup::per_channel(view, Some(conv), Vec::new())
    }

    /// Computes the mixes of each token with the previous one.
    fn mixed(&self, layer: &mut Lowering) -> Result<Vec<View>> {
        let hidden = layer.hidden();
        let names = ["x_x", "x_w", "x_k", "x_v", "x_r", "x_g"];
        let mut mixes = names
            .iter()
            .map(|name| layer.vector(name))
            .collect::<Result<Vec<Vector>>>()?;
        mixes.push(vec![0.0; hidden].into());
        let out = layer.buffer(mixes.len() * hidden);
        let view = |i| View {
            start: i * hidden,
            width: hidden,
            ..out
        };
        let difference = view(mixes.len() - 1);
        layer.push(TokenShift {
            norm: layer.input_norm(),
            mixes,
            state: layer.state_tensor(SHIFT),
            out,
        });
        let tensor = layer.state_tensor(DIFFERENCE);
        layer.push(prepare(vec![self.with_previous(
            difference,
            [1.0, -1.0],
            tensor,
        )]));
        let inner = layer.project_from(view(0), None, &["mix_a"])?[0];
        let tanh = vec![HeadOp::Activation(Activation::Tanh)];
        layer.push(prepare(vec![HeadGroup::per_channel(inner, None, tanh)]));
        let names = MIXED.map(|name| format!("mix_b.{name}"));
        let part = |i| View {
            start: inner.start + i * self.mix_rank,
            width: self.mix_rank,
            ..inner
        };
        let pairs: Vec<(View, &str)> = (0..5).map(part).zip(names.iter().map(|n| &n[..])).collect();
        let mixed = layer.project_each(&pairs)?;
        let group = |(i, &mixed): (usize, &View)| {
            let maps = vec![HeadOp::Multiply(difference), HeadOp::Add(view(1 + i))];
            HeadGroup::per_channel(mixed, None, maps)
        };
        layer.push(prepare(mixed.iter().enumerate().map(group).collect()));
        Ok(mixed)
    }
}

/// An op over head groups, without positions and gates.
fn prepare(groups: Vec<HeadGroup>) -> Prepare {
    Prepare {
        groups,
        rope: None,
        gates: Vec::new(),
    }
}

impl Mixer for Rwkv6 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        let ranks = [self.mix_rank, self.decay_rank];
        Mismatch::unless_positive(&ranks, "ranks of one or more")?;
        Mismatch::unless(
            self.heads.checked_mul(self.head_dim) == Some(hidden),
            || format!("{} heads of {}", self.heads, self.head_dim),
            &format!("heads that together are as wide as the residual stream, {hidden}"),
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let projections = ["r_proj", "k_proj", "v_proj", "g_proj", "o_proj"];
        let matrix = |name| WeightSpec::matrix(&format!("{name}.weight"), hidden, hidden);
        let mut weights: Vec<WeightSpec> = projections.map(matrix).into();
        for name in ["x_x", "x_w", "x_k", "x_v", "x_r", "x_g"] {
            weights.push(WeightSpec::full(name, &[hidden]));
        }
        weights.push(WeightSpec::full(
            "mix_a.weight",
            &[5 * self.mix_rank, hidden],
        ));
        for name in MIXED {
            let shape = [hidden, self.mix_rank];
            weights.push(WeightSpec::full(&format!("mix_b.{name}.weight"), &shape));
        }
        weights.extend([
            WeightSpec::full("w_lora.0.weight", &[self.decay_rank, hidden]),
            WeightSpec::full("w_lora.2.weight", &[hidden, self.decay_rank]),
            WeightSpec::full("w_lora.2.bias", &[hidden]),
            WeightSpec::full("bonus", &[self.heads, self.head_dim]),
            WeightSpec::full("g_norm.weight", &[hidden]),
            WeightSpec::full("g_norm.bias", &[hidden]),
        ]);
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let (matrix, width) = ([self.heads, self.head_dim, self.head_dim], self.width());
        let shift = |name, shape: &[usize]| {
            StateTensor::new(name, StateKind::Shift, StateDtype::F32, shape)
        };
        vec![
            StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &matrix),
            shift("shift", &[width]),
            shift("difference", &[1, width]),
            shift("keys", &[1, width]),
            shift("values", &[1, width]),
            shift("decays", &[1, width]),
        ]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mixed = self.mixed(layer)?;
        let decay = layer.project_from(mixed[0], None, &["w_lora.0"])?[0];
        let tanh = vec![HeadOp::Activation(Activation::Tanh)];
        layer.push(prepare(vec![HeadGroup::per_channel(decay, None, tanh)]));
        let decay = layer.project_from(decay, None, &["w_lora.2"])?[0];
        let k = layer.project_from(mixed[1], None, &["k_proj"])?[0];
        let v = layer.project_from(mixed[2], None, &["v_proj"])?[0];
        let r = layer.project_from(mixed[3], None, &["r_proj"])?[0];
        let gate = layer.project_from(mixed[4], None, &["g_proj"])?[0];
        layer.push(Prepare {
            groups: Vec::new(),
            rope: None,
            gates: vec![(decay, Gate::Exponential)],
        });
        // Only the bonus of RWKV-7's key and value update is used.
        let constant = |value| Vector::from(vec![value; self.width()]);
        let [removal, bonus, first_value] = [(); 3].map(|()| layer.buffer(self.width()));
        layer.push(Replace {
            heads: self.heads,
            r,
            k,
            v,
            rate: r,
            key_gain: constant(1.0),
            rate_gain: constant(0.0),
            bonus_gain: layer.vector("bonus")?,
            eps: 1e-12,
            first: FirstValues::Keep(first_value),
            removal,
            bonus,
        });
        let late = [k, v, decay].into_iter().enumerate();
        let late = late.map(|(i, view)| {
            let tensor = layer.state_tensor(LATE + i);
            prepare(vec![self.with_previous(view, [1.0, 0.0], tensor)])
        });
        for op in late.collect::<Vec<_>>() {
            layer.push(op);
        }
        let out = layer.buffer(self.width());
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.head_dim,
            q: r,
            k: Key::View(k),
            v,
            decay: Decay::Key(decay),
            write: Write::Add,
            gates: None,
            scale: 1.0,
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let norm = Norm {
            centred: true,
            bias: Some(layer.vector("g_norm.bias")?),
            ..Norm::rms(layer.vector("g_norm.weight")?, self.norm_eps)
        };
        let finish = vec![
            OutputOp::Add(bonus, constant(1.0)),
            OutputOp::GroupNorm(norm, self.heads),
            OutputOp::Gate(gate, Activation::Silu),
        ];
        layer.emit(out, finish, "o_proj")
    }
}
