//! An internal part of the crate `waterline`, without a stable interface: the fused operations, programs of them, and what they run on.

// The unit tests of these modules are those of `waterline`.
#![cfg(not(test))]
#![allow(missing_docs)]

pub mod cpu;
// Without GPUs some of what drives them is used by kernels built ahead of time alone, and some by nothing.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub mod cuda;
pub mod error;
pub mod functions;
pub mod operands;
pub mod ops;
pub mod program;
pub mod sampler;
pub mod state;
pub mod weights;
