//! Softmax attention, over a sliding window or over the whole context (flash-linear-attention `layers/attn.py`,
//! transformers' Llama, Qwen and Mistral).
//!
//! ```text
//! q, k, v = W_q x, W_k x, W_v x (+ biases), or v = k;  q, k <- rms per head or over all heads (optional);
//! v <- rms per head without gains (optional);  q, k <- rotary(position)
//! q   <- q (1 + rate ln(1 + floor(position / period)))    (optional)
//! o_t = sum_j softmax_j(scale q_t k_j) v_j    over t - window < j <= t, or over all j <= t; a sink adds exp(sink) to the
//!       softmax's sum (optional)
//! o   <- o sigmoid(W_g x) or o softplus(W_g x) (optional; a gate for each value, or one for each head);  y = W_o o (+ bias)
//! ```
//! Tokens that leave the window may be retained, up to a fixed number: either the tokens with the most attention from
//! the last query (TOVA, arXiv 2401.06104), or every n-th token. Neither policy needs training.
//! A layer may attend to the keys and values of an earlier layer (Gemma 4), with queries only.
//! State: a ring of keys and values, `window` tokens long, or as long as the session's context; the retained set.

mod shared;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer, Shared};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{
    Attend, Eviction, Gate, Growth, HeadGroup, HeadOp, Normalize, Policy, Prepare, Rope,
    ScoreTensors,
};
use crate::state::{Rotary, Size, StateDtype, StateKind, StateRange, StateTensor};
use crate::weights::WeightSpec;

pub use crate::ops::RopeScaling;

pub(super) const KIND: &str = "attention";

/// Hyperparameters.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of keys that a query sees, including its own; `None` for all.
    pub window: Option<usize>,
    /// Base of the rotary positions; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Leading values of each head that get rotary positions; `None` for all.
    pub rope_dim: Option<usize>,
    /// How the rotary frequencies are stretched for long contexts; `None` leaves them unchanged.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the projections of q, k and v have a bias.
    pub bias: bool,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Whether the output is gated.
    pub gate: bool,
    /// Whether the gate is one value for each head.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gate_per_head: bool,
    /// The function of the gate; `None` for a sigmoid. A gate with another function has no bias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate_function: Option<Activation>,
    /// Epsilon of the norm of each head of q and k; `None` for no norm.
    pub head_norm_eps: Option<f32>,
    /// Epsilon of the norm without gains of each head of v; `None` for no norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_norm_eps: Option<f32>,
    /// Whether the values are the projected keys, before their norm and positions.
    #[serde(default, skip_serializing_if = "is_false")]
    pub values_are_keys: bool,
    /// Number of the earlier layer with the keys and values; `None` for the layer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_of: Option<usize>,
    /// Multiplies the scores; `None` for `head_dim^-1/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softmax_scale: Option<f32>,
    /// Multiplier of the keys after projection and bias; `None` for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_multiplier: Option<f32>,
    /// Whether the norms of q and k are over all heads together, with a gain for each value.
    #[serde(default, skip_serializing_if = "is_false")]
    pub norm_over_heads: bool,
    /// The factor of the queries after their positions, which grows with the position; `None` for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_growth: Option<Growth>,
    /// Whether each query head has a sink: a learned score with a weight in the softmax, but without a value.
    #[serde(default, skip_serializing_if = "is_false")]
    pub sinks: bool,
    /// Which tokens are retained as they leave the window; `None` to discard them all.
    pub retained: Option<Retained>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A set of tokens that have left the window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retained {
    /// Capacity in tokens for each key and value head, sinks included.
    pub capacity: usize,
    /// Tokens at the start that are always retained.
    pub sink: usize,
    /// Which of the other tokens stay.
    pub policy: RetainedPolicy,
}

/// Which tokens stay in a set.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetainedPolicy {
    /// The tokens to which the last query paid the most attention, on average over the heads that share keys.
    Attention,
    /// The newest of every n tokens that leave the window.
    Stride(usize),
}

/// The scores of the sinks `[heads]`.
const SINKS: &str = "sinks.weight";
const SET_KEYS: usize = 2;
const SET_VALUES: usize = 3;
const SET_COUNTS: usize = 4;
const SET_POSITIONS: usize = 5;
const WINDOW_SCORES: usize = 6;
const SET_SCORES: usize = 7;
/// Index of the first state tensor after the window and a set with scores.
pub(super) const AFTER_SET: usize = 8;

impl Attention {
    fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Scale of the attention scores.
    pub(super) fn scale(&self) -> f32 {
        let usual = (self.head_dim as f32).powf(-0.5);
        self.softmax_scale.unwrap_or(usual)
    }

    fn rope_dim(&self) -> usize {
        self.rope_dim.unwrap_or(self.head_dim)
    }

    pub(super) fn check_heads(&self) -> Result<(), Mismatch> {
        let dims = [self.heads, self.kv_heads, self.head_dim];
        Mismatch::unless_positive(&dims, "heads and widths of one or more")?;
        Mismatch::unless_shared(self.heads, "heads", self.kv_heads, "key and value head")?;
        let rope_dim = self.rope_dim();
        Mismatch::unless(
            self.rope_theta.is_none()
                || rope_dim.is_multiple_of(2) && (2..=self.head_dim).contains(&rope_dim),
            || format!("rotary positions on {rope_dim} values of {}", self.head_dim),
            "an even number of values, at most the width of a head",
        )?;
        let misfit = self
            .rope_scaling
            .as_ref()
            .and_then(|scaling| scaling.misfit(rope_dim / 2));
        Mismatch::unless(
            misfit.is_none(),
            || misfit.clone().unwrap_or_default(),
            "positive, finite numbers, with a divisor for each frequency",
        )?;
        Mismatch::unless_base(self.rope_theta)?;
        let multipliers = [self.scale(), self.key_multiplier.unwrap_or(1.0)];
        Mismatch::unless(
            multipliers.iter().all(|x| x.is_finite()),
            || format!("multipliers {multipliers:?}"),
            "finite multipliers",
        )?;
        Mismatch::unless(
            self.gate || !self.gate_per_head && self.gate_function.is_none(),
            || "gate_per_head or gate_function without a gate".into(),
            "a gate",
        )?;
        Mismatch::unless(
            self.query_growth
                .is_none_or(|growth| growth.rate.is_finite() && growth.period > 0),
            || format!("{:?}", self.query_growth),
            "a finite rate and a period of one token or more",
        )?;
        Mismatch::unless(
            self.window != Some(0),
            || "window 0".into(),
            "a window of one token or more",
        )
    }

    /// Checks that this attention can have a retained set of `capacity` tokens, `sink` of them sinks.
    pub(super) fn check_set(&self, capacity: usize, sink: usize) -> Result<(), Mismatch> {
        Mismatch::unless(
            self.window.is_some(),
            || "no window".into(),
            "a sliding window",
        )?;
        Mismatch::unless(
            sink <= capacity && capacity > 0,
            || format!("{sink} sinks in a set of {capacity}"),
            "a set with room for the sinks",
        )
    }

    /// State tensors of a retained set, which follow the ring.
    pub(super) fn set_tensors(&self, capacity: usize, scored: bool) -> Vec<StateTensor> {
        use StateDtype::{F32, Kv, U32, U64};
        let set = [self.kv_heads, capacity, self.head_dim];
        let window = [self.kv_heads, self.window.unwrap_or(1)];
        let mut tensors = vec![
            StateTensor::new("set_keys", StateKind::Set, Kv, &set),
            StateTensor::new("set_values", StateKind::Set, Kv, &set),
            StateTensor::new("set_counts", StateKind::Counter, U32, &set[..1])
                .within(StateRange::UpTo(capacity as u64)),
            StateTensor::new("set_positions", StateKind::Set, U64, &set[..2])
                .within(StateRange::UpToPosition),
        ];
        if scored {
            tensors.extend([
                StateTensor::new("window_scores", StateKind::Ring, F32, &window),
                StateTensor::new("set_scores", StateKind::Set, F32, &set[..2]),
            ]);
        }
        tensors
    }

    /// The state tensors of the scores of the window and of the retained set.
    pub(super) fn score_tensors(layer: &Lowering) -> ScoreTensors {
        ScoreTensors {
            window: layer.state_tensor(WINDOW_SCORES),
            set: layer.state_tensor(SET_SCORES),
        }
    }

    /// An eviction by `policy` into the state tensors of the retained set.
    pub(super) fn eviction(layer: &Lowering, policy: Policy, sink: usize) -> Eviction {
        Eviction {
            policy,
            sink,
            set_keys: layer.state_tensor(SET_KEYS),
            set_values: layer.state_tensor(SET_VALUES),
            set_counts: layer.state_tensor(SET_COUNTS),
            set_positions: layer.state_tensor(SET_POSITIONS),
        }
    }

    /// Projects the input to q, the k and v that the layer has, and `more`.
    pub(super) fn project(&self, layer: &mut Lowering, more: &[&str]) -> Result<Vec<View>> {
        let own = match self.keys_of {
            Some(_) => 0,
            None => 2 - usize::from(self.values_are_keys),
        };
        let key = self.key_multiplier.unwrap_or(1.0);
        let mut factors = vec![("q_proj", 1.0)];
        factors.extend_from_slice(&[("k_proj", key), ("v_proj", 1.0)][..own]);
        factors.extend(more.iter().map(|name| (*name, 1.0)));
        layer.project_scaled(&factors)
    }

    /// Applies head norms and positions to q and k, and the gate functions to `gates`.
    pub(super) fn prepare(
        &self,
        layer: &mut Lowering,
        q: View,
        k: View,
        gates: Vec<(View, Gate)>,
    ) -> Result<()> {
        let groups = vec![
            self.queries(layer, q)?,
            self.group(layer, k, "k_norm.weight")?,
        ];
        self.push_prepared(layer, groups, gates);
        Ok(())
    }

    /// Like [`prepare`](Self::prepare), but writes to new columns and returns them. The router reads the unchanged
    /// projections, so neither op waits for the other.
    fn prepare_apart(&self, layer: &mut Lowering, [q, k, v]: [View; 3]) -> Result<[View; 3]> {
        let room = layer.buffer(q.width + k.width + v.width);
        let (own_q, rest) = room.split(q.width);
        let (own_k, own_v) = rest.split(k.width);
        let mut groups = vec![
            self.queries(layer, own_q)?,
            self.group(layer, own_k, "k_norm.weight")?,
            HeadGroup::per_channel(own_v, None, Vec::new()),
        ];
        for (group, from) in groups.iter_mut().zip([q, k, v]) {
            group.maps.insert(0, HeadOp::Copy(from));
        }
        self.push_prepared(layer, groups, Vec::new());
        Ok([own_q, own_k, own_v])
    }

    fn push_prepared(
        &self,
        layer: &mut Lowering,
        groups: Vec<HeadGroup>,
        gates: Vec<(View, Gate)>,
    ) {
        // Without head norms, positions and gates there is nothing to do.
        if groups.iter().all(|group| group.maps.is_empty()) && gates.is_empty() {
            return;
        }
        let rope = self.rope_theta.map(|theta| {
            let table = layer.buffer(self.rope_dim());
            Rope::new(theta, self.rope_scaling.as_ref(), table)
        });
        layer.push(Prepare {
            groups,
            rope,
            gates,
        });
    }

    /// The head group of queries.
    fn queries(&self, layer: &Lowering, view: View) -> Result<HeadGroup> {
        let mut group = self.group(layer, view, "q_norm.weight")?;
        group.maps.extend(self.query_growth.map(HeadOp::Grow));
        Ok(group)
    }

    /// The head group of queries or keys, with the head norm `norm` and positions if the mixer has them.
    fn group(&self, layer: &Lowering, view: View, norm: &str) -> Result<HeadGroup> {
        let mut maps = Vec::new();
        if let Some(eps) = self.head_norm_eps.filter(|_| !self.norm_over_heads) {
            maps.push(HeadOp::Rms(Norm::rms(layer.vector(norm)?, eps)));
        }
        if self.rope_theta.is_some() {
            maps.push(HeadOp::Rope);
        }
        Ok(HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: None,
            maps,
        })
    }

    /// The function of the gate.
    fn gate_function(&self) -> Activation {
        self.gate_function.unwrap_or(Activation::Sigmoid)
    }

    /// Multiplies each head of `out` by the function of its column of `gate`.
    fn gate_heads(&self, layer: &mut Lowering, out: View, gate: View) {
        layer.push(Prepare {
            groups: vec![HeadGroup {
                view: out,
                head_dim: self.head_dim,
                conv: None,
                maps: vec![HeadOp::Gate(gate, self.gate_function())],
            }],
            rope: None,
            gates: Vec::new(),
        });
    }

    /// Lowers the mixer; `before` adds ops on unrotated keys and values, between the projections and the positions.
    pub(super) fn lower_with(
        &self,
        layer: &mut Lowering,
        before: impl FnOnce(&mut Lowering, View, View) -> Result<Option<Eviction>>,
    ) -> Result<()> {
        let gate: &[&str] = if self.gate { &["g_proj"] } else { &[] };
        let mut views = self.project(layer, gate)?;
        let gate = self.gate.then(|| views.pop()).flatten();
        let q = views[0];
        let k = views.get(1).copied().unwrap_or(q);
        let v = views.get(2).copied().unwrap_or(k);
        if let Some(eps) = self.head_norm_eps.filter(|_| self.norm_over_heads) {
            for (columns, norm) in [(q, "q_norm.weight"), (k, "k_norm.weight")] {
                let norm = Norm::rms(layer.vector(norm)?, eps);
                layer.push(Normalize { columns, norm });
            }
        }
        let eviction = before(layer, k, v)?;
        let learned = |eviction: &Eviction| matches!(eviction.policy, Policy::Learned { .. });
        let [q, k, v] = if self.is_apart(layer) {
            self.prepare_shared(layer, &views)?
        } else if eviction.as_ref().is_some_and(learned) {
            self.prepare_apart(layer, [q, k, v])?
        } else {
            self.prepare(layer, q, k, Vec::new())?;
            [q, k, v]
        };
        let sinks = match self.sinks {
            true => Some(layer.vector(SINKS)?),
            false => None,
        };
        let ([keys, values], caches) = self.cache(layer)?;
        let out = layer.buffer(self.heads * self.head_dim);
        layer.push(Attend {
            heads: self.heads,
            kv_heads: self.kv_heads,
            q,
            k,
            v,
            scale: self.scale(),
            keys,
            values,
            caches,
            sinks,
            eviction,
            out,
        });
        let finish = match gate {
            Some(gate) if self.gate_per_head => {
                self.gate_heads(layer, out, gate);
                Vec::new()
            }
            Some(gate) => vec![OutputOp::Gate(gate, self.gate_function())],
            None => Vec::new(),
        };
        layer.emit(out, finish, "o_proj")
    }

    /// The state tensors of keys and values, this layer's or an earlier one's.
    fn cached(&self) -> Vec<StateTensor> {
        let rows = self.window.map_or(Size::Context, Size::Fixed);
        let shape = [Size::Fixed(self.kv_heads), rows, Size::Fixed(self.head_dim)];
        let ring = |name| StateTensor::cached(name, shape);
        let rotary = self.rope_theta.map(|theta| {
            let turned = View::whole(0, self.rope_dim());
            let rope = Rope::new(theta, self.rope_scaling.as_ref(), turned);
            Rotary {
                first: 0,
                frequencies: rope.frequencies.to_vec(),
            }
        });
        let mut tensors = vec![ring("keys").turning(rotary), ring("values")];
        if let Some(Retained {
            capacity, policy, ..
        }) = self.retained
        {
            let scored = matches!(policy, RetainedPolicy::Attention);
            tensors.extend(self.set_tensors(capacity, scored));
        }
        tensors
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
        self.check_heads()?;
        self.check_shared()?;
        let Some(retained) = self.retained else {
            return Ok(());
        };
        Mismatch::unless(
            !matches!(retained.policy, RetainedPolicy::Stride(0)),
            || "stride 0".into(),
            "a stride of one token or more",
        )?;
        self.check_set(retained.capacity, retained.sink)
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let width = self.heads * self.head_dim;
        let (has_keys, has_values) = (self.keys_of.is_none(), !self.values_are_keys);
        let mut weights = Vec::new();
        for (name, rows, is_there) in [
            ("q", width, true),
            ("k", self.kv_width(), has_keys),
            ("v", self.kv_width(), has_keys && has_values),
        ] {
            if !is_there {
                continue;
            }
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
            let over_heads = [width, self.kv_width()].map(|width| {
                if self.norm_over_heads {
                    width
                } else {
                    self.head_dim
                }
            });
            let norms = ["q_norm.weight", "k_norm.weight"].iter().zip(over_heads);
            for (name, width) in norms.take(1 + usize::from(has_keys)) {
                weights.push(WeightSpec::full(name, &[width]));
            }
        }
        if self.gate {
            let gates = if self.gate_per_head {
                self.heads
            } else {
                width
            };
            weights.push(WeightSpec::matrix("g_proj.weight", gates, hidden));
            if self.bias && !self.gate_per_head && self.gate_function.is_none() {
                weights.push(WeightSpec::full("g_proj.bias", &[gates]));
            }
        }
        if self.sinks {
            weights.push(WeightSpec::full(SINKS, &[self.heads]));
        }
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        if self.out_bias {
            weights.push(WeightSpec::full("o_proj.bias", &[hidden]));
        }
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        match self.keys_of {
            Some(_) if self.retained.is_none() => Vec::new(),
            _ => self.cached(),
        }
    }

    fn shares(&self) -> Option<Shared> {
        let layer = self.keys_of?;
        Some(Shared {
            layer,
            state: self.cached(),
        })
    }

    fn retaining(&self, window: Option<usize>, retained: Retained) -> Option<Arc<dyn Mixer>> {
        Some(Arc::new(Attention {
            window: window.or(self.window),
            retained: Some(retained),
            ..self.clone()
        }))
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        self.lower_with(layer, |layer, _, _| {
            Ok(self.retained.map(|retained| {
                let policy = match retained.policy {
                    RetainedPolicy::Attention => Policy::Attention(Self::score_tensors(layer)),
                    RetainedPolicy::Stride(every) => Policy::Stride(every),
                };
                Self::eviction(layer, policy, retained.sink)
            }))
        })
    }
}
