//! Softmax attention over a circular segment of cached keys, the chunk itself, and optionally a set of retained tokens. Position
//! p lies in row `p % rows` of the segment; a query sees the last `rows` positions, including its own.
//!
//! Keys are processed in tiles with a running softmax, so that the scratch does not grow with the context. A task is a key and
//! value head with all its query heads; if there are fewer of these heads than threads, the query heads are divided among tasks.

mod cpu;
mod launch;
mod retain;
mod tiles;

pub(super) use launch::{block, heads_together, unit};
pub use retain::{Eviction, Policy, ScoreTensors};

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// Attention with grouped key and value heads.
pub struct Attend {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Queries `[heads, head_dim]`.
    pub q: View,
    /// Keys `[kv_heads, head_dim]`.
    pub k: View,
    /// Values `[kv_heads, head_dim]`.
    pub v: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// The state tensor of the cached keys `[kv_heads, rows, head_dim]`.
    pub keys: usize,
    /// The state tensor of the cached values, of the same shape. Keys that are also the values use one state tensor for both, as
    /// they use one view.
    pub values: usize,
    /// Whether the op caches the chunk's keys and values. If a later op attends to the same keys and values, that op does.
    pub caches: bool,
    /// For each query head, the score of a sink, which has a weight in the softmax but no value; `None` for no sinks.
    pub sinks: Option<Vector>,
    /// Retention of tokens that leave the window.
    pub eviction: Option<Eviction>,
    /// Outputs `[heads, head_dim]`.
    pub out: View,
}

impl Attend {
    fn head_dim(&self) -> usize {
        self.k.width / self.kv_heads
    }

    /// Whether the values differ from the keys.
    fn has_own_values(&self) -> bool {
        self.values != self.keys
    }
}

impl Op for Attend {
    fn access(&self) -> Access {
        // Keys and values are rounded in place.
        let own_values = self.has_own_values();
        let tensors = [self.keys]
            .into_iter()
            .chain(own_values.then_some(self.values));
        let access = Access::default()
            .reads([self.q])
            .updates([self.k])
            .updates(own_values.then_some(self.v))
            .writes([self.out]);
        let access = match self.caches {
            true => access.state(tensors),
            false => access.reads_state(tensors),
        };
        match &self.eviction {
            Some(eviction) => eviction.access(access),
            None => access,
        }
    }

    fn check(&self, rules: &mut Rules) {
        let (heads, dim) = (Some(self.kv_heads), Some(self.head_dim()));
        rules.in_one_buffer("q, k and v", [self.q, self.k, self.v]);
        rules.multiple("k", self.k, self.kv_heads);
        rules.width("v", self.v, self.k.width);
        rules.width("q", self.q, self.heads * self.head_dim());
        rules.width("out", self.out, self.heads * self.head_dim());
        let sinks = self.sinks.as_ref().map_or(self.heads, |sinks| sinks.len());
        rules.holds(sinks == self.heads, || {
            format!("{sinks} sinks for {} query heads", self.heads)
        });
        rules.holds(self.caches || self.eviction.is_none(), || {
            "tokens that a later op caches are retained".into()
        });
        rules.state(self.keys, &[heads, None, dim]);
        rules.state(self.values, &[heads, None, dim]);
        if let Some(eviction) = &self.eviction {
            eviction.check(rules, heads, dim);
        }
    }

    fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        // Ops that attend to the same keys read the same bytes, which the op that caches counts.
        if !self.caches {
            return Vec::new();
        }
        let window = plan.tensors()[self.keys].shape[1] as u64;
        // The oldest row of the segment makes room for the token; it is read if it may be retained.
        let cached = match self.eviction {
            Some(_) => position.min(window),
            None => position.min(window - 1),
        };
        let row = |tensor| Touched::rows(plan, tensor, cached as usize, 1);
        let mut all = vec![row(self.keys)];
        all.extend(self.has_own_values().then(|| row(self.values)));
        if let Some(eviction) = &self.eviction {
            all.extend(eviction.touched(plan, position.checked_sub(window)));
        }
        all
    }
}
