//! Multi-head latent attention in its absorbed form (DeepSeek-V2, arXiv 2405.04434; Kimi Linear, arXiv 2510.26692;
//! transformers `models/kimi_linear`): all heads attend to one row per token, the latent followed by a rotary part of
//! the key.
//!
//! With x the normed input, per head h, whose key is `[k, r]` of `nope + rope` columns:
//! ```text
//! q, q_r = W_q x                            [nope], [rope]; or W_qb rms(W_qa x) of low rank
//! c, r   = rms(W_kv x), W_r x               [latent], [rope]: shared by all heads; only these are cached
//! k, v   = c W_uk^T, c W_uv                 [nope], [value_dim]: never computed; the heads' queries and outputs pass
//!                                           the matrices instead
//! p_j    = softmax_j((nope + rope)^-1/2 ((q W_uk) c_j + q_r r_j))
//! o      = (sum_j p_j c_j) W_uv;  o <- sigmoid(w_g x) o, one gate for each head (optional)
//! y      = W_o o
//! ```
//! In models with rotary positions, q_r and r are rotated. State: the rows `[c, r]` of the session's context.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Attend, HeadGroup, HeadLinear, HeadOp, Prepare, Rope};
use crate::state::{Rotary, Size, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "latent_attention";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Width of the latent that all heads share.
    pub latent: usize,
    /// Columns of a head's query that are multiplied with its own key.
    pub nope: usize,
    /// Columns of a head's query that are multiplied with the key shared by all heads.
    pub rope: usize,
    /// Width of a head's value.
    pub value_dim: usize,
    /// Width between the two matrices of the query; `None` for one matrix.
    pub query_rank: Option<usize>,
    /// Base of the rotary positions of the shared columns, which rotate by halves; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Epsilon of the norms of the latent and of the low-rank query.
    pub norm_eps: f32,
    /// Whether a gate multiplies each head's output.
    #[serde(default, skip_serializing_if = "is_false")]
    pub head_gate: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl LatentAttention {
    /// Width of a cached row.
    fn row(&self) -> usize {
        self.latent + self.rope
    }

    /// Projects the input to the queries, the row to cache before its norm, and the gates of the heads.
    fn project(&self, layer: &mut Lowering) -> Result<(View, View, Option<View>)> {
        let first = if self.query_rank.is_some() {
            "q_a_proj"
        } else {
            "q_proj"
        };
        let mut names = vec![first, "kv_a_proj"];
        names.extend(self.head_gate.then_some("g_proj"));
        let views = layer.project(&names)?;
        let q = match self.query_rank {
            None => views[0],
            Some(_) => {
                let norm = Norm::rms(layer.vector("q_a_norm.weight")?, self.norm_eps);
                layer.project_from(views[0], Some(norm), &["q_b_proj"])?[0]
            }
        };
        Ok((q, views[1], views.get(2).copied()))
    }

    /// Multiplies each head's columns by its own matrix; on a CPU, the inputs are first rounded for the matrix format.
    fn of_heads(
        &self,
        layer: &mut Lowering,
        name: &str,
        x: View,
        copied: usize,
        out: View,
    ) -> Result<()> {
        let matrix = layer.matrix(name)?;
        layer.wide_inputs(HeadLinear::inputs_width(self.heads, matrix.cols()));
        layer.push(HeadLinear {
            heads: self.heads,
            x,
            matrix,
            copied,
            out,
        });
        Ok(())
    }
}

impl Mixer for LatentAttention {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        Mismatch::unless_base(self.rope_theta)?;
        let dims = [self.heads, self.latent, self.nope, self.value_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless(
            self.query_rank != Some(0),
            || "query_rank 0".into(),
            "a rank of one or more",
        )?;
        Mismatch::unless(
            self.rope_theta.is_none() || self.rope > 0 && self.rope.is_multiple_of(2),
            || format!("rotary positions on {} columns", self.rope),
            "an even number of columns",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let (heads, latent, dim) = (self.heads, self.latent, self.value_dim);
        let queries = heads * (self.nope + self.rope);
        let mut weights = match self.query_rank {
            None => vec![WeightSpec::matrix("q_proj.weight", queries, hidden)],
            Some(rank) => vec![
                WeightSpec::matrix("q_a_proj.weight", rank, hidden),
                WeightSpec::full("q_a_norm.weight", &[rank]),
                WeightSpec::matrix("q_b_proj.weight", queries, rank),
            ],
        };
        weights.extend([
            WeightSpec::matrix("kv_a_proj.weight", self.row(), hidden),
            WeightSpec::full("kv_a_norm.weight", &[latent]),
            WeightSpec::matrix("k_b.weight", heads * latent, self.nope),
            WeightSpec::matrix("v_b.weight", heads * dim, latent),
            WeightSpec::matrix("o_proj.weight", hidden, heads * dim),
        ]);
        if self.head_gate {
            weights.push(WeightSpec::matrix("g_proj.weight", heads, hidden));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [Size::Fixed(1), Size::Context, Size::Fixed(self.row())];
        let rotary = self.rope_theta.map(|theta| Rotary {
            first: self.latent,
            frequencies: Rope::new(theta, None, View::whole(0, self.rope))
                .frequencies
                .to_vec(),
        });
        vec![StateTensor::cached("rows", shape).turning(rotary)]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let (query, latent, gate) = self.project(layer)?;
        let (c, r) = latent.split(self.latent);
        let room = layer.buffer((self.heads + 1) * self.row());
        let (q, row) = room.split(self.heads * self.row());
        self.of_heads(layer, "k_b.weight", query, self.rope, q)?;
        let (own_c, own_r) = row.split(self.latent);
        let norm = Norm::rms(layer.vector("kv_a_norm.weight")?, self.norm_eps);
        let mut groups = vec![HeadGroup {
            view: own_c,
            head_dim: self.latent,
            conv: None,
            maps: vec![HeadOp::Copy(c), HeadOp::Rms(norm)],
        }];
        let turned = |mut maps: Vec<HeadOp>| {
            maps.extend(self.rope_theta.map(|_| HeadOp::Rope));
            maps
        };
        if self.rope > 0 {
            groups.push(HeadGroup {
                view: own_r,
                head_dim: self.rope,
                conv: None,
                maps: turned(vec![HeadOp::Copy(r)]),
            });
        }
        if self.rope_theta.is_some() {
            groups.extend((0..self.heads).map(|head| HeadGroup {
                view: View {
                    start: q.start + head * self.row() + self.latent,
                    width: self.rope,
                    ..q
                },
                head_dim: self.rope,
                conv: None,
                maps: turned(Vec::new()),
            }));
        }
        let rope = self
            .rope_theta
            .map(|theta| Rope::new(theta, None, layer.buffer(self.rope)));
        layer.push(Prepare {
            groups,
            rope,
            gates: Vec::new(),
        });
        let read = layer.buffer(self.heads * self.row());
        layer.push(Attend {
            heads: self.heads,
            kv_heads: 1,
            q,
            k: row,
            v: row,
            scale: ((self.nope + self.rope) as f32).powf(-0.5),
            keys: layer.state_tensor(0),
            values: layer.state_tensor(0),
            caches: true,
            sinks: None,
            eviction: None,
            out: read,
        });
        let out = layer.buffer(self.heads * self.value_dim);
        self.of_heads(layer, "v_b.weight", read, 0, out)?;
        if let Some(gate) = gate {
            layer.push(Prepare {
                groups: vec![HeadGroup {
                    view: out,
                    head_dim: self.value_dim,
                    conv: None,
                    maps: vec![HeadOp::Gate(gate, Activation::Sigmoid)],
                }],
                rope: None,
                gates: Vec::new(),
            });
        }
        layer.emit(out, Vec::new(), "o_proj")
    }
}
