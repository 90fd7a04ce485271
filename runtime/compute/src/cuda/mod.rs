//! The backend for NVIDIA GPUs: state and weights on the device, ops as kernels, a step as one persistent kernel or a recorded graph.
//!
//! [`driver`] reaches the GPU and the compiler of kernels. [`schedule`] is what ops write their kernels with, and orders them by
//! dependency levels. [`gemm`] has the matrix products, [`decode`] the persistent kernel of a step. [`token`] chooses
//! the next token.

mod batch;
mod decode;
mod device;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod gemm;
mod host_logits;
mod schedule;
#[cfg(test)]
pub(crate) mod tests;
mod token;

pub use batch::{Calls, Program, Rooms, Slot};
pub use decode::control::Control;
#[cfg(feature = "emulator")]
pub use decode::control::FAULT;
pub use decode::kernel::OpTime;
pub use decode::kernel::{DecodeKernel, KernelOpInfo};
pub(crate) use decode::mailbox::Recurrence;
pub use device::Device;
pub use device::{ChunkKey, ChunkMemory};
pub use driver::{Address, Launch, Memory, Queue, Recording, TensorCores, Transfer};
#[cfg(feature = "emulator")]
pub use emulator::Emulator;
pub(crate) use gemm::{CODE_ROWS, CODES_SHARED, GatedUnit, WeightMatrix, format_of, shared_bytes};
pub use host_logits::HostLogits;
pub(crate) use schedule::Finish;
#[cfg(feature = "emulator")]
pub use schedule::levels::REVERSED;
pub use schedule::source::TranslationUnit;
pub use schedule::{
    Call, Deferred, Grid, Launches, Parameter, Queued, RotaryInputs, Rotation, Rows, SessionMemory,
};
pub use token::sample::Sampling;
