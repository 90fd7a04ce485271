//! Replaces `gpu.rs` in a build without CUDA.

use std::sync::Arc;

use crate::cuda::driver::Driver;
use crate::error::{Error, Result};

/// A GPU that cannot be opened.
pub(crate) struct Gpu;

impl Gpu {
    /// Returns the error that this build has no GPUs.
    pub fn open(_: usize) -> Result<Arc<dyn Driver>> {
        Err(Error::Device {
            device: "no GPU".into(),
            reason: "this build runs only on the CPU; build it with the feature `cuda`".into(),
        })
    }
}
