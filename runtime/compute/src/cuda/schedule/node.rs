//! Nodes: what a kernel call computes, as data. Passes rewrite nodes; then each node gives its arguments to its call.

use super::{Accesses, Attention, Gemv, Parameter, PrepareTasks, RecurInputs, Recurrence, Rows};

/// What a call computes.
pub enum Node {
    /// A kernel of its own, which waits for its inputs before it begins.
    Waits,
    /// A kernel of its own, which prefetches weights and calls `wait_for_dependencies` itself.
    Prefetches,
    /// Convolutions, maps of heads and gates of columns: `prepare.cu`.
    Map(Box<PrepareTasks>),
    /// In the decode kernel: a product with streamed weights, `gemv.cu`.
    Gemv(Gemv),
    /// In the decode kernel: a token of a recurrence, `recur_step.cu`.
    RecurStep(Box<Recurrence>),
    /// A recurrence, token by token: `recur.cu`.
    Recur {
        inputs: Box<RecurInputs>,
        /// Whether the kernel can scale queries and keys to unit length.
        can_normalize: bool,
    },
    /// Attention: `attend.cu`, `retain.cu`.
    Attend(Box<Attention>),
}

impl Node {
    /// Whether the kernel calls `wait_for_dependencies` itself.
    pub(crate) fn prefetches(&self) -> bool {
        match self {
            Node::Waits => false,
            Node::Attend(attention) => attention.prefetches,
            _ => true,
        }
    }

    /// Returns the memory that the node accesses, if its arguments determine it.
    pub(crate) fn accesses(&self) -> Option<Accesses> {
        match self {
            Node::Map(tasks) => Some(tasks.accesses()),
            Node::Gemv(gemv) => gemv.accesses(),
            Node::RecurStep(recurrence) => Some(recurrence.accesses()),
            Node::Waits | Node::Prefetches | Node::Recur { .. } | Node::Attend(_) => None,
        }
    }

    /// Returns the columns of queries and keys whose heads a recurrence can scale to unit length, and its argument that makes it do so.
    pub(crate) fn unit_heads(&mut self) -> Option<([Rows; 2], &mut i32)> {
        match self {
            Node::RecurStep(recurrence) if recurrence.can_normalize => {
                let [Some(q), Some(k), ..] = recurrence.inputs[..] else {
                    return None;
                };
                Some(([q, k], &mut recurrence.step.unit))
            }
            Node::Recur {
                inputs,
                can_normalize: true,
            } => Some(([inputs.q.rows, inputs.k.rows], &mut inputs.unit)),
            _ => None,
        }
    }

    /// Adds the node's arguments to the other parameters of its call.
    pub(crate) fn complete(&self, parameters: &mut Vec<Parameter>) {
        let first = match self {
            Node::Waits | Node::Prefetches => return,
            Node::Gemv(gemv) => {
                let row_ops = gemv.row_ops.as_deref().copied();
                parameters.extend(row_ops.map(Parameter::value));
                return;
            }
            Node::Map(tasks) => vec![Parameter::value(**tasks)],
            Node::RecurStep(recurrence) => vec![Parameter::value(recurrence.step)],
            Node::Recur { inputs, .. } => vec![Parameter::value(**inputs)],
            Node::Attend(attention) => attention.arguments(),
        };
        parameters.splice(0..0, first);
    }
}
