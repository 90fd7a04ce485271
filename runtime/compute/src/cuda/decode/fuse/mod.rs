//! Passes that merge neighbouring nodes of a decode kernel; each merge saves a synchronization. Ops append their nodes as if they were alone.

mod rotation;
mod row_ops;
mod score;
mod unit_heads;

use std::collections::VecDeque;

use crate::cuda::schedule::{Node, PrepareTasks, Queued};

/// The passes, in order.
const PASSES: [(&str, Pass); 4] = [
    ("row ops of a product", row_ops::rewrite),
    ("unit heads in a recurrence", unit_heads::rewrite),
    ("rotation in attention", rotation::rewrite),
    ("a score stored once", score::rewrite),
];

type Pass = fn(&mut Site) -> Outcome;

/// A node, the merged nodes before it, and the nodes after it.
struct Site<'a> {
    before: &'a mut [Queued],
    node: &'a mut Queued,
    after: &'a mut VecDeque<Queued>,
    /// Whether at most one other op reads the output of the op with this index.
    read_once: &'a dyn Fn(usize) -> bool,
}

/// The outcome of a pass for one node.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The node does not have the pass's pattern.
    Other,
    /// The node has the pattern, but cannot be merged for this reason.
    Refused(&'static str),
    /// The node stays, with less work.
    Reduced,
    /// Other nodes do all of its work.
    Merged,
}

/// Merges the nodes of a step, and returns their calls. `read_once` returns, for the index of an op, whether at most one other op reads
/// its output.
pub fn merge(nodes: Vec<Queued>, read_once: impl Fn(usize) -> bool) -> Vec<Queued> {
    let mut calls = rewrite(nodes, read_once);
    calls.iter_mut().for_each(Queued::complete);
    calls
}

/// Applies the passes to each node in order.
pub(in crate::cuda) fn rewrite(
    nodes: Vec<Queued>,
    read_once: impl Fn(usize) -> bool,
) -> Vec<Queued> {
    let mut after = VecDeque::from(nodes);
    let mut merged: Vec<Queued> = Vec::new();
    'nodes: while let Some(mut node) = after.pop_front() {
        for (name, rewrite) in PASSES {
            let outcome = rewrite(&mut Site {
                before: &mut merged,
                node: &mut node,
                after: &mut after,
                read_once: &read_once,
            });
            match outcome {
                Outcome::Merged => continue 'nodes,
                Outcome::Refused(reason) => node.refusals.push((name, reason)),
                Outcome::Other | Outcome::Reduced => {}
            }
        }
        merged.push(node);
    }
    #[cfg(any(test, feature = "emulator"))]
    assert!(!merged.iter().any(Queued::exceeds_op));
    merged
}

impl Site<'_> {
    /// Returns the node's maps and gates, if it has nothing else.
    fn tasks(&self) -> Option<&PrepareTasks> {
        match &self.node.node {
            Node::Map(tasks) => Some(tasks),
            _ => None,
        }
    }

    /// Hands the node's whole work over to the op after it. `rewrite` makes a kernel of that op do the work, or use what another one of
    /// them did; it returns which of the two, or `None` if the kernel can do neither.
    fn hand_over(&mut self, rewrite: impl Fn(&mut Queued) -> Option<bool>) -> Outcome {
        let (Some(memory), Some(next)) = (&self.node.of, self.after.front().and_then(Queued::op))
        else {
            return Outcome::Other;
        };
        if !(self.read_once)(memory.op) {
            return Outcome::Refused("several ops read the results");
        }
        let mut is_computed = false;
        let kernels = self.after.iter_mut();
        let kernels = kernels.take_while(|queued| queued.op() == Some(next));
        for (index, queued) in kernels.enumerate() {
            let computes = rewrite(queued);
            if index == 0 && computes.is_none() {
                return Outcome::Refused("the next op cannot do it");
            }
            if let Some(of) = &mut queued.of {
                of.accesses.reads.extend_from_slice(&memory.accesses.reads);
                let written = &memory.accesses.writes;
                of.accesses.writes.extend_from_slice(written);
            }
            if computes == Some(true) && !is_computed {
                queued.also.push(memory.op);
                is_computed = true;
            }
        }
        Outcome::Merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::Address;
    use crate::cuda::schedule::{Accesses, Call, Grid, OpMemory, Parameter, Rows};

    pub const ROWS: [Rows; 2] = [rows(16), rows(144)];

    pub const fn rows(first: Address) -> Rows {
        Rows {
            first,
            stride: 64,
            width: 16,
        }
    }

    /// A node of op number `op`, which may access [`ROWS`].
    pub fn queued(kernel: &str, op: usize, node: Node) -> Queued {
        let call = Call {
            source: &[],
            kernel: kernel.into(),
            grid: Grid::Blocks(4),
            threads: 32,
            shared: 0,
            parameters: vec![Parameter::int(0)],
        };
        Queued {
            of: Some(OpMemory {
                op,
                accesses: Accesses {
                    reads: ROWS.map(Rows::bytes).to_vec(),
                    writes: ROWS.map(Rows::bytes).to_vec(),
                },
                own: Vec::new(),
            }),
            ..Queued::new(call, node)
        }
    }

    pub fn kernels(nodes: &[Queued]) -> Vec<&str> {
        nodes.iter().map(|queued| &*queued.call.kernel).collect()
    }
}
