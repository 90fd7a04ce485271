//! The step of a recurrence as an op of the decode kernel.

use super::{Accesses, Rows};

/// The step of a recurrence, which can read its inputs from mailboxes.
pub struct Recurrence {
    /// The columns of each input, in the order of its parameters; `None` for an absent input.
    pub inputs: Vec<Option<Rows>>,
    /// Number of leading inputs that the sums over the state need; the other inputs are read after these sums.
    pub sum_inputs: usize,
    /// Bytes of an input's parameter, which begins with its mailbox.
    pub input_bytes: usize,
    /// The outputs of all heads.
    pub output: Rows,
    /// Blocks that have a part of the states.
    pub blocks: usize,
}

impl Recurrence {
    /// Returns the memory that the step accesses, without its states.
    pub(crate) fn accesses(&self) -> Accesses {
        let inputs = self.inputs.iter().flatten();
        Accesses {
            reads: inputs.map(|rows| rows.bytes()).collect(),
            writes: vec![self.output.bytes()],
        }
    }

    /// Whether the sums need any of these columns.
    pub fn sums(&self, columns: Rows) -> bool {
        let mut inputs = self.inputs[..self.sum_inputs].iter().flatten();
        inputs.any(|&input| input.overlaps(columns))
    }
}
