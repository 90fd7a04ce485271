//! Inputs of the recurrence's kernels, and the kinds of decays and writes.

use std::ops::Range;

use crate::abi::{device_enum, device_struct};
use crate::cuda::{Address, Rows};

device_struct! {
    /// An input of a recurrence. Head h reads columns from `(h / sharing) * width` on, within one of several equal parts.
    pub(in crate::ops) struct RecurInput {
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
    pub(in crate::ops) struct RecurInputs {
        pub q: RecurInput,
        pub k: RecurInput,
        pub v: RecurInput,
        pub decay: RecurInput,
        pub beta: RecurInput,
        pub removal: RecurInput,
        pub rate: RecurInput,
        pub write_gate: RecurInput,
        pub read_gate: RecurInput,
        pub out: Rows,
        /// The gates that multiply outputs.
        pub gates: Rows,
        /// Gains of the values that are added to outputs.
        pub gains: Address as *const f32,
        /// The decay's constants, one for each `constant_sharing` heads.
        pub constants: Address as *const f32,
        pub states: Address as *mut f32,
        pub scale: f32,
        pub constant_sharing: i32,
        /// Whether a step of the delta rule normalizes queries and keys to unit length.
        pub unit: i32,
        /// Activation of the gate.
        pub function: i32,
    }
}

device_enum! {
    /// How a state decays: not at all; by exp of a constant, of a value per head, of their product, or of a value per row; or by
    /// one minus the keys or the values.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(in crate::ops) enum DecayKind("DECAY_") {
        None,
        Fixed,
        Head,
        Step,
        Rows,
        ByKey,
        ByValue,
    }
}

device_enum! {
    /// The kind of write.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(in crate::ops) enum Writing("WRITE_") {
        Add,
        Delta,
        Replace,
        Erase,
    }
}

impl Writing {
    /// Number of vectors of key width besides the key: the removal key, and the rate of each of its channels.
    pub(crate) fn removal_vectors(self) -> usize {
        match self {
            Writing::Add | Writing::Delta => 0,
            Writing::Erase => 1,
            Writing::Replace => 2,
        }
    }
}

impl RecurInputs {
    /// The columns that one token reads.
    pub fn read(&self) -> Vec<Range<Address>> {
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

    /// The template argument `finish`.
    pub(super) fn finish(&self) -> i32 {
        let function = if self.gates.width > 0 {
            1 + self.function
        } else {
            0
        };
        2 * function + i32::from(self.gains != 0)
    }

    /// Whether rows begin at multiples of 16 bytes.
    pub(super) fn aligned(&self, decay_kind: DecayKind) -> bool {
        let decay = (decay_kind == DecayKind::Rows).then_some(self.decay);
        let rows = [self.q, self.k, self.v, self.removal, self.rate];
        (rows.iter().chain(&decay)).all(|input| input.rows.is_aligned() && input.part % 4 == 0)
    }
}
