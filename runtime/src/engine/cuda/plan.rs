//! The programs of sessions, drafts and batches as lists of parts, and the one place where a part becomes kernel calls.

use crate::cuda::{
    Address, ChunkMemory, Launches, Memory, Parameter, Queued, Rows, SessionMemory, Slot, merge,
};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};
use crate::ops::{Logits, Op};
use crate::program::Program;

/// A part of a program.
pub(super) enum Part<'a> {
    /// Writes the positions of the slots' tokens.
    Positions,
    /// An op of the program, with its index.
    Op(usize, &'a dyn Op),
    /// Copies columns of every row to separate memory, or `back`.
    Columns {
        views: &'a [View],
        saved: Address,
        back: bool,
    },
    /// Computes the logits.
    Logits(&'a Logits),
    /// Copies the logits to the state.
    StoreLogits,
    /// Adds the tokens to the history and advances the position.
    Advance,
    /// Chooses the most probable token.
    Choose,
    /// Samples a token.
    Sample,
    /// Stores the residual stream, normed, in these columns.
    Hidden(&'a Norm, View),
}

/// The memory of one slot that parts use besides buffers and state.
#[derive(Clone, Copy)]
pub(super) struct SlotMemory {
    /// Where the logits are computed, and the logits from which a token is chosen.
    pub logits: Address,
    pub choice: Address,
    /// The chosen token.
    pub chosen: Address,
    /// The sampling parameters.
    pub sampling: Address,
    /// The positions of the slots' tokens, and their number; `None` for that of the rows.
    pub positions: Address,
    pub slots: Option<usize>,
}

impl Part<'_> {
    /// Whether one call for all rows gives each the bits of a step. `in_order`: whether the slots hold tokens of one session.
    pub fn is_over_rows(&self, in_order: bool) -> bool {
        match self {
            Part::Op(_, op) => op.runs_as_steps(),
            Part::Positions | Part::Columns { .. } | Part::Logits(_) | Part::Hidden(..) => true,
            Part::Advance => in_order,
            Part::StoreLogits | Part::Choose | Part::Sample => false,
        }
    }

    /// Appends the part's kernels to `launches`, for a slot or for all rows.
    pub fn write(
        &self,
        launches: &mut Launches,
        program: &Program,
        slot: &SlotMemory,
    ) -> Result<()> {
        let (vocab, hidden) = (program.logits.matrix.rows(), program.logits.matrix.cols());
        let stream = View::whole(RESIDUAL, hidden);
        match self {
            Part::Positions => {
                let slots = slot.slots.map_or_else(Parameter::tokens, Parameter::int);
                launches.count_positions(slot.positions, slots);
            }
            Part::Op(index, op) => {
                launches.has_routing = program.has_routing();
                launches.begin(*index, &op.access());
                op.launch(launches)?;
            }
            Part::Columns { views, saved, back } => launches.copy_columns(views, *saved, *back),
            Part::Logits(logits) => {
                let rows = Rows {
                    first: slot.logits,
                    stride: vocab as i32,
                    width: vocab as i32,
                };
                launches.begin(program.ops.len(), &logits.access());
                launches.also_writes(rows.bytes());
                logits.launch(launches, stream, rows)?;
            }
            Part::StoreLogits => launches.copy_logits(vocab, slot.logits),
            Part::Advance => {
                launches.end();
                launches.advance();
            }
            Part::Choose => launches.choose(vocab, slot.choice, slot.chosen)?,
            Part::Sample => launches.sample(vocab, slot.sampling, slot.chosen)?,
            Part::Hidden(norm, columns) => {
                let prologue = launches.prologue(stream, Some(norm))?;
                launches.store_prologue(prologue, *columns);
            }
        }
        Ok(())
    }
}

/// Returns the parts that read tokens into the state: all ops except the logits.
pub(super) fn layers(program: &Program) -> Vec<Part<'_>> {
    let ops = program.ops.iter().enumerate();
    let ops = ops.map(|(index, op)| Part::Op(index, &**op));
    ops.chain([Part::Advance]).collect()
}

/// Writes parts for one token or a chunk of a session.
pub(super) struct Writer<'a> {
    pub program: &'a Program,
    pub memory: SessionMemory<'a>,
    pub scratch: &'a mut Vec<Memory>,
    pub slot: Slot,
    pub own: SlotMemory,
}

impl Writer<'_> {
    /// The calls of parts for one token. In a decode kernel they are fused with each other.
    pub fn token(&mut self, parts: &[Part], persistent: bool) -> Result<Vec<Queued>> {
        let program = self.program;
        // Ops run concurrently only in the decode kernel.
        let mut is_op = parts.iter().map(|part| matches!(part, Part::Op(..)));
        let sharing = if persistent && is_op.any(|is_op| is_op) {
            program.concurrent(|op| op.fills_device())
        } else {
            Vec::new()
        };
        let mut launches = Launches::new(&self.memory, self.scratch, 1, persistent);
        launches.slot = self.slot;
        for part in parts {
            if let Part::Op(index, _) = part {
                launches.slot.sharing = sharing.get(*index).copied().unwrap_or(1);
            }
            part.write(&mut launches, program, &self.own)?;
        }
        if !persistent {
            return Ok(launches.into_calls());
        }
        let layers = program.ops.len();
        Ok(merge(launches.into_nodes(), |op| {
            op < layers && program.is_read_once(op)
        }))
    }

    /// The calls of the layers for chunks of `tokens` tokens, in the memory that chunks share (it may hold workspaces already).
    pub fn chunk(&self, tokens: usize, chunks: &mut ChunkMemory) -> Result<Vec<Queued>> {
        let memory = SessionMemory {
            buffers: &chunks.buffers,
            ..self.memory
        };
        let mut launches = Launches::reusing(&memory, &mut chunks.scratch, tokens);
        for part in layers(self.program) {
            part.write(&mut launches, self.program, &self.own)?;
        }
        Ok(launches.into_calls())
    }

    /// The calls that choose the most probable token, followed by a step with its logits. Also returns how many calls choose.
    pub fn step(&mut self, persistent: bool) -> Result<(Vec<Queued>, usize)> {
        let program = self.program;
        let mut step = self.token(&[Part::Choose], persistent)?;
        let choice = step.len();
        step.extend(self.token(&layers(program), persistent)?);
        step.extend(self.token(&[Part::Logits(&program.logits)], persistent)?);
        Ok((step, choice))
    }

    /// The calls of a slot in the decode kernel: a step, then the choice of the next token, which goes to `next` too.
    pub fn read_slot(&mut self, next: Address) -> Result<Vec<Queued>> {
        let program = self.program;
        let mut calls = self.token(&[Part::Positions], true)?;
        calls.extend(self.token(&layers(program), true)?);
        calls.extend(self.token(&[Part::Logits(&program.logits)], true)?);
        let ids = std::mem::replace(&mut self.memory.ids, next);
        calls.extend(self.token(&[Part::Choose], true)?);
        self.memory.ids = ids;
        Ok(calls)
    }
}
