//! An internal part of the crate `waterline`, without a stable interface: the fused ops, programs of ops, and the backends that run them.

#![allow(missing_docs)]

pub mod abi;
pub mod cpu;
// Without the feature `cuda`, part of the GPU code serves only kernels built ahead of time, and part of it is unused.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub mod cuda;
pub mod functions;
pub mod op_time;
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
