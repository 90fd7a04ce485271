//! The backend for NVIDIA GPUs: state and weights on the device, ops as kernels, a step as one persistent kernel or a recorded graph.
//!
//! [`driver`] reaches the GPU and the compiler of kernels. [`schedule`] is what ops write their kernels with, and orders them by
//! dependency levels. [`gemm`] has the matrix products, [`decode`] the persistent kernel of a step. [`engine`] runs a session.

mod decode;
mod device;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod engine;
mod gemm;
mod schedule;
#[cfg(test)]
mod tests;

pub(crate) use decode::kernel::KernelOpInfo;
pub(crate) use decode::mailbox::Recurrence;
pub use device::Device;
pub(crate) use driver::{Address, TensorCores};
pub(crate) use engine::Engine;
pub(crate) use engine::sample::Sampling;
pub(crate) use gemm::{GatedUnit, WeightMatrix, format_of, shared_bytes};
pub(crate) use schedule::{Call, Grid, Launches, Parameter, Rows};
