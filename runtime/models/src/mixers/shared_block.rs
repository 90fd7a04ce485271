//! A Transformer block shared by several layers, before each layer's own mixer (Zamba2, arXiv 2411.15242; transformers `models/zamba2`).
//!
//! With x the residual stream and x0 the token's embedding; `W'` is a matrix of the block with the layer's correction,
//! `W' u = W u + B A u` of low rank:
//! ```text
//! c       = rms([x, x0])
//! q, k, v = W_q' c, W_k' c, W_v' c;  q, k <- rotary(position) (optional)
//! a       = W_o sum_j softmax_j((head_dim / 2)^-1/2 q k_j) v_j      over all j <= t
//! n       = rms(a)
//! t       = W_t W_down (gelu(W_gate' n) * W_up' n)
//! y       = mixer(rms(x + t))
//! ```
//! The three matrices of the feed-forward network may have biases. The block itself adds nothing to the residual stream. Its tensors are
//! stored once, no matter how many layers use it. State: keys and values of this use, as long as the session's context; the mixer's state.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Deserialize as Derive, Serialize};
use serde_json::{Map as Object, Value, json};

use super::{Attention, Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm};
use crate::lowering::{Lowering, Sum};
use crate::operands::{RESIDUAL, View};
use crate::ops::{Attend, HeadGroup, HeadOp, Prepare, Rope};
use crate::state::StateTensor;
use crate::weights::{WeightSpec, shared_name};

pub(super) const KIND: &str = "shared_block";

/// One use of a shared block, and the mixer that follows it.
#[derive(Debug, Clone)]
pub struct SharedBlock {
    /// Hyperparameters of the block and of its use.
    pub block: SharedBlockSpec,
    /// The mixer, which reads the residual stream with the block's output added.
    pub mixer: Arc<dyn Mixer>,
}

/// Hyperparameters of a shared block and of one use of it.
#[derive(Debug, Clone, Copy, Serialize, Derive)]
#[serde(deny_unknown_fields)]
pub struct SharedBlockSpec {
    /// Index of the block among the model's shared blocks.
    pub number: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Base of the rotary positions; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Width of the feed-forward network between its matrices.
    pub intermediate: usize,
    /// Rank of this use's correction of the feed-forward network; `None` for no correction.
    pub rank: Option<usize>,
    /// Rank of this use's correction of the matrices of q, k and v; `None` for no correction.
    pub attention_rank: Option<usize>,
    /// Whether the feed-forward network's matrices have biases.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bias: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// The key of the mixer that follows the block.
const BEHIND: &str = "behind";
/// Number of state tensors of the attention.
const OF_ATTENTION: usize = 2;

impl SharedBlockSpec {
    fn attention(&self) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            rope_theta: self.rope_theta,
            ..Attention::default()
        }
    }

    /// The full name of a tensor of the block, which all uses of the block share.
    fn name(&self, part: &str) -> String {
        shared_name(&format!("{KIND}.{}.{part}", self.number))
    }

    /// The projections of q, k and v, with their widths.
    fn projections(&self) -> [(&'static str, usize); 3] {
        let width = |heads| heads * self.head_dim;
        [
            ("q", width(self.heads)),
            ("k", width(self.kv_heads)),
            ("v", width(self.kv_heads)),
        ]
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let inner = self.intermediate;
        let common = |part: &str, rows, cols| WeightSpec::matrix(&self.name(part), rows, cols);
        let vector = |part: &str, width| WeightSpec::full(&self.name(part), &[width]);
        let mut weights = vec![vector("attn_norm.weight", 2 * hidden)];
        for (name, rows) in self.projections() {
            weights.push(common(&format!("{name}_proj.weight"), rows, 2 * hidden));
            if let Some(rank) = self.attention_rank {
                let [a, b] = ["a", "b"].map(|end| format!("{name}_proj_{end}.weight"));
                weights.push(WeightSpec::matrix(&a, rank, 2 * hidden));
                weights.push(WeightSpec::matrix(&b, rows, rank));
            }
        }
        weights.extend([
            common("o_proj.weight", hidden, self.heads * self.head_dim),
            vector("ffn_norm.weight", hidden),
            common("ffn_gate.weight", inner, hidden),
            common("ffn_up.weight", inner, hidden),
            common("ffn_down.weight", hidden, inner),
            WeightSpec::matrix("block_out.weight", hidden, hidden),
        ]);
        if self.bias {
            let biases = [("gate", inner), ("up", inner), ("down", hidden)];
            weights.extend(biases.map(|(part, width)| vector(&format!("ffn_{part}.bias"), width)));
        }
        if let Some(rank) = self.rank {
            weights.extend([
                WeightSpec::matrix("ffn_a.weight", rank, hidden),
                WeightSpec::matrix("ffn_gate_b.weight", inner, rank),
                WeightSpec::matrix("ffn_up_b.weight", inner, rank),
            ]);
        }
        weights
    }

    /// Lowers the attention and returns its output, `[hidden]`.
    fn attend(&self, layer: &mut Lowering) -> Result<View> {
        let hidden = layer.hidden();
        let both = layer.buffer(2 * hidden);
        let (stream, embedding) = both.split(hidden);
        let copy = |view, from| HeadGroup::per_channel(view, None, vec![HeadOp::Copy(from)]);
        let groups = vec![
            copy(stream, View::whole(RESIDUAL, hidden)),
            copy(embedding, layer.embedding()?),
        ];
        layer.push(Prepare {
            groups,
            rope: None,
            gates: Vec::new(),
        });

        let norm = Norm::rms(
            layer.vector(&self.name("attn_norm.weight"))?,
            layer.norm_eps(),
        );
        let mut names: Vec<String> = Vec::new();
        names.extend(
            self.projections()
                .map(|(name, _)| self.name(&format!("{name}_proj"))),
        );
        if self.attention_rank.is_some() {
            names.extend(self.projections().map(|(name, _)| format!("{name}_proj_a")));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let views = layer.project_from(both, Some(norm), &names)?;
        let mut groups: Vec<HeadGroup> = views[..3].iter().map(|&view| self.group(view)).collect();
        if self.attention_rank.is_some() {
            let pairs = [
                (views[3], "q_proj_b"),
                (views[4], "k_proj_b"),
                (views[5], "v_proj_b"),
            ];
            let corrections = layer.project_each(&pairs)?;
            for (group, correction) in groups.iter_mut().zip(corrections) {
                group.maps.push(HeadOp::Add(correction));
            }
        }
        let rope = self.rope_theta.map(|theta| {
            groups[..2]
                .iter_mut()
                .for_each(|group| group.maps.push(HeadOp::Rope));
            Rope::new(theta, None, layer.buffer(self.head_dim))
        });
        groups.retain(|group| !group.maps.is_empty());
        if !groups.is_empty() {
            layer.push(Prepare {
                groups,
                rope,
                gates: Vec::new(),
            });
        }
        let out = layer.buffer(self.heads * self.head_dim);
        layer.push(Attend {
            heads: self.heads,
            kv_heads: self.kv_heads,
            q: views[0],
            k: views[1],
            v: views[2],
            scale: (self.head_dim as f32 / 2.0).powf(-0.5),
            keys: layer.state_tensor(0),
            values: layer.state_tensor(1),
            caches: true,
            sinks: None,
            eviction: None,
            out,
        });
        Ok(layer.project_from(out, None, &[&self.name("o_proj")])?[0])
    }

    fn group(&self, view: View) -> HeadGroup {
        HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: None,
            maps: Vec::new(),
        }
    }

    /// Lowers the feed-forward network on `input`, `[hidden]`, and returns its output, `[hidden]`.
    fn feed_forward(&self, layer: &mut Lowering, input: View) -> Result<View> {
        let norm = Norm::rms(
            layer.vector(&self.name("ffn_norm.weight"))?,
            layer.norm_eps(),
        );
        let (gate, up) = (self.name("ffn_gate"), self.name("ffn_up"));
        let mut names = vec![gate.as_str(), &up];
        names.extend(self.rank.map(|_| "ffn_a"));
        let views = layer.project_from(input, Some(norm), &names)?;
        let (gate, up) = (views[0], views[1]);
        let mut groups = [gate, up].map(|view| HeadGroup::per_channel(view, None, Vec::new()));
        if self.rank.is_some() {
            let pairs = [(views[2], "ffn_gate_b"), (views[2], "ffn_up_b")];
            let corrections = layer.project_each(&pairs)?;
            for (group, correction) in groups.iter_mut().zip(corrections) {
                group.maps.push(HeadOp::Add(correction));
            }
        }
        groups[0].maps.push(HeadOp::Activation(Activation::GeluErf));
        // A separate op multiplies, because the gates must be complete first.
        let gated = HeadGroup::per_channel(up, None, vec![HeadOp::Multiply(gate)]);
        let mut groups = Vec::from(groups);
        groups.retain(|group| !group.maps.is_empty());
        for groups in [groups, vec![gated]] {
            layer.push(Prepare {
                groups,
                rope: None,
                gates: Vec::new(),
            });
        }
        let out = layer.project_from(up, None, &[&self.name("ffn_down")])?[0];
        Ok(layer.project_from(out, None, &["block_out"])?[0])
    }
}

impl SharedBlock {
    /// Prefix of the names of the mixer's tensors.
    fn prefix(&self) -> String {
        format!("{}.", self.mixer.kind())
    }
}

impl<'de> Deserialize<'de> for SharedBlock {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut block = Object::deserialize(from)?;
        let behind = block.remove(BEHIND);
        let Some(Value::Object(mut behind)) = behind else {
            return Err(D::Error::custom(format!("no mixer under {BEHIND}")));
        };
        let mixer = match behind.remove("mixer") {
            Some(Value::String(kind)) if kind != KIND => {
                super::read(BEHIND, &kind, Value::Object(behind))
            }
            found => return Err(D::Error::custom(format!("mixer {found:?} under {BEHIND}"))),
        };
        let block = serde_json::from_value(Value::Object(block));
        Ok(SharedBlock {
            block: block.map_err(D::Error::custom)?,
            mixer: mixer.map_err(D::Error::custom)?,
        })
    }
}

impl Mixer for SharedBlock {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        let mut object = json!(self.block);
        let mut behind = Object::new();
        behind.insert("mixer".into(), json!(self.mixer.kind()));
        if let Value::Object(numbers) = self.mixer.to_json() {
            behind.extend(numbers);
        }
        object[BEHIND] = Value::Object(behind);
        object
    }

    fn check(&self, hidden: usize) -> Result<(), Mismatch> {
        let block = self.block;
        block.attention().check_heads()?;
        let ranks = [block.rank, block.attention_rank];
        let widths = [
            block.intermediate,
            block.rank.unwrap_or(1),
            block.attention_rank.unwrap_or(1),
        ];
        Mismatch::unless(
            widths.iter().all(|&n| n > 0),
            || format!("a network of {}, ranks {ranks:?}", block.intermediate),
            "widths and ranks of one or more",
        )?;
        self.mixer.check(hidden)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = self.block.weights(hidden);
        weights.extend(
            self.mixer
                .weights(hidden)
                .into_iter()
                .map(|weight| WeightSpec {
                    name: format!("{}{}", self.prefix(), weight.name),
                    ..weight
                }),
        );
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let mut state = self.block.attention().state();
        state.extend(self.mixer.state());
        state
    }

    fn reads_embedding(&self) -> bool {
        true
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let attended = self.block.attend(layer)?;
        let input = self.block.feed_forward(layer, attended)?;
        let residual = View::whole(RESIDUAL, layer.hidden());
        layer.push(Prepare {
            groups: vec![HeadGroup::per_channel(
                input,
                None,
                vec![HeadOp::Add(residual)],
            )],
            rope: None,
            gates: Vec::new(),
        });
        let sum = Sum::Multiplied {
            input: 1.0,
            output: 1.0,
        };
        layer.part(&self.prefix(), OF_ATTENTION, sum, |layer| {
            layer.reading(input, |layer| self.mixer.lower(layer))
        })
    }
}
