//! Row ops of a product's epilogue, and the tasks of `prepare`, which does the same to stored columns: arguments of `prepare.cu`.

use super::{Rows, Source};
use crate::abi::{DeviceType, device_enum, device_struct};
use crate::cuda::driver::Address;

/// The file of both.
pub(crate) const ROW_OPS: &[Source] = &[Source::new(
    "ops/prepare/prepare.cu",
    &[MapKind::define, GateKind::define, PrepareTasks::define],
)];

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
        WriteStrength,
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
        pub eps: f32,
        /// A [`MapKind`].
        pub kind: i32,
        pub function: i32,
        pub pad: i32,
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
        /// The state tensor of the last inputs, `[taps - 1, channels]`.
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
    pub(crate) struct PrepareTasks {
        pub groups: i32,
        pub gates: i32,
        /// Angles per position of each rotated pair.
        pub frequencies: Address as *const f32,
        pub pairs: i32,
        /// Multiplies cosines and sines.
        pub magnitude: f32,
        pub group: [PrepareGroup; MOST_GROUPS],
        pub gate: [PrepareGate; MOST_GATES],
    }
}
