//! A model as a list of ops over buffers: what both backends run.

mod schedule;
mod validate;

pub use schedule::Schedule;

use crate::ops::{Logits, Op};
use crate::state::{StatePlan, Touched};

/// A bound model: ops in order, and the buffers between them.
pub struct Program {
    /// Widest use of each buffer: it has room for `[tokens, width]`.
    pub widths: Vec<usize>,
    /// The ops that read tokens into the state.
    pub(crate) ops: Vec<Box<dyn Op>>,
    /// How many ops come before each layer's end.
    pub(crate) layer_ends: Vec<usize>,
    /// What turns the residual stream into logits, for the tokens whose logits are needed.
    pub logits: Logits,
}

impl Program {
    /// Bytes of weights that reading one token touches: every matrix once, and one row of the embedding.
    pub fn weight_bytes(&self) -> usize {
        self.ops.iter().map(|op| op.weight_bytes()).sum::<usize>()
            + self.logits.matrix.bytes().len()
    }

    /// The layer of an op; none for the embedding.
    pub(crate) fn layer_of(&self, op: usize) -> Option<usize> {
        (op > 0).then(|| self.layer_ends.partition_point(|&end| end <= op))
    }

    /// What reading the token at `position` touches of the layers' state tensors.
    pub fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let ops = self.ops.iter();
        ops.flat_map(|op| op.touched(plan, position)).collect()
    }
}
