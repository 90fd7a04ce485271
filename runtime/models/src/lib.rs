//! An internal part of the crate `waterline`, without a stable interface: model descriptions, mixers, and readers of
//! other projects' files. No token waits for this code, so it is compiled to be small.

#![allow(missing_docs)]

pub mod arch;
pub mod config;
pub mod feed_forward;
pub mod lowering;
pub mod mixers;
pub mod model;

use waterline_compute::{functions, operands, ops, program, state, weights};
use waterline_error as error;
#[cfg(test)]
use waterline_text as text;
