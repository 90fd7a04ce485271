//! The end of a mixer: norms and gates its output, multiplies it and adds it to the residual stream.

mod cpu;
mod launch;

use super::project::Linear;
use super::{Access, Op};
use crate::functions::{Norm, OutputOp};
use crate::operands::{RESIDUAL, View};

/// `residual += norm(multiplier matrix finish(input) + bias)`.
pub struct Emit {
    /// The mixer's output.
    pub input: View,
    /// Norms and gates, in order.
    pub finish: Vec<OutputOp>,
    /// The output matrix `[hidden, input.width]`.
    pub linear: Linear,
    /// Applied to the product `[hidden]` before it is added.
    pub norm: Option<Norm>,
}

impl Op for Emit {
    fn access(&self) -> Access {
        let finish = self.finish.iter().filter_map(|finish| match finish {
            OutputOp::Add(view, _) | OutputOp::Gate(view, _) => Some(*view),
            OutputOp::Norm(_) | OutputOp::GroupNorm(..) | OutputOp::Map(_) => None,
        });
        Access::default()
            .reads([self.input])
            .reads(finish)
            .updates([View::whole(RESIDUAL, self.linear.matrix.rows())])
    }

    fn weight_bytes(&self) -> usize {
        self.linear.matrix.bytes().len()
    }
}
