//! The removal and the write of a token in RWKV-7 (arXiv 2503.14456), from its key k, value v and learning
//! rates a:
//!
//! ```text
//! removal = normalise(key_gain k)                            per head
//! k      <- k (1 + rate_gain (a - 1))
//! v      <- v + mix (v_first - v)                            v_first: the first layer's v
//! bonus   = (sum over the head of bonus_gain r k) v          added to the token's own output
//! ```

mod cpu;
mod launch;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// How the first layer's values are used.
pub enum FirstValues {
    /// In the first layer: stores its values here, `[heads, dv]`.
    Keep(View),
    /// In later layers: mixes the first layer's values in.
    Mix {
        /// The first layer's values.
        first: View,
        /// The share of the first layer's values in the results.
        mix: View,
    },
}

/// The map, with one task per head.
pub struct Replace {
    /// Heads.
    pub heads: usize,
    /// Receptances `[heads, dk]`.
    pub r: View,
    /// Keys `[heads, dk]`, changed in place.
    pub k: View,
    /// Values `[heads, dv]`, changed in place, in a different buffer from the keys.
    pub v: View,
    /// Rates `[heads, dk]`.
    pub rate: View,
    /// `[heads, dk]`.
    pub key_gain: Vector,
    /// `[heads, dk]`.
    pub rate_gain: Vector,
    /// `[heads, dk]`.
    pub bonus_gain: Vector,
    /// Added to a key's sum of squares.
    pub eps: f32,
    /// The first layer's values.
    pub first: FirstValues,
    /// Destination of the removed keys, `[heads, dk]`.
    pub removal: View,
    /// Destination of the bonus, `[heads, dv]`.
    pub bonus: View,
}

impl Op for Replace {
    fn access(&self) -> Access {
        let access = Access::default()
            .reads([self.r, self.rate])
            .updates([self.k, self.v])
            .writes([self.removal, self.bonus]);
        match self.first {
            FirstValues::Keep(first) => access.writes([first]),
            FirstValues::Mix { first, mix } => access.reads([first, mix]),
        }
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("k", self.k, self.heads);
        rules.multiple("v", self.v, self.heads);
        rules.width("removal", self.removal, self.k.width);
        rules.width("bonus", self.bonus, self.v.width);
        let changed = [self.k, self.v, self.removal, self.bonus];
        match self.first {
            FirstValues::Keep(first) => {
                rules.width("the first layer's values", first, self.v.width);
                rules.apart("the changed columns", changed.into_iter().chain([first]));
            }
            FirstValues::Mix { .. } => rules.apart("the changed columns", changed),
        }
    }
}
