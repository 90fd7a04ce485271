//! Disjoint parts of one buffer, written by several workers at once.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;

use crate::state::{Arena, StatePlan};

/// A buffer that is handed out in parts across threads.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is `part`, whose contract forbids overlapping parts.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(buffer: &'a mut [T]) -> Self {
        Shared {
            start: buffer.as_mut_ptr(),
            len: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// The values in `range`. Panics outside the buffer.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold a part that overlaps it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the borrowed buffer, and exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The values in `range`, to read. Panics outside the buffer.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold a [`Shared::part`] that overlaps it.
    #[inline]
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the borrowed buffer; the caller guarantees that no thread writes it.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

/// A session's state, whose tensors several workers change concurrently.
pub(crate) struct SharedArena<'a> {
    plan: std::sync::Arc<StatePlan>,
    bytes: Shared<'a, u8>,
}

impl SharedArena<'_> {
    /// Values `range` of a state tensor.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold values of the state tensor that overlap it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub unsafe fn tensor<T: Pod>(&self, tensor: usize, range: Range<usize>) -> &mut [T] {
        let tensor = &self.plan.tensors()[tensor];
        let (start, end) = (range.start * size_of::<T>(), range.end * size_of::<T>());
        assert!(end <= tensor.bytes);
        // SAFETY: the caller's contract.
        bytemuck::cast_slice_mut(unsafe {
            self.bytes.part(tensor.offset + start..tensor.offset + end)
        })
    }

    /// Values `range` of a state tensor, to read.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold a [`SharedArena::tensor`] that overlaps it.
    #[inline]
    pub unsafe fn read<T: Pod>(&self, tensor: usize, range: Range<usize>) -> &[T] {
        let tensor = &self.plan.tensors()[tensor];
        let (start, end) = (range.start * size_of::<T>(), range.end * size_of::<T>());
        assert!(end <= tensor.bytes);
        // SAFETY: the caller's contract.
        bytemuck::cast_slice(unsafe { self.bytes.read(tensor.offset + start..tensor.offset + end) })
    }

    /// The second dimension of a state tensor: rows of each head.
    pub fn rows(&self, tensor: usize) -> usize {
        self.plan.tensors()[tensor].shape[1]
    }
}

impl Arena {
    /// The state, to be changed by several workers.
    pub(crate) fn shared(&mut self) -> SharedArena<'_> {
        SharedArena {
            plan: self.plan().clone(),
            bytes: Shared::new(self.bytes_mut()),
        }
    }
}
