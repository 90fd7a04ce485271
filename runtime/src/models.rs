//! An internal part of the crate `waterline`, without a stable interface: what a model is, mixers, text, other people's files.
//! No token waits for it, so it is compiled to be small.

// The unit tests of these modules are those of `waterline`.
#![cfg(not(test))]
#![allow(missing_docs)]

pub mod arch;
pub mod cancel;
pub mod config;
pub mod feed_forward;
pub mod lowering;
pub mod mixers;
pub mod model;
pub mod text;

use waterline_compute::{error, functions, operands, ops, program, state, weights};
