//! Softmax attention, over a sliding window or over the whole context (flash-linear-attention `layers/attn.py`,
//! transformers' Llama, Qwen and Mistral).
//!
//! ```text
//! q, k, v = W_q x, W_k x, W_v x (+ biases);  q, k <- rms per head (optional);  q, k <- rotary(position)
//! o_t = sum_j softmax_j(head_dim^-1/2 q_t k_j) v_j   over t - window < j <= t, or over all j <= t
//! o   <- o sigmoid(W_g x) (optional);  y = W_o o (+ bias)
//! ```
//! State: a ring of keys and values, `window` tokens long, or as long as the session's context.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::program::{Lowering, View};
use crate::spec::WeightSpec;
use crate::stages::{Activation, Attend, Eviction, Finish, Lane, Map, Norm, Prepare, Rope, Stage};
use crate::state::{Size, SlotDtype, SlotKind, SlotSpec};

pub use crate::stages::RopeScaling;

pub(super) const KIND: &str = "attention";

/// Its numbers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Keys that a query sees, its own included; none: all.
    pub window: Option<usize>,
    /// Base of the rotary positions; none: no positions.
    pub rope_theta: Option<f32>,
    /// Leading values of each head that turn with the position; none: all.
    pub rope_dim: Option<usize>,
    /// How the rotary frequencies are stretched for long contexts; none: not at all.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the projections of q, k and v have a bias.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Whether the output is gated.
    pub gate: bool,
    /// Epsilon of the norm of each head of q and k; none: no norm.
    pub head_norm_eps: Option<f32>,
}

impl Attention {
    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn rope_dim(&self) -> usize {
        self.rope_dim.unwrap_or(self.head_dim)
    }

    pub(super) fn check_heads(&self) -> Result<(), Mismatch> {
        let dims = [self.heads, self.kv_heads, self.head_dim];
        Mismatch::unless(
            dims.iter().all(|&n| n > 0),
            || format!("{dims:?}"),
            "heads and widths of one or more",
        )?;
        Mismatch::unless(
            self.heads.is_multiple_of(self.kv_heads),
            || {
                format!(
                    "{} heads on {} key and value heads",
                    self.heads, self.kv_heads
                )
            },
            "a whole number of heads for each key and value head",
        )?;
        let rope_dim = self.rope_dim();
        Mismatch::unless(
            self.rope_theta.is_none()
                || rope_dim.is_multiple_of(2) && (2..=self.head_dim).contains(&rope_dim),
            || format!("rotary positions on {rope_dim} values of {}", self.head_dim),
            "an even number of values, no more than a head has",
        )?;
        Mismatch::unless(
            self.window != Some(0),
            || "window 0".into(),
            "a window of one token or more",
        )
    }

    /// Projections, positions and, between the two, what `before` does with unrotated keys and with values.
    pub(super) fn lower_with(
        &self,
        block: &mut Lowering,
        before: impl FnOnce(&mut Lowering, View, View) -> Result<Option<Eviction>>,
    ) -> Result<()> {
        let mut names = vec!["q_proj", "k_proj", "v_proj"];
        if self.gate {
            names.push("g_proj");
        }
        let views = block.project(&names)?;
        let (q, k, v, gate) = (views[0], views[1], views[2], views.get(3).copied());
        let eviction = before(block, k, v)?;
        let mut lanes = Vec::new();
        for (view, norm) in [(q, "q_norm.weight"), (k, "k_norm.weight")] {
            let mut maps = Vec::new();
            if let Some(eps) = self.head_norm_eps {
                maps.push(Map::Rms(Norm {
                    weight: block.vector(norm)?,
                    eps,
                }));
            }
            if self.rope_theta.is_some() {
                maps.push(Map::Rope);
            }
            lanes.push(Lane {
                view,
                head_dim: self.head_dim,
                conv: None,
                maps,
            });
        }
        let rope = self.rope_theta.map(|theta| {
            let table = block.buffer(self.rope_dim());
            Rope::new(theta, self.rope_scaling, table)
        });
        block.push(Stage::Prepare(Prepare {
            lanes,
            rope,
            gates: Vec::new(),
        }));
        let out = block.buffer(self.heads * self.head_dim);
        block.push(Stage::Attend(Attend {
            heads: self.heads,
            kv_heads: self.kv_heads,
            q,
            k,
            v,
            scale: (self.head_dim as f32).powf(-0.5),
            keys: block.slot(0),
            values: block.slot(1),
            eviction,
            out,
        }));
        let finish = gate.map(|gate| Finish::Gate(gate, Activation::Sigmoid));
        block.emit(out, finish.into_iter().collect(), "o_proj")
    }
}

impl Mixer for Attention {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.check_heads()
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let width = self.heads * self.head_dim;
        let mut weights = Vec::new();
        for (name, rows) in [("q", width), ("k", self.kv_width()), ("v", self.kv_width())] {
            weights.push(WeightSpec::matrix(
                &format!("{name}_proj.weight"),
                rows,
                hidden,
            ));
            if self.bias {
                weights.push(WeightSpec::full(&format!("{name}_proj.bias"), &[rows]));
            }
        }
        if self.head_norm_eps.is_some() {
            for name in ["q_norm.weight", "k_norm.weight"] {
                weights.push(WeightSpec::full(name, &[self.head_dim]));
            }
        }
        if self.gate {
            weights.push(WeightSpec::matrix("g_proj.weight", width, hidden));
            if self.bias {
                weights.push(WeightSpec::full("g_proj.bias", &[width]));
            }
        }
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        if self.out_bias {
            weights.push(WeightSpec::full("o_proj.bias", &[hidden]));
        }
        weights
    }

    fn slots(&self) -> Vec<SlotSpec> {
        let rows = self.window.map_or(Size::Context, Size::Fixed);
        let shape = vec![Size::Fixed(self.kv_heads), rows, Size::Fixed(self.head_dim)];
        ["keys", "values"]
            .map(|name| SlotSpec {
                name,
                shape: shape.clone(),
                dtype: SlotDtype::Kv,
                kind: SlotKind::Ring,
            })
            .into()
    }

    fn lower(&self, block: &mut Lowering) -> Result<()> {
        self.lower_with(block, |_, _, _| Ok(None))
    }
}
