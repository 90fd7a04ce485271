//! Inputs of the recurrence's kernels, and the kinds of decays and writes.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::cuda::{Address, Rows};

/// `RecurInput` in recur.cu: where a head's columns of an input lie.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::ops) struct Input {
    pub rows: Rows,
    /// Heads that take the same columns.
    pub sharing: i32,
    /// Columns of a partition, where each has its own.
    pub part: i32,
}

/// `RecurInputs` in recur.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(in crate::ops) struct DeviceInputs {
    pub q: Input,
    pub k: Input,
    pub v: Input,
    pub decay: Input,
    pub beta: Input,
    pub removal: Input,
    pub rate: Input,
    pub write_gate: Input,
    pub read_gate: Input,
    pub out: Rows,
    /// By which outputs are multiplied, and the gains of values that are added to them.
    pub gates: Rows,
    pub gains: Address,
    pub constants: Address,
    pub states: Address,
    pub scale: f32,
    pub constant_sharing: i32,
    /// Whether a step gives queries and keys the length of one.
    pub unit: i32,
    /// Activation of the gate.
    pub function: i32,
}

/// How a state decays, by its number in recur.cu.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum DecayKind {
    None,
    Fixed,
    Head,
    Step,
    Rows,
    ByKey,
    ByValue,
}

/// The kind of write, by its number in recur.cu.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum Writing {
    Add,
    Delta,
    Replace,
    Erase,
}

impl Writing {
    /// Vectors of a key's width in addition to the key: the removal's key, and the rate of each of its
    /// channels.
    pub(crate) fn removal_vectors(self) -> usize {
        match self {
            Writing::Add | Writing::Delta => 0,
            Writing::Erase => 1,
            Writing::Replace => 2,
        }
    }
}

impl DeviceInputs {
    /// The columns of one token that are read.
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
