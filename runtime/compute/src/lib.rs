//! An internal part of the crate `waterline`, without a stable interface: the fused operations, programs of them, and the backends that
//! run them.

#![allow(missing_docs)]

pub mod abi;
pub mod cpu;
// Without GPUs some of the GPU code is used only by kernels built ahead of time, and some is unused.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub mod cuda;
pub mod functions;
pub mod operands;
pub mod ops;
pub mod program;
pub mod sampler;
pub mod state;
pub mod weights;

use waterline_error as error;

#[cfg(test)]
#[path = "../../../tests/devices.rs"]
pub(crate) mod devices;
#[cfg(test)]
#[path = "../../../tests/instrument.rs"]
pub(crate) mod instrument;
#[cfg(test)]
#[path = "../../../tests/skipped.rs"]
pub(crate) mod skipped;
