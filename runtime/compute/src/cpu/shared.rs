//! Disjoint parts of one buffer, written by multiple workers at once.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;

use crate::state::{Arena, StatePlan};

/// A buffer whose parts are handed out to threads.
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    buffer: PhantomData<&'a mut [T]>,
}

// SAFETY: the only access is through `part` and `read`, whose contracts forbid a write that overlaps another part.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(buffer: &'a mut [T]) -> Self {
        Shared {
            start: buffer.as_mut_ptr(),
            len: buffer.len(),
            buffer: PhantomData,
        }
    }

    /// The values in `range`, mutable. Panics if the range is outside the buffer.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold a part that overlaps it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is inside the borrowed buffer, and exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The values in `range`. Panics if the range is outside the buffer.
    ///
    /// # Safety
    /// While the returned slice is in use, no other thread may hold a [`Shared::part`] that overlaps it.
    #[inline]
    pub unsafe fn read(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is inside the borrowed buffer, and the caller guarantees that no thread writes it.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

/// A session's state whose tensors multiple workers change concurrently.
pub(crate) struct SharedArena<'a> {
    plan: std::sync::Arc<StatePlan>,
    bytes: Shared<'a, u8>,
}

impl SharedArena<'_> {
    /// Values `range` of a state tensor, mutable.
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

    /// Values `range` of a state tensor.
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

    /// The second dimension of a state tensor: the number of rows per head.
    pub fn rows(&self, tensor: usize) -> usize {
        self.plan.tensors()[tensor].shape[1]
    }
}

impl Arena {
    /// Wraps the state, so that multiple workers can change it.
    pub(crate) fn shared(&mut self) -> SharedArena<'_> {
        SharedArena {
            plan: self.plan().clone(),
            bytes: Shared::new(self.bytes_mut()),
        }
    }
}
