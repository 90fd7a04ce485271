//! Reads tokens in the slots of a batch, bit-identical to single steps.
//!
//! An op that treats every token alike runs over all slots like over a chunk. So does an op whose chunks are bit-identical to steps, if
//! all slots are tokens of one state. Every other op runs slot by slot, on a copy of the columns that it declares. Products sum in the
//! order of a step, whatever the number of slots.

use std::sync::Arc;

use crate::cpu::{Buffers, Pool, room};
use crate::error::Result;
use crate::operands::{Access, Operand};
use crate::ops::Op;
use crate::program::{Program, Workspace, widths};
use crate::state::{Arena, HEADER};

/// The states of the slots.
pub(super) trait States {
    /// The state of slot `row`, and the number of tokens that it has read.
    fn state(&mut self, row: usize) -> (&mut Arena, u64);

    /// Whether all slots are consecutive tokens of one state.
    fn is_one(&self) -> bool {
        false
    }
}

/// Memory to read several tokens at once.
pub(super) struct Slots {
    pub workspace: Workspace,
    /// Buffers for one slot.
    one: Buffers,
    ops: Vec<SlotOp>,
    /// Saved input columns of the ops with a state, `[most, SlotOp::width]` per op; empty if they are not saved.
    saved: Vec<f32>,
    most: usize,
}

/// The operands of an op, and whether it can run over all slots at once.
struct SlotOp {
    access: Access,
    /// Whether it can run over slots of any states.
    is_tokenwise: bool,
    /// Whether it can run over slots of one state.
    reads_chunks: bool,
    /// Number of saved columns per slot: all columns that the op reads, if it changes a state.
    width: usize,
}

impl SlotOp {
    fn new(op: &dyn Op, saves: bool) -> Self {
        let access = op.access();
        let width = if saves && access.changes_state() {
            access.read_columns().map(|view| view.width).sum()
        } else {
            0
        };
        SlotOp {
            is_tokenwise: op.is_tokenwise(),
            reads_chunks: op.reads_chunks_as_steps() && width == 0,
            access,
            width,
        }
    }
}

impl Slots {
    /// Allocates memory for up to `most` tokens; with `saves`, also for the inputs of ops with a state, for [`Slots::repeat`].
    pub fn new(program: &Program, pool: Arc<Pool>, most: usize, saves: bool) -> Result<Self> {
        let ops = program.ops.iter().map(|op| SlotOp::new(&**op, saves));
        let ops: Vec<SlotOp> = ops.collect();
        Ok(Slots {
            workspace: Workspace::new(program, pool, most)?.in_step_order(),
            one: Buffers::new(&widths(program), 1)?,
            saved: room(ops.iter().map(|op| op.width * most).sum())?,
            ops,
            most,
        })
    }

    /// Size in bytes of the working memory that [`Slots::new`] would allocate.
    pub fn plan(program: &Program, threads: usize, most: usize, saves: bool) -> usize {
        let one = widths(program).iter().sum::<usize>();
        let saved = program.ops.iter().map(|op| SlotOp::new(&**op, saves).width);
        let floats = one + saved.sum::<usize>() * most;
        Workspace::plan(program, threads, most) + floats * size_of::<f32>()
    }

    /// Size of working memory in bytes.
    pub fn bytes(&self) -> usize {
        let floats = self.one.floats() + self.saved.len();
        self.workspace.bytes() + floats * size_of::<f32>()
    }

    /// Feeds `tokens[row]` to state `row` for every row.
    pub fn read(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        let mut rest = &mut self.saved[..];
        for (op, step) in program.ops.iter().zip(&self.ops) {
            let saved;
            (saved, rest) = rest.split_at_mut(step.width * self.most);
            if step.is_tokenwise || step.reads_chunks && states.is_one() {
                let (arena, position) = states.state(0);
                op.run(&mut self.workspace.frame(arena, tokens, position));
                continue;
            }
            for row in 0..tokens.len() {
                let (arena, position) = states.state(row);
                let mut frame = self.workspace.frame(arena, &tokens[row..=row], position);
                copy(&step.access.reads, (frame.buffers, row), (&mut self.one, 0));
                if step.width > 0 {
                    let mut saved = &mut saved[row * step.width..];
                    for view in step.access.read_columns() {
                        let (columns, rest) = saved.split_at_mut(view.width);
                        columns.copy_from_slice(&self.one.get(view.buffer)[view.columns(0)]);
                        saved = rest;
                    }
                }
                std::mem::swap(frame.buffers, &mut self.one);
                op.run(&mut frame);
                std::mem::swap(frame.buffers, &mut self.one);
                copy(&step.access.writes, (&self.one, 0), (frame.buffers, row));
            }
        }
    }

    /// Reads a prefix of the last tokens again. Runs only the ops that change a state, on their saved inputs.
    pub fn repeat(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        let mut rest = &self.saved[..];
        for (op, step) in program.ops.iter().zip(&self.ops) {
            let saved;
            (saved, rest) = rest.split_at(step.width * self.most);
            if !step.access.changes_state() {
                continue;
            }
            for row in 0..tokens.len() {
                let mut saved = &saved[row * step.width..];
                for view in step.access.read_columns() {
                    let (columns, rest) = saved.split_at(view.width);
                    self.one.get_mut(view.buffer)[view.columns(0)].copy_from_slice(columns);
                    saved = rest;
                }
                let (arena, position) = states.state(row);
                let mut frame = self.workspace.frame(arena, &tokens[row..=row], position);
                std::mem::swap(frame.buffers, &mut self.one);
                op.run(&mut frame);
                std::mem::swap(frame.buffers, &mut self.one);
            }
        }
    }
}

/// A single state: row r is its r-th next token.
pub(super) struct OneState<'a> {
    arena: &'a mut Arena,
    position: u64,
}

impl<'a> OneState<'a> {
    pub fn new(arena: &'a mut Arena) -> Self {
        let position = arena.tensor::<u64>(HEADER)[0];
        OneState { arena, position }
    }
}

impl States for OneState<'_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        (self.arena, self.position + row as u64)
    }

    fn is_one(&self) -> bool {
        true
    }
}

/// Copies the columns of `operands` from one row to another.
fn copy(
    operands: &[Operand],
    (from, source): (&Buffers, usize),
    (to, place): (&mut Buffers, usize),
) {
    for operand in operands {
        if let Operand::Columns(view) = operand {
            let values = &from.get(view.buffer)[view.columns(source)];
            to.get_mut(view.buffer)[view.columns(place)].copy_from_slice(values);
        }
    }
}
