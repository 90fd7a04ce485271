//! Tokens of several states, one of each, in one pass over the weights.

use std::sync::Arc;

use super::cpu::{Workspace, widths};
use super::{Ahead, Engine, Group, Members};
use crate::cpu::{Buffers, Pool, room};
use crate::error::Result;
use crate::model::Model;
use crate::operands::{Access, Operand};
use crate::program::Program;
use crate::state::{Arena, HEADER, LOGITS};

/// The states that step together.
trait States {
    /// The state of row `row`, and the tokens that it has read.
    fn state(&mut self, row: usize) -> (&mut Arena, u64);
}

/// Memory to step up to so many states at once. What touches no state runs over all rows as over a chunk; every other op
/// runs row by row, on a copy of the columns that it names.
pub(crate) struct Together {
    workspace: Workspace,
    /// Buffers of one row.
    one: Buffers,
    ops: Vec<Step>,
    /// Logits of all rows.
    logits: Vec<f32>,
    vocab: usize,
}

/// What an op names, and whether it treats every token alike.
struct Step {
    access: Access,
    is_tokenwise: bool,
}

impl Together {
    /// Allocates for up to `most` states.
    pub fn new(program: &Program, pool: Arc<Pool>, most: usize) -> Result<Self> {
        let vocab = program.logits.matrix.rows();
        let ops = program.ops.iter().map(|op| Step {
            access: op.access(),
            is_tokenwise: op.is_tokenwise(),
        });
        Ok(Together {
            workspace: Workspace::new(program, pool, most)?,
            one: Buffers::new(&widths(program), 1)?,
            ops: ops.collect(),
            logits: room(vocab * most)?,
            vocab,
        })
    }

    /// Bytes of working memory that [`Together::new`] would allocate.
    pub fn plan(program: &Program, threads: usize, most: usize) -> usize {
        let one = widths(program).iter().sum::<usize>();
        let logits = program.logits.matrix.rows() * most;
        Workspace::plan(program, threads, most) + (one + logits) * size_of::<f32>()
    }

    /// Bytes of working memory.
    pub fn bytes(&self) -> usize {
        self.workspace.bytes() + (self.one.floats() + self.logits.len()) * size_of::<f32>()
    }

    /// Reads token `row` of `tokens` into state `row`, for every row, and computes their logits.
    fn step(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        for (
            op,
            Step {
                access,
                is_tokenwise,
            },
        ) in program.ops.iter().zip(&self.ops)
        {
            if *is_tokenwise {
                let (arena, position) = states.state(0);
                op.run(&mut self.workspace.frame(arena, tokens, position));
                continue;
            }
            for row in 0..tokens.len() {
                let (arena, position) = states.state(row);
                let mut frame = self.workspace.frame(arena, &tokens[row..=row], position);
                copy(&access.reads, (frame.buffers, row), (&mut self.one, 0));
                std::mem::swap(frame.buffers, &mut self.one);
                op.run(&mut frame);
                std::mem::swap(frame.buffers, &mut self.one);
                copy(&access.writes, (&self.one, 0), (frame.buffers, row));
            }
        }
        let logits = &mut self.logits[..tokens.len() * self.vocab];
        self.workspace.logits(program, 0..tokens.len(), logits);
    }

    /// The logits of a row of the last step.
    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab..][..self.vocab]
    }
}

/// Sessions on the CPU that step together.
pub(super) struct HostGroup {
    pub model: Arc<Model>,
    pub together: Together,
}

impl Group for HostGroup {
    fn bytes(&self) -> usize {
        self.together.bytes()
    }

    fn read(&mut self, members: &mut dyn Members, tokens: &[u32]) -> Result<()> {
        let program = self.model.program();
        self.together.step(program, &mut Arenas(members), tokens);
        for row in 0..tokens.len() {
            let logits = members.member(row).engine.arena_mut().tensor_mut(LOGITS);
            logits.copy_from_slice(self.together.logits(row));
        }
        Ok(())
    }
}

/// The states of several sessions.
struct Arenas<'a>(&'a mut dyn Members);

impl States for Arenas<'_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        let arena = self.0.member(row).engine.arena_mut();
        let position = arena.tensor::<u64>(HEADER)[0];
        (arena, position)
    }
}

/// Tokens of one session on the CPU that are read together.
pub(super) struct HostAhead {
    pub model: Arc<Model>,
    pub together: Together,
    /// The state before.
    pub before: Arena,
    pub most: usize,
}

impl Ahead for HostAhead {
    fn most(&self) -> usize {
        self.most
    }

    fn bytes(&self) -> usize {
        self.together.bytes()
    }

    fn keep(&mut self, engine: &mut dyn Engine) -> Result<()> {
        self.before.copy_from(engine.arena());
        Ok(())
    }

    fn go_back(&mut self, engine: &mut dyn Engine) -> Result<()> {
        engine.arena_mut().copy_from(&self.before);
        Ok(())
    }

    fn read(&mut self, engine: &mut dyn Engine, tokens: &[u32], _choose: bool) -> Result<()> {
        let arena = engine.arena_mut();
        let position = arena.tensor::<u64>(HEADER)[0];
        let mut state = OneState { arena, position };
        self.together.step(self.model.program(), &mut state, tokens);
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32]> {
        Ok(self.together.logits(row))
    }

    fn end(&mut self, engine: &mut dyn Engine, row: usize) -> Result<()> {
        let logits = engine.arena_mut().tensor_mut(LOGITS);
        logits.copy_from_slice(self.together.logits(row));
        Ok(())
    }
}

/// One state, which every row follows.
struct OneState<'a> {
    arena: &'a mut Arena,
    position: u64,
}

impl States for OneState<'_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        (self.arena, self.position + row as u64)
    }
}

/// Copies the named columns of a row to another row.
fn copy(
    operands: &[Operand],
    (from, source): (&Buffers, usize),
    (to, place): (&mut Buffers, usize),
) {
    for operand in operands {
        if let Operand::Columns(view) = operand {
            let columns = |row: usize| {
                let start = row * view.stride + view.start;
                start..start + view.width
            };
            let values = &from.get(view.buffer)[columns(source)];
            to.get_mut(view.buffer)[columns(place)].copy_from_slice(values);
        }
    }
}
