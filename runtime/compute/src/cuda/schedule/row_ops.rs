//! Row ops of a product's epilogue, and the tasks of `prepare`, which does the same to stored columns. Arguments of `prepare.cu`.

use super::{Accesses, Rows, Source};
use crate::abi::{DeviceType, device_enum, device_struct};
use crate::cuda::driver::Address;

/// The file that defines both.
pub(crate) const ROW_OPS: &[Source] = &[Source::new(
    "ops/prepare/prepare.cu",
    &[MapKind::define, GateKind::define, PrepareTasks::define],
)];

/// Maximum number of taps of a convolution in a product: one for each lane that shares a row.
pub(crate) const MOST_TAPS: i32 = 4;

pub(crate) const MOST_MAPS: usize = 6;
pub(crate) const MOST_GROUPS: usize = 6;
pub(crate) const MOST_GATES: usize = 6;

device_enum! {
    /// Kinds of maps of a head.
    #[derive(Clone, Copy)]
    pub(crate) enum MapKind("MAP_") {
        Activation,
        L2Norm,
        SumNorm,
        Softmax,
        Linear,
        Add,
        Copy,
        Norm,
        Rope,
        Largest,
        Where,
        Multiply,
        Gate,
        Weigh,
        Scale,
        WriteStrength,
        Grow,
    }
}

device_enum! {
    /// Kinds of gates.
    pub(crate) enum GateKind("GATE_") {
        Decay,
        BoundedDecay,
        LogSigmoid,
        LowerBound,
        Sigmoid,
        Step,
        Softmax,
        Forget,
        RunningSoftmax,
        Constant,
        Exponential,
    }
}

device_struct! {
    /// A map of a head.
    pub(crate) struct PrepareMap {
        pub source: Rows,
        pub weight: Address as *const f32,
        pub bias: Address as *const f32,
        /// The epsilon of a norm, the rate of a growth, or a factor.
        pub eps: f32,
        /// A [`MapKind`].
        pub kind: i32,
        pub function: i32,
        /// The period of a growth.
        pub period: u32,
    }
}

device_struct! {
    /// Heads with a convolution and maps.
    pub(crate) struct PrepareGroup {
        pub columns: Rows,
        /// Factor of the convolution's input, or null.
        pub gate: Rows,
        /// The convolution's weights `[taps, channels]`, or null.
        pub weight: Address as *const f32,
        pub bias: Address as *const f32,
        /// The state tensor of the previous inputs, `[taps - 1, channels]`.
        pub past: Address as *mut f32,
        /// The inputs before each tile, `[tiles, taps - 1, channels]`.
        pub before: Address as *mut f32,
        pub taps: i32,
        pub head_dim: i32,
        pub first: i32,
        pub maps: i32,
        pub at: [PrepareMap; MOST_MAPS],
    }
    "__device__ float input(int t, int channel) const"
}

device_struct! {
    /// A gate.
    pub(crate) struct PrepareGate {
        pub columns: Rows,
        pub rate: Address as *const f32,
        pub bias: Address as *const f32,
        pub state: Address as *mut f32,
        pub scale: f32,
        pub low: f32,
        pub high: f32,
        /// A [`GateKind`].
        pub kind: i32,
        pub first: i32,
        /// Columns of a task.
        pub span: i32,
    }
}

device_struct! {
    /// The tasks of a call.
    pub struct PrepareTasks {
        pub(crate) groups: i32,
        pub(crate) gates: i32,
        /// Angles per position of each rotated pair.
        pub(crate) frequencies: Address as *const f32,
        pub(crate) pairs: i32,
        /// Multiplies cosines and sines.
        pub(crate) magnitude: f32,
        pub(crate) group: [PrepareGroup; MOST_GROUPS],
        pub(crate) gate: [PrepareGate; MOST_GATES],
    }
}

impl PrepareTasks {
    /// Whether every task is on single values.
    pub(crate) fn is_on_single_values(&self) -> bool {
        self.groups().iter().all(PrepareGroup::is_alone)
            && self.gates().iter().all(PrepareGate::is_alone)
    }

    /// Addresses of the inputs that convolutions keep for the next token.
    pub(crate) fn convolved(&self) -> impl Iterator<Item = Address> {
        let convolved = self.groups().iter().filter(|group| group.weight != 0);
        convolved.map(|group| group.past)
    }

    /// Returns the columns that are read, and the columns that are changed in place.
    pub(crate) fn accesses(&self) -> Accesses {
        let groups = self.groups().iter().map(|group| group.columns);
        let gates = self.gates().iter().map(|gate| gate.columns);
        Accesses {
            reads: self.sources().map(Rows::bytes).collect(),
            writes: groups.chain(gates).map(Rows::bytes).collect(),
        }
    }

    /// Numbers the blocks of the tasks; returns the number of blocks for heads, and the number of all blocks.
    pub(crate) fn number(&mut self) -> [usize; 2] {
        let mut blocks = 0;
        for group in &mut self.group[..self.groups as usize] {
            group.first = blocks;
            blocks += group.columns.width / group.head_dim;
        }
        let heads = blocks;
        for gate in &mut self.gate[..self.gates as usize] {
            gate.first = blocks;
            blocks += (gate.columns.width as usize).div_ceil(gate.span as usize) as i32;
        }
        [heads, blocks].map(|blocks| blocks as usize)
    }

    /// Returns the heads with a convolution and maps.
    pub(crate) fn groups(&self) -> &[PrepareGroup] {
        &self.group[..self.groups as usize]
    }

    /// Returns the gates.
    pub(crate) fn gates(&self) -> &[PrepareGate] {
        &self.gate[..self.gates as usize]
    }

    /// Returns the columns that maps and convolutions read.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Rows> {
        let maps = self.groups().iter().flat_map(|group| group.maps());
        let gates = self.groups().iter().map(|group| group.gate);
        let sources = maps.map(|map| map.source).chain(gates);
        sources.filter(|rows| rows.first != 0)
    }
}

impl PrepareGroup {
    pub fn maps(&self) -> &[PrepareMap] {
        &self.at[..self.maps as usize]
    }

    /// Whether the group's values are independent of one another.
    fn is_alone(&self) -> bool {
        self.gate.first == 0
            && self.taps <= MOST_TAPS
            && self.leading_activations() == self.maps as usize
    }

    /// Returns the number of leading maps that are activations.
    pub fn leading_activations(&self) -> usize {
        let maps = self.maps().iter();
        maps.take_while(|map| map.kind == MapKind::Activation as i32)
            .count()
    }
}

impl PrepareGate {
    /// Whether the gate's values are independent of one another.
    pub fn is_alone(&self) -> bool {
        self.kind != GateKind::Softmax as i32 && self.kind != GateKind::RunningSoftmax as i32
    }
}
