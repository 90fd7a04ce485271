//! A fixed-size buffer aligned to a cache line.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zero-initialised memory that starts on a 64-byte boundary and keeps its size.
pub(crate) struct Aligned {
    lines: Vec<Line>,
    bytes: usize,
}

impl Aligned {
    pub(crate) fn zeroed(bytes: usize) -> Aligned {
        Aligned {
            lines: vec![Line::zeroed(); bytes.div_ceil(64)],
            bytes,
        }
    }

    pub(crate) fn as_slice<T: Pod>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes / size_of::<T>()]
    }

    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes / size_of::<T>()]
    }
}
