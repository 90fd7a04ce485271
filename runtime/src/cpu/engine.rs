//! Runs a program over chunks of tokens, in memory that is allocated once.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use waterline_quant::Activations;

use super::Pool;
use crate::error::{Error, Result};
use crate::program::{INPUTS, Program};
use crate::state::Arena;

/// Zeros that are allocated while a session is made.
///
/// # Errors
/// [`Error::Memory`] if the system refuses them.
pub(super) fn room(floats: usize) -> Result<Vec<f32>> {
    bytemuck::allocation::try_zeroed_vec(floats).map_err(|()| {
        let bytes = floats.saturating_mul(size_of::<f32>());
        let what = format!("{bytes} bytes of working memory");
        Error::memory(what, "choose a smaller chunk or fewer threads")
    })
}

/// The buffers between ops.
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Buffers(Vec<Vec<f32>>);

impl Buffers {
    /// Room for `tokens` rows of each width.
    pub fn new(widths: &[usize], tokens: usize) -> Result<Self> {
        let buffers = widths.iter().map(|width| room(width * tokens));
        Ok(Buffers(buffers.collect::<Result<_>>()?))
    }

    /// The buffers of a program for so many tokens, but [`INPUTS`]: products take their inputs from [`Activations`].
    pub fn of(program: &Program, tokens: usize) -> Result<Self> {
        let mut widths = program.widths.clone();
        widths[INPUTS] = 0;
        Self::new(&widths, tokens)
    }

    /// Values that [`Buffers::of`] holds for each token.
    pub fn row(program: &Program) -> usize {
        program.widths.iter().sum::<usize>() - program.widths[INPUTS]
    }

    /// Values of all buffers.
    pub fn floats(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Number of buffers.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Values of a buffer, row by row.
    pub fn get(&self, buffer: usize) -> &[f32] {
        &self.0[buffer]
    }

    /// Values of a buffer, to change.
    pub fn get_mut(&mut self, buffer: usize) -> &mut [f32] {
        &mut self.0[buffer]
    }

    /// Takes a buffer out, so that it can be written while others are read; [`Buffers::put`] it back.
    pub fn take(&mut self, buffer: usize) -> Vec<f32> {
        std::mem::take(&mut self.0[buffer])
    }

    /// Puts a buffer back.
    pub fn put(&mut self, buffer: usize, values: Vec<f32>) {
        self.0[buffer] = values;
    }
}

/// What an op sees: the chunk's tokens, the buffers, the state, the threads.
pub(crate) struct Frame<'a> {
    pub pool: &'a Pool,
    pub buffers: &'a mut Buffers,
    pub inputs: &'a mut Activations,
    /// Room for each worker.
    pub scratch: &'a [Mutex<Vec<f32>>],
    /// Room that all workers see.
    pub common: &'a mut [f32],
    pub arena: &'a mut Arena,
    pub tokens: &'a [u32],
    /// Tokens read before the chunk.
    pub position: u64,
}

/// The memory and threads that a session computes with.
pub(crate) struct Engine {
    pool: Arc<Pool>,
    buffers: Buffers,
    inputs: Activations,
    scratch: Vec<Mutex<Vec<f32>>>,
    common: Vec<f32>,
    chunk: usize,
    widest: usize,
}

impl Engine {
    /// Allocates for chunks of up to `chunk` tokens of `program`.
    pub fn new(program: &Program, pool: Arc<Pool>, chunk: usize) -> Result<Self> {
        let widest = program.widths[INPUTS];
        let threads = pool.threads();
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let scratch = (0..threads).map(|_| Ok(Mutex::new(room(scratch)?)));
        Ok(Engine {
            buffers: Buffers::of(program, chunk)?,
            inputs: Activations::new(chunk, widest)?,
            scratch: scratch.collect::<Result<_>>()?,
            common: room(common)?,
            pool,
            chunk,
            widest,
        })
    }

    /// Bytes of working memory that [`Engine::new`] would allocate.
    pub fn plan(program: &Program, threads: usize, chunk: usize) -> usize {
        let buffers = Buffers::row(program) * chunk;
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let widest = program.widths[INPUTS];
        (buffers + scratch * threads + common) * size_of::<f32>()
            + Activations::bytes(chunk, widest)
    }

    /// Floats of each worker's scratch memory, and of that which all workers see.
    fn rooms(program: &Program, threads: usize, chunk: usize) -> (usize, usize) {
        let rooms = program.ops.iter();
        rooms.fold((0, 0), |(scratch, common), op| {
            let more = (op.scratch(chunk), op.common(threads));
            (scratch.max(more.0), common.max(more.1))
        })
    }

    /// Bytes of working memory, besides the state.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers.floats();
        let scratch: usize = self
            .scratch
            .iter()
            .map(|s| s.lock().map_or(0, |s| s.len()))
            .sum();
        (buffers + scratch + self.common.len()) * size_of::<f32>()
            + Activations::bytes(self.chunk, self.widest)
    }

    /// Reads one chunk of tokens into the state.
    pub fn run(&mut self, program: &Program, arena: &mut Arena, tokens: &[u32], position: u64) {
        let mut frame = self.frame(arena, tokens, position);
        for op in &program.ops {
            op.run(&mut frame);
        }
    }

    /// What ops see of a chunk.
    pub(crate) fn frame<'a>(
        &'a mut self,
        arena: &'a mut Arena,
        tokens: &'a [u32],
        position: u64,
    ) -> Frame<'a> {
        assert!(!tokens.is_empty() && tokens.len() <= self.chunk);
        Frame {
            pool: &self.pool,
            buffers: &mut self.buffers,
            inputs: &mut self.inputs,
            scratch: &self.scratch,
            common: &mut self.common,
            arena,
            tokens,
            position,
        }
    }

    /// Writes the logits `[rows, vocab]` after these tokens of the chunk that was run last.
    pub fn logits(&mut self, program: &Program, rows: Range<usize>, logits: &mut [f32]) {
        program
            .logits
            .run(&self.pool, &self.buffers, &mut self.inputs, rows, logits);
    }
}
