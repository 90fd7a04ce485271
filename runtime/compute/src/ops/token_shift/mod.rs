//! Mixes each normed token with the previous one.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// `h + mix (h_before - h)` with `h = norm(residual)`, for each of several mixes; `h_before` is zero for the first token.
pub struct TokenShift {
    /// Applied to the residual stream first.
    pub norm: Option<Norm>,
    /// The share of the previous token in each result, for each channel.
    pub mixes: Vec<Vector>,
    /// The state tensor of the last normed token `[hidden]`.
    pub state: usize,
    /// Destination of the results, `[mixes, hidden]`.
    pub out: View,
}

impl Op for TokenShift {
    fn access(&self) -> Access {
        Access::default()
            .reads([View::whole(RESIDUAL, self.mixes[0].len())])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let hidden = self.mixes[0].len();
        rules.width("out", self.out, self.mixes.len() * hidden);
        rules.state(self.state, &[Some(hidden)]);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}
