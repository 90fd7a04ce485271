//! Arguments of recurrences: `recur.cu` and, in the decode kernel, `recur_step.cu`.

use std::ops::Range;

use super::{Accesses, Rows};
use crate::abi::{device_enum, device_struct};
use crate::cuda::driver::Address;

device_struct! {
    /// An input of a recurrence. Head h reads columns from `(h / sharing) * width` on, within one of several equal parts.
    pub(crate) struct RecurInput {
        pub rows: Rows,
        /// Number of heads that read the same columns.
        pub sharing: i32,
        /// Columns of each partition's part; 0 if the partitions share their columns.
        pub part: i32,
    }
    "__device__ const float* at(int t, int head, int width, int number) const"
}

device_struct! {
    /// The inputs of a recurrence; absent inputs are zero.
    pub struct RecurInputs {
        pub(crate) q: RecurInput,
        pub(crate) k: RecurInput,
        pub(crate) v: RecurInput,
        pub(crate) decay: RecurInput,
        pub(crate) beta: RecurInput,
        pub(crate) removal: RecurInput,
        pub(crate) rate: RecurInput,
        pub(crate) write_gate: RecurInput,
        pub(crate) read_gate: RecurInput,
        pub(crate) out: Rows,
        /// The gates that multiply outputs.
        pub(crate) gates: Rows,
        /// Gains of the values that are added to outputs.
        pub(crate) gains: Address as *const f32,
        /// The decay's constants, one for each `constant_sharing` heads.
        pub(crate) constants: Address as *const f32,
        pub(crate) states: Address as *mut f32,
        pub(crate) scale: f32,
        pub(crate) constant_sharing: i32,
        /// Whether a step of the delta rule normalizes queries and keys to unit length.
        pub(crate) unit: i32,
        /// Activation of the gate.
        pub(crate) function: i32,
    }
}

impl RecurInputs {
    /// The columns that one token reads.
    pub(crate) fn read(&self) -> Vec<Range<Address>> {
        let inputs = [
            self.q,
            self.k,
            self.v,
            self.decay,
            self.beta,
            self.removal,
            self.rate,
            self.write_gate,
            self.read_gate,
        ];
        let rows = inputs.map(|input| input.rows).into_iter();
        let given = rows.chain([self.gates]).filter(|rows| rows.width > 0);
        given.map(Rows::bytes).collect()
    }
}

device_enum! {
    /// The inputs of a step; the inputs that the sums need come first.
    pub(crate) enum StepOperand("STEP_") {
        Q,
        K,
        V,
        Decays,
        Betas,
        Removal,
        Rate,
        WriteGates,
        Reads,
        Gates,
    }
}

/// Number of inputs of a step, and of the inputs that the sums need: all but the gates.
pub(crate) const STEP_INPUTS: usize = StepOperand::Gates as usize + 1;
const SUM_INPUTS: usize = STEP_INPUTS - 1;

device_struct! {
    /// An input of a step.
    pub(crate) struct StepInput {
        /// The mailbox; null where a grid barrier precedes the op.
        pub from: Address as *mut f32,
        /// The buffer; null if the step has no such input.
        pub plain: Address as *const f32,
        /// Columns per head.
        pub width: i32,
        /// 65536 divided by the number of heads that share columns, rounded up.
        pub shares: u32,
    }
    "__device__ int column(int number) const"
}

device_struct! {
    /// Arguments of a step of a recurrence.
    pub(crate) struct RecurStep {
        /// The inputs, in the order of [`StepOperand`].
        pub input: [StepInput; STEP_INPUTS],
        pub out: Address as *mut f32,
        /// Gains of the values that are added to outputs.
        pub gains: Address as *const f32,
        /// The decay's constants.
        pub constants: Address as *const f32,
        pub states: Address as *mut f32,
        pub scale: f32,
        /// 65536 divided by the number of heads that share a constant, rounded up.
        pub constant_shares: u32,
        /// Whether the delta rule normalizes queries and keys to unit length.
        pub unit: i32,
        pub pad: i32,
    }
}

/// The step of a recurrence, which can read its inputs from mailboxes.
pub struct Recurrence {
    pub(crate) step: RecurStep,
    /// The columns of each input; `None` for an absent input.
    pub(crate) inputs: [Option<Rows>; STEP_INPUTS],
    /// The outputs of all heads.
    pub(crate) output: Rows,
    /// Blocks that have a part of the states.
    pub(crate) blocks: usize,
    /// Whether the step can scale queries and keys to unit length.
    pub(crate) can_normalize: bool,
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
    pub(crate) fn sums(&self, columns: Rows) -> bool {
        let mut inputs = self.inputs[..SUM_INPUTS].iter().flatten();
        inputs.any(|&input| input.overlaps(columns))
    }
}
