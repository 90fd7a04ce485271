//! Gated DeltaNet (arXiv 2412.06464; flash-linear-attention `layers/gated_deltanet.py`).
//!
//! With x the normed input, per value head (value head h uses key head `h / (value_heads / heads)`):
//! ```text
//! q, k = l2(silu(conv(W_q x))), l2(silu(conv(W_k x)))    [head_dim]
//! v    = silu(conv(W_v x))                                [value_dim]
//! beta = sigmoid(W_b x), twice that where negative eigenvalues are allowed
//! a    = exp(-exp(A_log) softplus(W_a x + dt_bias))
//! S   <- a S;  S <- S + k^T beta (v - k S);  o = head_dim^-1/2 q S
//! y    = W_o (rms(o) silu(W_g x))
//! ```
//! State: `S [value_heads, head_dim, value_dim]` and the last `conv - 1` inputs of each convolution.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::program::Lowering;
use crate::spec::WeightSpec;
use crate::stages::{
    Activation, Conv, Decay, Finish, Gate, Key, Lane, Map, Norm, Prepare, Recur, Stage, Write,
};
use crate::state::{SlotDtype, SlotKind, SlotSpec};

pub(super) const KIND: &str = "gated_deltanet";

/// Its numbers.
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
    /// Taps of the short convolutions; none: silu only.
    pub conv: Option<usize>,
    /// Whether the convolutions have a bias.
    pub conv_bias: bool,
    /// Whether the output is gated.
    pub gate: bool,
    /// Whether the write strength reaches 2.
    pub negative_eigenvalues: bool,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

impl GatedDeltaNet {
    fn key_width(&self) -> usize {
        self.heads * self.head_dim
    }

    fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// The convolved projections: name, width and width of a head.
    fn lanes(&self) -> [(&'static str, usize, usize); 3] {
        [
            ("q", self.key_width(), self.head_dim),
            ("k", self.key_width(), self.head_dim),
            ("v", self.value_width(), self.value_dim),
        ]
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
        Mismatch::unless(
            dims.iter().all(|&n| n > 0),
            || format!("{dims:?}"),
            "heads and widths of one or more",
        )?;
        Mismatch::unless(
            self.value_heads.is_multiple_of(self.heads),
            || format!("{} value heads on {} heads", self.value_heads, self.heads),
            "a whole number of value heads for each head",
        )?;
        let conv = self.conv;
        Mismatch::unless(
            conv.is_none_or(|n| (1..=64).contains(&n)),
            || format!("conv {conv:?}"),
            "1 to 64 taps",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = Vec::new();
        for (name, width, _) in self.lanes() {
            weights.push(WeightSpec::matrix(
                &format!("{name}_proj.weight"),
                width,
                hidden,
            ));
        }
        for (name, width, _) in self.lanes() {
            let Some(taps) = self.conv else { continue };
            weights.push(WeightSpec::full(
                &format!("{name}_conv1d.weight"),
                &[width, taps],
            ));
            if self.conv_bias {
                weights.push(WeightSpec::full(&format!("{name}_conv1d.bias"), &[width]));
            }
        }
        for name in ["a_proj.weight", "b_proj.weight"] {
            weights.push(WeightSpec::full(name, &[self.value_heads, hidden]));
        }
        for name in ["A_log", "dt_bias"] {
            weights.push(WeightSpec::full(name, &[self.value_heads]));
        }
        if self.gate {
            weights.push(WeightSpec::matrix(
                "g_proj.weight",
                self.value_width(),
                hidden,
            ));
        }
        weights.push(WeightSpec::full("o_norm.weight", &[self.value_dim]));
        weights.push(WeightSpec::matrix(
            "o_proj.weight",
            hidden,
            self.value_width(),
        ));
        weights
    }

    fn slots(&self) -> Vec<SlotSpec> {
        let shape = [self.value_heads, self.head_dim, self.value_dim];
        let mut slots = vec![SlotSpec::new(
            "state",
            SlotKind::Matrix,
            SlotDtype::F32,
            &shape,
        )];
        if let Some(taps) = self.conv {
            for (name, (_, width, _)) in
                ["conv_q", "conv_k", "conv_v"].into_iter().zip(self.lanes())
            {
                slots.push(SlotSpec::new(
                    name,
                    SlotKind::Shift,
                    SlotDtype::F32,
                    &[taps - 1, width],
                ));
            }
        }
        slots
    }

    fn lower(&self, block: &mut Lowering) -> Result<()> {
        let mut names = vec!["q_proj", "k_proj", "v_proj", "a_proj", "b_proj"];
        if self.gate {
            names.push("g_proj");
        }
        let views = block.project(&names)?;
        let (q, k, v, decay, beta, gate) = (
            views[0],
            views[1],
            views[2],
            views[3],
            views[4],
            views.get(5).copied(),
        );

        let mut lanes = Vec::new();
        for (i, (name, width, head_dim)) in self.lanes().into_iter().enumerate() {
            let conv = match self.conv {
                Some(_) => {
                    let weight = block.vector(&format!("{name}_conv1d.weight"))?;
                    let bias = match self.conv_bias {
                        true => Some(block.vector(&format!("{name}_conv1d.bias"))?),
                        false => None,
                    };
                    Some(Conv::new(&weight, width, bias, block.slot(1 + i)))
                }
                None => None,
            };
            let maps = if name == "v" {
                vec![Map::Silu]
            } else {
                vec![Map::Silu, Map::L2Norm]
            };
            lanes.push(Lane {
                view: views[i],
                head_dim,
                conv,
                maps,
            });
        }
        let rate = block.vector("A_log")?.iter().map(|a| a.exp()).collect();
        let scale = if self.negative_eigenvalues { 2.0 } else { 1.0 };
        let gates = vec![
            (
                decay,
                Gate::Decay {
                    rate,
                    bias: block.vector("dt_bias")?,
                },
            ),
            (beta, Gate::Sigmoid { scale }),
        ];
        block.push(Stage::Prepare(Prepare {
            lanes,
            rope: None,
            gates,
        }));

        let out = block.buffer(self.value_width());
        block.push(Stage::Recur(Recur {
            heads: self.value_heads,
            states: self.value_heads,
            dk: self.head_dim,
            dv: self.value_dim,
            q,
            k: Key::View(k),
            v,
            decay: Decay::Head(decay),
            write: Write::Delta(beta),
            gates: None,
            scale: (self.head_dim as f32).powf(-0.5),
            slot: block.slot(0),
            out,
        }));
        let norm = Norm {
            weight: block.vector("o_norm.weight")?,
            eps: self.norm_eps,
        };
        let mut finish = vec![Finish::Norm(norm)];
        finish.extend(gate.map(|gate| Finish::Gate(gate, Activation::Silu)));
        block.emit(out, finish, "o_proj")
    }
}
