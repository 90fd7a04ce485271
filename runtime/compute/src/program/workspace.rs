//! Execution of a program on a CPU: its working memory, and the loop over its ops.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use waterline_quant::{Activations, ProductObserver};

use super::Program;
use crate::cpu::{Buffers, Frame, Pool, room};
use crate::error::Result;
use crate::operands::{INPUTS, RESIDUAL, View};
use crate::state::Arena;

/// The memory and threads that a session computes with.
pub struct Workspace {
    pool: Arc<Pool>,
    buffers: Buffers,
    inputs: Activations,
    scratch: Vec<Mutex<Vec<f32>>>,
    common: Vec<f32>,
    chunk: usize,
    widest: usize,
    in_step_order: bool,
}

/// Returns the widths of the buffers. The buffer for the inputs of products is empty: only devices use it, and a workspace has
/// [`Activations`] instead.
pub fn widths(program: &Program) -> Vec<usize> {
    let mut widths = program.widths.clone();
    widths[INPUTS] = 0;
    widths
}

impl Workspace {
    /// Allocates memory for chunks of up to `chunk` tokens of `program`.
    pub fn new(program: &Program, pool: Arc<Pool>, chunk: usize) -> Result<Self> {
        let widest = program.widths.iter().copied().max().unwrap_or(0);
        let threads = pool.threads();
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let scratch = (0..threads).map(|_| Ok(Mutex::new(room(scratch)?)));
        Ok(Workspace {
            buffers: Buffers::new(&widths(program), chunk)?,
            inputs: Activations::new(chunk, widest)?.for_workers(threads)?,
            scratch: scratch.collect::<Result<_>>()?,
            common: room(common)?,
            pool,
            chunk,
            widest,
            in_step_order: false,
        })
    }

    /// Returns the workspace in a mode in which every token gets the bits that a single-token step would give it, whatever the chunk size.
    /// This holds for ops that treat every token alike or have [`CpuOp::reads_chunks_as_steps`](crate::ops::CpuOp::reads_chunks_as_steps).
    pub fn in_step_order(mut self) -> Self {
        self.inputs.sum_as_alone();
        self.in_step_order = true;
        self
    }

    /// Passes every later product to `observer`.
    pub fn observe_products(&mut self, observer: ProductObserver) {
        self.inputs.observe(observer);
    }

    /// Bytes of working memory that [`Workspace::new`] would allocate.
    pub fn plan(program: &Program, threads: usize, chunk: usize) -> usize {
        let buffers = widths(program).iter().sum::<usize>() * chunk;
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let widest = program.widths.iter().copied().max().unwrap_or(0);
        (buffers + scratch * threads + common) * size_of::<f32>()
            + Activations::bytes(chunk, widest, threads)
    }

    /// Floats of scratch memory of each worker, and floats of memory that all workers share.
    fn rooms(program: &Program, threads: usize, chunk: usize) -> (usize, usize) {
        let rooms = program.ops.iter();
        rooms.fold((0, 0), |(scratch, common), op| {
            let more = (op.scratch(chunk), op.common(threads));
            (scratch.max(more.0), common.max(more.1))
        })
    }

    /// Bytes of working memory, without the state.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers.floats();
        let scratch: usize = self
            .scratch
            .iter()
            .map(|s| s.lock().map_or(0, |s| s.len()))
            .sum();
        (buffers + scratch + self.common.len()) * size_of::<f32>()
            + Activations::bytes(self.chunk, self.widest, self.pool.threads())
    }

    /// Reads one chunk of tokens into the state.
    pub fn run(&mut self, program: &Program, arena: &mut Arena, tokens: &[u32], position: u64) {
        let mut frame = self.frame(arena, tokens, position);
        for op in &program.ops {
            op.run(&mut frame);
        }
    }

    /// Builds the frame in which the ops process a chunk.
    pub fn frame<'a>(
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
            in_step_order: self.in_step_order,
        }
    }

    /// Returns columns of the first row of a buffer, for writing before a run.
    pub fn first_row(&mut self, view: View) -> &mut [f32] {
        &mut self.buffers.get_mut(view.buffer)[view.columns(0)]
    }

    /// Rows of the residual stream after a run.
    pub fn residual(&self, program: &Program, rows: Range<usize>) -> &[f32] {
        let hidden = program.logits.matrix.cols();
        &self.buffers.get(RESIDUAL)[rows.start * hidden..rows.end * hidden]
    }

    /// Writes the logits `[rows, vocab]` for these tokens of the last chunk run.
    pub fn logits(&mut self, program: &Program, rows: Range<usize>, logits: &mut [f32]) {
        program
            .logits
            .run(&self.pool, &self.buffers, &mut self.inputs, rows, logits);
    }
}
