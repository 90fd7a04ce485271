//! Gated DeltaNet (arXiv 2412.06464; flash-linear-attention `layers/gated_deltanet.py`).
//!
//! With x the normed input, per value head (value head h uses key head `h / (value_heads / heads)`):
//! ```text
//! q, k = l2(silu(conv(W_q x))), l2(silu(conv(W_k x)))    [head_dim]
//! v    = silu(conv(W_v x))                                [value_dim]
//! beta = sigmoid(W_b x), doubled where negative eigenvalues are allowed
//! a    = exp(-exp(A_log) softplus(W_a x + dt_bias))
//! S   <- a S;  S <- S + k^T beta (v - k S);  o = head_dim^-1/2 q S
//! y    = W_o (rms(o) silu(W_g x))
//! ```
//! State: `S [value_heads, head_dim, value_dim]`, split into tensors `[heads, head_dim, value_dim]` where value heads are tiled, and the
//! last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::head_gates::{self, HeadGateInput};
use super::short_conv::{self, Branch};
use super::{Mismatch, Mixer, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Decay, Finish, Gate, HeadGates, Key, Prepare, Recur, Write};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "gated_deltanet";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDeltaNet {
    /// Query and key heads.
    pub heads: usize,
    /// Value heads, a multiple of `heads`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the short convolutions; `None` for silu without a convolution.
    pub conv: Option<usize>,
    /// Whether the convolutions have a bias.
    pub conv_bias: bool,
    /// Activation of the output gate; `None` for no gate.
    pub gate: Option<Activation>,
    /// Whether the write strength ranges up to 2.
    pub negative_eigenvalues: bool,
    /// Whether the state decays.
    pub decay: bool,
    /// Input of a softmax over the value heads (SLA); `None` for no such gates.
    pub head_gates: Option<HeadGateInput>,
    /// Whether the read gate multiplies a head's output after its norm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_gate_after_norm: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
    /// Whether value head h uses key head `h % heads`, as in llama.cpp's files, instead of `h / (value_heads / heads)`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tiled: bool,
}

impl GatedDeltaNet {
    /// Value heads of one `Recur`. Neighbouring value heads of a `Recur` share a key head, so tiled value heads need one
    /// `Recur` per tile, each with one value head per key head.
    fn tile(&self) -> usize {
        if self.tiled {
            self.heads
        } else {
            self.value_heads
        }
    }

    fn tiles(&self) -> usize {
        self.value_heads / self.tile()
    }

    fn branches(&self) -> [Branch; 3] {
        let heads = [self.heads, self.heads, self.value_heads];
        short_conv::qkv(heads, self.head_dim, self.value_dim)
    }
}

impl Mixer for GatedDeltaNet {
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
        head_gates::check(self.head_gates, self.read_gate_after_norm)?;
        short_conv::check(self.conv)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let branches = self.branches();
        let [q, k, v] = &branches;
        let mut weights = short_conv::weights(&branches, hidden, self.conv, self.conv_bias);
        let heads = self.value_heads;
        weights.push(WeightSpec::full("b_proj.weight", &[heads, hidden]));
        if self.decay {
            weights.push(WeightSpec::full("a_proj.weight", &[heads, hidden]));
            weights.push(WeightSpec::full("A_log", &[heads]));
            weights.push(WeightSpec::full("dt_bias", &[heads]));
        }
        if let Some(input) = self.head_gates {
            weights.extend(input.weights(hidden, heads, [q.width(), k.width()]));
        }
        if self.gate.is_some() {
            weights.push(WeightSpec::matrix("g_proj.weight", v.width(), hidden));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, v.width()));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.tile(), self.head_dim, self.value_dim];
        let state = StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &shape);
        let mut tensors = vec![state; self.tiles()];
        tensors.extend(short_conv::tensors(&self.branches(), self.conv));
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let mut names = vec!["q_proj", "k_proj", "v_proj", "b_proj"];
        names.extend(self.decay.then_some("a_proj"));
        names.extend(self.gate.map(|_| "g_proj"));
        let projections = self.head_gates.map_or(&[][..], HeadGateInput::projections);
        names.extend(projections);
        let views = layer.project(&names)?;
        let view = |name: &str| names.iter().position(|n| *n == name).map(|i| views[i]);
        let (q, k, v, beta) = (views[0], views[1], views[2], views[3]);

        let groups = short_conv::unit_qkv(layer, &self.branches(), &views, self.tiles())?;
        let scale = if self.negative_eigenvalues { 2.0 } else { 1.0 };
        let mut gates = vec![(beta, Gate::Sigmoid { scale })];
        let decay = view("a_proj");
        if let Some(view) = decay {
            let rate = layer.vector("A_log")?.iter().map(|a| a.exp()).collect();
            let bias = layer.vector("dt_bias")?;
            gates.push((view, Gate::Decay { rate, bias }));
        }
        layer.push(Prepare {
            groups,
            rope: None,
            gates,
        });
        let mut gates = match self.head_gates {
            Some(input) => {
                let projected = &views[views.len() - projections.len()..];
                Some(input.lower(layer, projected, [q, k])?)
            }
            None => None,
        };
        let read_later = match &mut gates {
            Some(gates) if self.read_gate_after_norm => gates.read.take(),
            _ => None,
        };

        let out = layer.buffer(self.value_heads * self.value_dim);
        for i in 0..self.tiles() {
            let heads = self.tile();
            let part =
                |view: View, width: usize| view.split(i * heads * width).1.split(heads * width).0;
            layer.push(Recur {
                heads,
                states: heads,
                dk: self.head_dim,
                dv: self.value_dim,
                q,
                k: Key::View(k),
                v: part(v, self.value_dim),
                decay: decay.map_or(Decay::None, |view| Decay::Head(part(view, 1))),
                write: Write::Delta(part(beta, 1)),
                gates: gates.as_ref().map(|gates| HeadGates {
                    write: part(gates.write, 1),
                    read: gates.read.map(|read| part(read, 1)),
                }),
                scale: (self.head_dim as f32).powf(-0.5),
                finish: Finish::default(),
                state: layer.state_tensor(i),
                out: part(out, self.value_dim),
            });
        }
        let mut finish = Vec::new();
        match read_later {
            Some(read) => {
                head_gates::norm_then_read(layer, out, self.value_dim, self.norm_eps, read)?;
            }
            None => finish.push(output_norm(layer, self.norm_eps)?),
        }
        if let (Some(activation), Some(gate)) = (self.gate, view("g_proj")) {
            finish.push(OutputOp::Gate(gate, activation));
        }
        layer.emit(out, finish, "o_proj")
    }
}
