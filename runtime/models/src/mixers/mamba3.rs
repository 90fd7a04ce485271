//! Mamba-3 with single inputs and outputs (arXiv 2603.15569; flash-linear-attention `layers/mamba3.py`).
//!
//! With u the normed input, per head (head h uses group `h / (heads / groups)` of b and c):
//! ```text
//! z, x, b, c, d, a, s, turn = W_in u
//! d       = softplus(d + dt_bias),  s = sigmoid(s),  a = -max(softplus(a), least_rate)
//! angle  <- angle + pi tanh(turn) d
//! b, c    = R(angle) (rms(b) + B_bias), R(angle) (rms(c) + C_bias)      R rotates the first pairs of values
//! S      <- e^(a d) (S + (1 - s) d b_before^T x_before) + s d b^T x     the trapezoidal rule
//! o       = c S + D x
//! y       = W_out (norm(o) silu(z))                                     the norm, of each head, is optional
//! ```
//! State: `[heads, state, head_dim]`, S without the last token's own term; that token's b, x and `s d`; the angles.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{
    Decay, Finish, Gate, HeadGates, HeadGroup, HeadOp, Key, Prepare, Recur, Trapezoid,
    TrapezoidOutputs, TrapezoidState, Write,
};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "mamba3";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba3 {
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share b and c.
    pub groups: usize,
    /// Rows of a head's state.
    pub state: usize,
    /// Pairs of these rows that rotate.
    pub pairs: usize,
    /// Whether the projections from and to the residual stream have a bias.
    pub bias: bool,
    /// Lower bound of the magnitude of the rate a.
    pub least_rate: f32,
    /// Whether the output is normalized.
    pub norm: bool,
    /// Epsilon of all norms.
    pub norm_eps: f32,
}

impl Mamba3 {
    fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    fn projected(&self) -> usize {
        2 * (self.inner() + self.groups * self.state) + 3 * self.heads + self.pairs
    }
}

impl Mixer for Mamba3 {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [
            self.heads,
            self.head_dim,
            self.groups,
            self.state,
            self.pairs,
        ];
        Mismatch::unless(
            dims.iter().all(|n| (1..1 << 20).contains(n)),
            || format!("{dims:?}"),
            "heads, widths, groups and pairs of one or more",
        )?;
        Mismatch::unless_shared(self.heads, "heads", self.groups, "group")?;
        Mismatch::unless(
            self.state.is_multiple_of(2) && 2 * self.pairs <= self.state,
            || format!("{} pairs of {} rows", self.pairs, self.state),
            "an even number of rows, and at most half as many pairs",
        )?;
        Mismatch::unless(
            self.least_rate >= 0.0,
            || format!("least_rate {}", self.least_rate),
            "0 or more",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (inner, heads, state) = (self.inner(), self.heads, self.state);
        let mut weights = vec![
            WeightSpec::matrix("in_proj.weight", self.projected(), hidden),
            WeightSpec::full("dt_bias", &[heads]),
            WeightSpec::full("B_norm.weight", &[state]),
            WeightSpec::full("C_norm.weight", &[state]),
            WeightSpec::full("B_bias", &[heads, state]),
            WeightSpec::full("C_bias", &[heads, state]),
            WeightSpec::full("D", &[heads]),
            WeightSpec::matrix("out_proj.weight", hidden, inner),
        ];
        if self.bias {
            weights.push(WeightSpec::full("in_proj.bias", &[self.projected()]));
            weights.push(WeightSpec::full("out_proj.bias", &[hidden]));
        }
        if self.norm {
            weights.push(WeightSpec::full("norm.weight", &[inner]));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let heads = self.heads;
        let tensor =
            |name, kind, shape: &[usize]| StateTensor::new(name, kind, StateDtype::F32, shape);
        let matrix = [heads, self.state, self.head_dim];
        vec![
            tensor("state", StateKind::Matrix, &matrix),
            tensor("angle", StateKind::Counter, &[heads, self.pairs]),
            tensor("key", StateKind::Shift, &[heads, self.state]),
            tensor("value", StateKind::Shift, &[heads, self.head_dim]),
            tensor("weight", StateKind::Shift, &[heads]),
        ]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let (heads, inner, shared) = (self.heads, self.inner(), self.groups * self.state);
        let projected = layer.project(&["in_proj"])?[0];
        let (z, rest) = projected.split(inner);
        let (x, rest) = rest.split(inner);
        let (b, rest) = rest.split(shared);
        let (c, rest) = rest.split(shared);
        let (step, rest) = rest.split(heads);
        let (rate, rest) = rest.split(heads);
        let (share, turn) = rest.split(heads);
        let step_gate = Gate::Step {
            bias: layer.vector("dt_bias")?,
            min: 0.0,
            max: f32::INFINITY,
        };
        let rate_gate = Gate::Decay {
            rate: vec![1.0; heads].into(),
            bias: vec![0.0; heads].into(),
        };
        let tanh = HeadOp::Activation(Activation::Tanh);
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(turn, None, vec![tanh])],
            rope: None,
            gates: vec![
                (step, step_gate),
                (rate, rate_gate),
                (share, Gate::Sigmoid { scale: 1.0 }),
            ],
        });

        let out = TrapezoidOutputs {
            q: layer.buffer(heads * self.state),
            key: layer.buffer(heads * self.state),
            value: layer.buffer(inner),
            decay: layer.buffer(heads),
            write: layer.buffer(heads),
            bonus: layer.buffer(inner),
        };
        let TrapezoidOutputs { q, key, value, .. } = out;
        let (decay, write, bonus) = (out.decay, out.write, out.bonus);
        layer.push(Trapezoid {
            heads,
            q: c,
            k: b,
            v: x,
            step,
            share,
            rate,
            turn,
            q_norm: Norm::rms(layer.vector("C_norm.weight")?, self.norm_eps),
            k_norm: Norm::rms(layer.vector("B_norm.weight")?, self.norm_eps),
            q_bias: layer.vector("C_bias")?,
            k_bias: layer.vector("B_bias")?,
            skip: layer.vector("D")?,
            least_rate: self.least_rate,
            state: TrapezoidState {
                angle: layer.state_tensor(1),
                key: layer.state_tensor(2),
                value: layer.state_tensor(3),
                weight: layer.state_tensor(4),
            },
            out,
        });
        let read = layer.buffer(inner);
        layer.push(Recur {
            heads,
            states: heads,
            dk: self.state,
            dv: self.head_dim,
            q,
            k: Key::View(key),
            v: value,
            decay: Decay::Head(decay),
            write: Write::Add,
            gates: Some(HeadGates { write, read: None }),
            scale: 1.0,
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out: read,
        });
        let mut finish = vec![OutputOp::Add(bonus, vec![1.0; inner].into())];
        if self.norm {
            let norm = Norm::rms(layer.vector("norm.weight")?, self.norm_eps);
            finish.push(OutputOp::GroupNorm(norm, heads));
        }
        finish.push(OutputOp::Gate(z, Activation::Silu));
        layer.emit(read, finish, "out_proj")
    }
}
