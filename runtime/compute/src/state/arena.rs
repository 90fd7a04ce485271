//! The single buffer that holds a session's state.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use waterline_quant::zeroed;

use super::plan::StatePlan;
use crate::error::{Error, Result};

/// A cache line. The arena consists of lines, so that every state tensor is aligned to 64 bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The complete state of a session: copying its bytes copies the session.
#[derive(Clone)]
pub struct Arena {
    plan: Arc<StatePlan>,
    lines: Vec<Line>,
}

impl Arena {
    /// Allocates the state and touches all of its memory. It is all zeros, which is the empty state.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system refuses the memory.
    pub fn new(plan: Arc<StatePlan>) -> Result<Self> {
        let mut arena = Arena::untouched(plan)?;
        // The allocator may hand out untouched zero pages. Writing makes the memory resident now rather than while tokens are read.
        arena.reset();
        Ok(arena)
    }

    /// Like [`Arena::new`], but the system provides the memory only where it is written.
    ///
    /// # Errors
    /// As for [`Arena::new`].
    pub fn untouched(plan: Arc<StatePlan>) -> Result<Self> {
        let lines = zeroed(plan.bytes() / size_of::<Line>()).map_err(|_| {
            let what = format!("a state of {} bytes", plan.bytes());
            Error::memory(what, "choose a smaller context")
        })?;
        Ok(Arena { lines, plan })
    }

    /// Copies the arena.
    ///
    /// # Errors
    /// As for [`Arena::new`].
    pub fn try_clone(&self) -> Result<Self> {
        let mut copy = Arena::new(Arc::clone(&self.plan))?;
        copy.copy_from(self);
        Ok(copy)
    }

    /// The layout of the state.
    pub fn plan(&self) -> &Arc<StatePlan> {
        &self.plan
    }

    /// All bytes of the state.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines)
    }

    /// All bytes of the state, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }

    /// Empties the state by filling it with zeros, so that no old value survives, not even a NaN.
    pub fn reset(&mut self) {
        std::hint::black_box(self.bytes_mut()).fill(0);
    }

    /// The values of one state tensor.
    pub fn tensor<T: Pod>(&self, tensor: usize) -> &[T] {
        let tensor = &self.plan.tensors()[tensor];
        bytemuck::cast_slice(&self.bytes()[tensor.offset..tensor.offset + tensor.bytes])
    }

    /// The values of one state tensor, mutable.
    pub fn tensor_mut<T: Pod>(&mut self, tensor: usize) -> &mut [T] {
        let [bytes] = self.tensors_mut([tensor]);
        bytemuck::cast_slice_mut(bytes)
    }

    /// The bytes of `N` state tensors at once. Panics if a tensor is named twice, which a program never does.
    pub fn tensors_mut<const N: usize>(&mut self, tensors: [usize; N]) -> [&mut [u8]; N] {
        let ranges = tensors.map(|tensor| {
            let tensor = &self.plan.tensors()[tensor];
            tensor.offset..tensor.offset + tensor.bytes
        });
        bytemuck::cast_slice_mut(&mut self.lines)
            .get_disjoint_mut(ranges)
            .expect("tensors do not overlap")
    }

    /// Copies the state tensors numbered `first` and above from `other`, which has the same plan.
    pub fn copy_tensors_from(&mut self, other: &Arena, first: usize) {
        if let Some(tensor) = self.plan.tensors().get(first) {
            let line = tensor.offset / size_of::<Line>();
            self.lines[line..].copy_from_slice(&other.lines[line..]);
        }
    }

    /// Copies the state from `other`, which has the same plan.
    pub fn copy_from(&mut self, other: &Arena) {
        self.lines.copy_from_slice(&other.lines);
    }
}
