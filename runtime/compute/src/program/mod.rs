//! A model as a list of ops over buffers, for both backends.

mod schedule;
mod validate;
mod workspace;

pub use schedule::{Link, Schedule, name as operand_name};
pub use workspace::{Workspace, widths};

use crate::operands::Operand;
use crate::ops::{Logits, Op};
use crate::state::{StatePlan, Touched};

/// A bound model: ops in order, and the buffers between them.
pub struct Program {
    /// Width of each buffer, large enough for every use: a buffer holds `[tokens, width]`.
    pub widths: Vec<usize>,
    /// The ops that read tokens into the state.
    pub ops: Vec<Box<dyn Op>>,
    /// For each layer, the number of ops up to its end.
    pub layer_ends: Vec<usize>,
    /// Turns the residual stream into logits, for the tokens whose logits are needed.
    pub logits: Logits,
}

impl Program {
    /// Bytes of weights that reading one token touches: each matrix once, and one row of the embedding.
    pub fn weight_bytes(&self) -> usize {
        self.ops.iter().map(|op| op.weight_bytes()).sum::<usize>()
            + self.logits.matrix.bytes().len()
    }

    /// Whether an op routes tokens to experts or partitions.
    pub fn has_routing(&self) -> bool {
        self.ops.iter().any(|op| op.is_discrete())
    }

    /// The layer of an op; `None` for the embedding.
    pub(crate) fn layer_of(&self, op: usize) -> Option<usize> {
        (op > 0).then(|| self.layer_ends.partition_point(|&end| end <= op))
    }

    /// Whether at most one later op of its layer reads columns that this op writes.
    pub fn is_read_once(&self, op: usize) -> bool {
        let written = self.ops[op].access().writes;
        let end = self.layer_ends.iter().find(|&&end| end > op);
        let end = end.copied().unwrap_or(self.ops.len());
        let reads = |later: &dyn Op| {
            let reads = later.access().reads;
            let columns = reads
                .iter()
                .filter(|read| matches!(read, Operand::Columns(_)));
            columns
                .into_iter()
                .any(|read| written.iter().any(|w| w.overlaps(read)))
        };
        self.ops[op + 1..end]
            .iter()
            .filter(|op| reads(&***op))
            .count()
            < 2
    }

    /// For each op that is `chosen`, the number of chosen ops of its layer that may run at the same time, itself included; 1 for other ops.
    pub fn concurrent(&self, chosen: impl Fn(&dyn Op) -> bool) -> Vec<usize> {
        let mut counts = vec![1; self.ops.len()];
        let mut first = 0;
        for &end in &self.layer_ends {
            let ops = &self.ops[first..end];
            let of_layer: Vec<usize> = (0..ops.len()).filter(|&i| chosen(&*ops[i])).collect();
            if of_layer.len() > 1 {
                let accesses: Vec<_> = ops.iter().map(|op| op.access()).collect();
                let accesses: Vec<_> = accesses.iter().collect();
                let together = schedule::concurrent(&accesses, &of_layer);
                for (op, together) in of_layer.into_iter().zip(together) {
                    counts[first + op] = together;
                }
            }
            first = end;
        }
        counts
    }

    /// The parts of the layers' state tensors that reading the token at `position` touches.
    pub fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let ops = self.ops.iter();
        ops.flat_map(|op| op.touched(plan, position)).collect()
    }
}
