//! The context of a running op.

use std::sync::Mutex;

use waterline_quant::{Activations, zeroed};

use super::Pool;
use crate::error::{Error, Result};
use crate::state::Arena;

/// Allocates zeroed working memory while a session is created.
///
/// # Errors
/// [`Error::Memory`] if the system refuses the allocation.
pub fn room(floats: usize) -> Result<Vec<f32>> {
    zeroed(floats).map_err(|_| {
        let bytes = floats.saturating_mul(size_of::<f32>());
        let what = format!("{bytes} bytes of working memory");
        Error::memory(what, "choose a smaller chunk or fewer threads")
    })
}

/// The buffers between ops.
#[derive(Clone)]
pub struct Buffers(Vec<Vec<f32>>);

impl Buffers {
    /// Allocates `tokens` rows of each width.
    pub fn new(widths: &[usize], tokens: usize) -> Result<Self> {
        let buffers = widths.iter().map(|width| room(width * tokens));
        Ok(Buffers(buffers.collect::<Result<_>>()?))
    }

    /// Number of values in all buffers.
    pub fn floats(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Number of buffers.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Values of a buffer, row after row.
    pub fn get(&self, buffer: usize) -> &[f32] {
        &self.0[buffer]
    }

    /// Values of a buffer, mutable.
    pub fn get_mut(&mut self, buffer: usize) -> &mut [f32] {
        &mut self.0[buffer]
    }

    /// Takes a buffer out, so that it can be written while others are read. [`Buffers::put`] puts it back.
    pub fn take(&mut self, buffer: usize) -> Vec<f32> {
        std::mem::take(&mut self.0[buffer])
    }

    /// Puts a buffer back.
    pub fn put(&mut self, buffer: usize, values: Vec<f32>) {
        self.0[buffer] = values;
    }
}

/// The context of a running op: the chunk's tokens, the buffers, the state, the threads.
pub struct Frame<'a> {
    pub pool: &'a Pool,
    pub buffers: &'a mut Buffers,
    pub inputs: &'a mut Activations,
    /// Scratch memory of each worker.
    pub scratch: &'a [Mutex<Vec<f32>>],
    /// Scratch memory that all workers share.
    pub common: &'a mut [f32],
    pub arena: &'a mut Arena,
    pub tokens: &'a [u32],
    /// Tokens read before the chunk.
    pub position: u64,
    /// Every token gets the bits that a single-token step would give it, in ops that have
    /// [`CpuOp::reads_chunks_as_steps`](crate::ops::CpuOp::reads_chunks_as_steps).
    pub in_step_order: bool,
}
