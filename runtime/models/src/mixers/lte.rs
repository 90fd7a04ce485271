//! Learnable token eviction (arXiv 2510.20787; idiap hybrid-linear-sparse-attention `fla/layers/lte.py`).
//!
//! Sliding-window attention with a retained set. A router scores each token from the keys (unrotated) and values around it;
//! of the tokens that leave the window, each KV head retains the `capacity` tokens with the highest scores.
//! ```text
//! score_p = map(conv stack over [k; v] at p - margin ..= p + margin)     the first `sink` tokens: infinity
//! o_t     = softmax attention over t - window < j <= t and the retained set at t
//! ```
//! When token t enters, token `t - window` leaves. It is retained if its score is above zero and the set has room or contains a
//! strictly lower score. In the reference, all queries of a prompt see the retained set at the prompt's end, which is not
//! causal; here every query sees the retained set at its own position, as in the reference's decoding.
//! State: keys, values and scores of the window and of the retained set, the positions of the latter, and the router's last inputs.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attention::{AFTER_SET, Attention};
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::{Policy, RouterLayer, Score};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub use crate::ops::ScoreMap;

pub(super) const KIND: &str = "lte";

/// Whether each key and value head has its own router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouterScope {
    /// One router per head.
    Head,
    /// One router for the layer.
    Layer,
}

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lte {
    /// The attention; a query sees its window and the retained set.
    pub attention: Attention,
    /// Size of a KV head's retained set, sinks included.
    pub capacity: usize,
    /// Tokens at the start that are always retained.
    pub sink: usize,
    /// Taps of each router convolution.
    pub router_taps: Vec<usize>,
    /// Dilation of each router convolution.
    pub router_dilations: Vec<usize>,
    /// One router per KV head, or one per layer.
    pub router_scope: RouterScope,
    /// Maps a router's output to a score.
    pub score: ScoreMap,
}

impl Lte {
    /// Number of later tokens that a token's score depends on.
    fn margin(&self) -> usize {
        self.past().map(|past| past - past / 2).sum()
    }

    /// Number of earlier inputs that each router layer reads.
    fn past(&self) -> impl Iterator<Item = usize> {
        self.router_taps
            .iter()
            .zip(&self.router_dilations)
            .map(|(taps, dilation)| (taps - 1) * dilation)
    }

    /// Input channels of router layer `i`.
    fn channels(&self, i: usize) -> usize {
        (2 * self.attention.head_dim) >> i
    }

    fn groups(&self) -> usize {
        match self.router_scope {
            RouterScope::Head => self.attention.kv_heads,
            RouterScope::Layer => 1,
        }
    }

    fn window(&self) -> usize {
        self.attention.window.unwrap_or(1)
    }
}

impl Mixer for Lte {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.attention.check_heads()?;
        self.attention.check_set(self.capacity, self.sink)?;
        Mismatch::unless(
            self.attention.retained.is_none(),
            || format!("{:?}", self.attention.retained),
            "no retained set other than the router's",
        )?;
        let (taps, dilations) = (&self.router_taps, &self.router_dilations);
        Mismatch::unless(
            taps.len() == dilations.len()
                && (1..=8).contains(&taps.len())
                && taps.iter().chain(dilations).all(|n| (1..=4096).contains(n)),
            || format!("router taps {taps:?} with dilations {dilations:?}"),
            "1 to 8 taps and the same number of dilations, each from 1 to 4096",
        )?;
        Mismatch::unless(
            self.channels(taps.len()) > 0 && self.channels(0).is_multiple_of(1 << taps.len()),
            || {
                format!(
                    "{} router layers on {} channels",
                    taps.len(),
                    self.channels(0)
                )
            },
            "a number of channels that every layer can halve",
        )?;
        Mismatch::unless(
            self.window() > self.margin(),
            || {
                format!(
                    "a window of {} tokens, scores known after {}",
                    self.window(),
                    self.margin()
                )
            },
            "a window longer than the router's margin of later tokens",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = self.attention.weights(hidden);
        let stack = "router.conv_stack";
        let groups = self.groups();
        for (i, &taps) in self.router_taps.iter().enumerate() {
            let (inputs, outputs) = (self.channels(i), self.channels(i + 1));
            let shape = [groups * outputs, inputs, taps];
            weights.push(WeightSpec::full(
                &format!("{stack}.convs.{i}.weight"),
                &shape,
            ));
            weights.push(WeightSpec::full(
                &format!("{stack}.convs.{i}.bias"),
                &[groups * outputs],
            ));
        }
        let last = self.channels(self.router_taps.len());
        weights.push(WeightSpec::full(
            &format!("{stack}.proj.weight"),
            &[groups, last],
        ));
        weights.push(WeightSpec::full(&format!("{stack}.proj.bias"), &[groups]));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let mut tensors = self.attention.state();
        tensors.extend(self.attention.set_tensors(self.capacity, true));
        const NAMES: [&str; 8] = [
            "router_0", "router_1", "router_2", "router_3", "router_4", "router_5", "router_6",
            "router_7",
        ];
        for (i, (past, name)) in self.past().zip(NAMES).enumerate() {
            let shape = [self.attention.kv_heads, past, self.channels(i)];
            tensors.push(StateTensor::new(
                name,
                StateKind::Shift,
                StateDtype::F32,
                &shape,
            ));
        }
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        self.attention.lower_with(layer, |layer, k, v| {
            let stack = "router.conv_stack";
            let mut layers = Vec::new();
            for (i, &dilation) in self.router_dilations.iter().enumerate() {
                let weight = layer.vector(&format!("{stack}.convs.{i}.weight"))?;
                let bias = layer.vector(&format!("{stack}.convs.{i}.bias"))?;
                let (inputs, outputs) = (self.channels(i), self.channels(i + 1));
                layers.push(RouterLayer::new(
                    &weight,
                    bias,
                    inputs,
                    outputs,
                    dilation,
                    layer.state_tensor(AFTER_SET + i),
                ));
            }
            let scores = layer.buffer(self.attention.kv_heads);
            layer.push(Score {
                kv_heads: self.attention.kv_heads,
                k,
                v,
                layers,
                weight: layer.vector(&format!("{stack}.proj.weight"))?,
                bias: layer.vector(&format!("{stack}.proj.bias"))?,
                map: self.score,
                out: scores,
                window: Some(Attention::score_tensors(layer).window),
            });
            let policy = Policy::Learned {
                router: scores,
                margin: self.margin(),
                scores: Attention::score_tensors(layer),
            };
            Ok(Some(Attention::eviction(layer, policy, self.sink)))
        })
    }
}
