//! The selective scan: a recurrence in which every channel keeps a vector of `state` values, each with a separate decay. For
//! channel d and component n (Mamba, arXiv 2312.00752, algorithm 2):
//!
//! ```text
//! h[n, d] <- exp(step_d rate[n, d]) h[n, d] + step_d x_d b[n],    y_d = sum_n c[n] h[n, d]
//! ```
//!
//! The decay differs by component and by token, so there is no matrix form: a chunk runs the steps in order, and gives the same bits.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// The scan over all channels.
pub struct Scan {
    /// Inputs x `[channels]`.
    pub x: View,
    /// Step sizes before their softplus, `[channels]`.
    pub step: View,
    /// The input weight of each component, `[state]`.
    pub b: View,
    /// The output weight of each component, `[state]`.
    pub c: View,
    /// A, `[state, channels]`.
    pub rate: Vector,
    /// The state tensor of the states `[state, channels]`.
    pub state: usize,
    /// Outputs y `[channels]`.
    pub out: View,
}

impl Op for Scan {
    fn access(&self) -> Access {
        Access::default()
            .reads([self.x, self.step, self.b, self.c])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.width("out", self.out, self.x.width);
        rules.state(self.state, &[Some(self.b.width), Some(self.x.width)]);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}
