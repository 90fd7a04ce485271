//! A fixed-size buffer aligned to a cache line.

use bytemuck::{Pod, Zeroable};

use crate::error::Result;
use crate::room::zeroed;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zero-initialised memory of fixed size that starts on a 64-byte boundary.
pub(crate) struct Aligned {
    lines: Vec<Line>,
    bytes: usize,
}

impl Aligned {
    /// Allocates the memory. Fails if the system refuses it.
    pub(crate) fn zeroed(bytes: usize) -> Result<Aligned> {
        Ok(Aligned {
            lines: zeroed(bytes.div_ceil(64))?,
            bytes,
        })
    }

    pub(crate) fn as_slice<T: Pod>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes / size_of::<T>()]
    }

    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes / size_of::<T>()]
    }
}
