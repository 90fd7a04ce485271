//! The decode kernel: one persistent kernel runs a whole step. `docs/cuda.md` has its rules and a timeline.
//!
//! A thread block per SM walks a list of ops ([`kernel`], `cta.cu`). Producer warps stream the block's weights through a pipeline in shared
//! memory ([`pipeline`]; [`split`] divides rows among blocks, [`layout`] divides shared memory). Blocks exchange values through
//! [`mailbox`]es, or meet at a grid barrier. A matrix-vector product (`gemv.cu`) has a prologue, which computes its input, and an epilogue.

pub(crate) mod control;
pub(crate) mod fuse;
pub(crate) mod kernel;
mod layout;
pub(crate) mod levels;
pub(crate) mod mailbox;
pub(crate) mod pipeline;
mod record;
mod slots;
mod source;
mod split;
pub(crate) mod tiling;
