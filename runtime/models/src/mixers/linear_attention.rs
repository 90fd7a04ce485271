//! Linear attention with a decay, shared by GLA, simple GLA and RetNet, which differ in the decay.

use serde::{Deserialize, Serialize};

use super::head_gates::{self, HeadGateInput};
use super::short_conv::{self, Branch};
use super::{Mismatch, output_norm};
use crate::error::Result;
use crate::functions::{Activation, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Decay, Finish, HeadGroup, HeadOp, Key, Prepare, Recur, Rope, Write};
use crate::state::StateTensor;
use crate::weights::WeightSpec;

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearAttention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub head_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Activation of queries and keys.
    pub feature_map: Option<Activation>,
    /// Taps of the short convolutions, which end in silu; `None` for neither convolution nor silu.
    pub conv: Option<usize>,
    /// Whether the output is gated, by silu.
    pub gate: bool,
    /// Input of a softmax over the heads (SLA); `None` for no such gates.
    pub head_gates: Option<HeadGateInput>,
    /// Whether the read gate multiplies a head's output after its norm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_gate_after_norm: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl LinearAttention {
    fn branches(&self) -> [Branch; 3] {
        let heads = [self.heads, self.kv_heads, self.kv_heads];
        short_conv::qkv(heads, self.head_dim, self.value_dim)
    }

    pub(super) fn check(&self) -> Result<(), Mismatch> {
        let dims = [self.heads, self.kv_heads, self.head_dim, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless_shared(self.heads, "heads", self.kv_heads, "key and value head")?;
        head_gates::check(self.head_gates, self.read_gate_after_norm)?;
        short_conv::check(self.conv)
    }

    /// The weights; `decay` lists the weights of the decay.
    pub(super) fn weights(&self, hidden: usize, decay: Vec<WeightSpec>) -> Vec<WeightSpec> {
        let branches = self.branches();
        let mut weights = short_conv::weights(&branches, hidden, self.conv, false);
        weights.extend(decay);
        let [q, k, _] = &branches;
        if let Some(input) = self.head_gates {
            weights.extend(input.weights(hidden, self.heads, [q.width(), k.width()]));
        }
        let width = self.heads * self.value_dim;
        if self.gate {
            weights.push(WeightSpec::matrix("g_proj.weight", width, hidden));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    /// The state tensors, with `states` recurrent states.
    pub(super) fn tensors(&self, states: usize) -> Vec<StateTensor> {
        let shape = [states, self.head_dim, self.value_dim];
        short_conv::matrix_tensors(shape, &self.branches(), self.conv)
    }

    /// Lowers the mixer; `decay` computes the decay from the projections `names`. A token writes `written` rows of the
    /// state, or all; the other rows do not decay if each row has its own decay.
    pub(super) fn lower(
        &self,
        layer: &mut Lowering,
        states: usize,
        rope_theta: Option<f32>,
        written: Option<usize>,
        names: &[&str],
        decay: impl FnOnce(&mut Lowering, &[View]) -> Result<Decay>,
    ) -> Result<()> {
        let mut all = vec!["q_proj", "k_proj", "v_proj"];
        all.extend(names);
        let projections = self.head_gates.map_or(&[][..], HeadGateInput::projections);
        all.extend(projections);
        if self.gate {
            all.push("g_proj");
        }
        let views = layer.project(&all)?;
        let (qkv, rest) = views.split_at(3);
        let (decays, rest) = rest.split_at(names.len());
        let (projected, gate) = rest.split_at(projections.len());
        let (q, k, v) = (qkv[0], qkv[1], qkv[2]);
        let decay = decay(layer, decays)?;

        let mut groups = Vec::new();
        for (i, branch) in self.branches().iter().enumerate() {
            let mut maps = Vec::new();
            maps.extend(self.conv.map(|_| HeadOp::Activation(Activation::Silu)));
            if i < 2 {
                maps.extend(self.feature_map.map(HeadOp::Activation));
                maps.extend(rope_theta.map(|_| HeadOp::Rope));
            }
            if let (1, Some(count)) = (i, written) {
                maps.extend([HeadOp::Softmax, HeadOp::Largest(count), HeadOp::SumNorm]);
            }
            if !maps.is_empty() {
                groups.push(branch.group(layer, qkv[i], 1 + i, maps)?);
            }
        }
        if !groups.is_empty() {
            let rope = rope_theta.map(|theta| Rope::new(theta, None, layer.buffer(self.head_dim)));
            layer.push(Prepare {
                groups,
                rope,
                gates: Vec::new(),
            });
        }
        if let (Some(_), Decay::Key(view)) = (written, &decay) {
            layer.push(Prepare {
                groups: vec![HeadGroup {
                    view: *view,
                    head_dim: self.head_dim,
                    conv: None,
                    maps: vec![HeadOp::Where(k)],
                }],
                rope: None,
                gates: Vec::new(),
            });
        }
        let mut gates = match self.head_gates {
            Some(input) => Some(input.lower(layer, projected, [q, k])?),
            None => None,
        };
        let read_later = match &mut gates {
            Some(gates) if self.read_gate_after_norm => gates.read.take(),
            _ => None,
        };

        let out = layer.buffer(self.heads * self.value_dim);
        layer.push(Recur {
            heads: self.heads,
            states,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::View(k),
            v,
            decay,
            write: Write::Add,
            gates,
            scale: (self.head_dim as f32).powf(-0.5),
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let mut finish = Vec::new();
        match read_later {
            Some(read) => {
                head_gates::norm_then_read(layer, out, self.value_dim, self.norm_eps, read)?;
            }
            None => finish.push(output_norm(layer, self.norm_eps)?),
        }
        finish.extend(
            gate.first()
                .map(|&gate| OutputOp::Gate(gate, Activation::Silu)),
        );
        layer.emit(out, finish, "o_proj")
    }
}
