//! The real-gated linear recurrent unit (Griffin, arXiv 2402.19427, section 2.4; transformers `models/recurrent_gemma`): each
//! channel is a scalar with a separate decay. The channels are split into heads, each of which has a square matrix for each
//! gate:
//!
//! ```text
//! i, r  = sigmoid(x W_i + b_i), sigmoid(x W_r + b_r)        per head
//! log a = rate r
//! h    <- a h + sqrt(1 - a^2) i x;  y = h                   at position 0 the root is one
//! ```

mod cpu;
mod launch;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// One gate of all heads.
pub struct HeadMatrices {
    /// `[heads, width, width]`; a head's input is a row vector on its left.
    pub weight: Vector,
    /// Added to the products `[channels]`.
    pub bias: Vector,
}

/// The recurrence over all channels.
pub struct RgLru {
    /// Groups of channels with separate matrices.
    pub heads: usize,
    /// Inputs `[channels]`.
    pub x: View,
    /// The input gate.
    pub input: HeadMatrices,
    /// The recurrence gate, which scales the logarithm of the decay.
    pub recurrence: HeadMatrices,
    /// The logarithm of the strongest decay, `[channels]`.
    pub rate: Vector,
    /// The state tensor of the states `[channels]`.
    pub state: usize,
    /// Outputs `[channels]`.
    pub out: View,
}

impl RgLru {
    fn head_dim(&self) -> usize {
        self.x.width / self.heads
    }
}

impl Op for RgLru {
    fn access(&self) -> Access {
        Access::default()
            .reads([self.x])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("x", self.x, self.heads);
        rules.width("out", self.out, self.x.width);
        rules.state(self.state, &[Some(self.x.width)]);
    }

    fn weight_bytes(&self) -> usize {
        let gates = [&self.input, &self.recurrence];
        let bytes = |gate: &&HeadMatrices| std::mem::size_of_val(&gate.weight[..]);
        gates.iter().map(bytes).sum()
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}
