//! The backend for NVIDIA GPUs: state and weights on the device, ops as kernels, a step as one persistent kernel or a recorded graph.
//!
//! [`driver`] accesses the GPU and the kernel compiler. With [`schedule`], ops append their kernel calls. [`gemm`] has the matrix products.
//! [`source`] generates the text of a program's kernels, [`decode`] the persistent kernel of a step, [`batch`] the kernels of several
//! sessions. [`token`] chooses the next token. Each module imports only from the modules before it.

mod batch;
mod decode;
mod device;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod gemm;
mod host_logits;
mod schedule;
mod source;
#[cfg(test)]
pub(crate) mod tests;
mod token;

pub use batch::{Calls, Program};
pub use decode::control::Control;
#[cfg(feature = "emulator")]
pub use decode::control::FAULT;
pub use decode::fuse::merge;
pub use decode::kernel::{DecodeKernel, KernelOpInfo};
#[cfg(feature = "emulator")]
pub use decode::levels::REVERSED;
pub use device::Device;
pub use device::{ChunkKey, ChunkMemory};
pub use driver::{Address, Launch, Memory, Queue, Recording, TensorCores, Transfer};
#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub(crate) use gemm::{CODE_ROWS, CODES_SHARED, GatedUnit, WeightMatrix, format_of, shared_bytes};
pub use host_logits::HostLogits;
pub(crate) use schedule::{
    Attended, Attention, GateKind, MOST_GATES, MOST_GROUPS, MOST_MAPS, MapKind, PrepareGate,
    PrepareGroup, PrepareMap, PrepareTasks, ROW_OPS, RecurInput, RecurInputs, RecurStep,
    Recurrence, Retained, RotaryInputs, Rotation, STEP_INPUTS, StepInput, StepOperand,
};
pub use schedule::{
    Call, Grid, Launches, Node, Parameter, Queued, Rooms, Rows, SessionMemory, Slot, Source,
};
pub use token::sample::Sampling;
