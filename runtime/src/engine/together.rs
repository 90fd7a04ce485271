//! Tokens of several states, one of each, in one pass over the weights.

use std::sync::Arc;

use super::draft::HostDraft;
use super::{Ahead, Engine, Group, Members};
use crate::bound::Model;
use crate::cpu::{Buffers, Pool, room};
use crate::error::Result;
use crate::operands::{Access, Operand};
use crate::ops::Op;
use crate::program::{Program, Workspace, widths};
use crate::state::{Arena, HEADER, LOGITS};

/// The states that step together.
trait States {
    /// The state of row `row`, and the tokens that it has read.
    fn state(&mut self, row: usize) -> (&mut Arena, u64);
}

/// Memory to step up to so many states at once. What touches no state runs over all rows as over a chunk; every other op
/// runs row by row, on a copy of the columns that it names.
pub(super) struct Together {
    workspace: Workspace,
    /// Buffers of one row.
    one: Buffers,
    ops: Vec<Step>,
    /// What ops with a state read of each row, if it is kept: `[most, Step::width]` of each.
    kept: Vec<f32>,
    most: usize,
    /// Logits of all rows.
    logits: Vec<f32>,
    vocab: usize,
}

/// What an op names, and whether it treats every token alike.
struct Step {
    access: Access,
    is_tokenwise: bool,
    /// Columns that are kept of each row: all that the op reads, if it changes a state.
    width: usize,
}

impl Step {
    fn of(op: &dyn Op, keeps: bool) -> Self {
        let access = op.access();
        let width = match keeps && access.changes_state() {
            true => access.read_columns().map(|view| view.width).sum(),
            false => 0,
        };
        Step {
            is_tokenwise: op.is_tokenwise(),
            access,
            width,
        }
    }
}

impl Together {
    /// Allocates for up to `most` states, and if it `keeps` what ops with a state read, for [`Together::repeat`].
    pub fn new(program: &Program, pool: Arc<Pool>, most: usize, keeps: bool) -> Result<Self> {
        let vocab = program.logits.matrix.rows();
        let ops = program.ops.iter().map(|op| Step::of(&**op, keeps));
        let ops: Vec<Step> = ops.collect();
        Ok(Together {
            workspace: Workspace::new(program, pool, most)?.in_step_order(),
            one: Buffers::new(&widths(program), 1)?,
            kept: room(ops.iter().map(|op| op.width * most).sum())?,
            ops,
            most,
            logits: room(vocab * most)?,
            vocab,
        })
    }

    /// Bytes of working memory that [`Together::new`] would allocate, with what it keeps.
    pub fn plan(program: &Program, threads: usize, most: usize) -> usize {
        let one = widths(program).iter().sum::<usize>();
        let kept = program.ops.iter().map(|op| Step::of(&**op, true).width);
        let rows = program.logits.matrix.rows() + kept.sum::<usize>();
        Workspace::plan(program, threads, most) + (one + rows * most) * size_of::<f32>()
    }

    /// Bytes of working memory.
    pub fn bytes(&self) -> usize {
        let floats = self.one.floats() + self.kept.len() + self.logits.len();
        self.workspace.bytes() + floats * size_of::<f32>()
    }

    /// Reads token `row` of `tokens` into state `row`, for every row, and computes their logits.
    fn step(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        let mut rest = &mut self.kept[..];
        for (op, step) in program.ops.iter().zip(&self.ops) {
            let kept;
            (kept, rest) = rest.split_at_mut(step.width * self.most);
            if step.is_tokenwise {
                let (arena, position) = states.state(0);
                op.run(&mut self.workspace.frame(arena, tokens, position));
                continue;
            }
            for row in 0..tokens.len() {
                let (arena, position) = states.state(row);
                let mut frame = self.workspace.frame(arena, &tokens[row..=row], position);
                copy(&step.access.reads, (frame.buffers, row), (&mut self.one, 0));
                if step.width > 0 {
                    let mut kept = &mut kept[row * step.width..];
                    for view in step.access.read_columns() {
                        let (columns, rest) = kept.split_at_mut(view.width);
                        columns.copy_from_slice(&self.one.get(view.buffer)[view.columns(0)]);
                        kept = rest;
                    }
                }
                std::mem::swap(frame.buffers, &mut self.one);
                op.run(&mut frame);
                std::mem::swap(frame.buffers, &mut self.one);
                copy(&step.access.writes, (&self.one, 0), (frame.buffers, row));
            }
        }
        let logits = &mut self.logits[..tokens.len() * self.vocab];
        self.workspace.logits(program, 0..tokens.len(), logits);
    }

    /// Reads the first tokens of the last step into the states once more, by the ops that change a state alone, whose inputs were
    /// kept. Logits stay those of the last step.
    fn repeat(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        let mut rest = &self.kept[..];
        for (op, step) in program.ops.iter().zip(&self.ops) {
            let kept;
            (kept, rest) = rest.split_at(step.width * self.most);
            if !step.access.changes_state() {
                continue;
            }
            for row in 0..tokens.len() {
                let mut kept = &kept[row * step.width..];
                for view in step.access.read_columns() {
                    let (columns, rest) = kept.split_at(view.width);
                    self.one.get_mut(view.buffer)[view.columns(0)].copy_from_slice(columns);
                    kept = rest;
                }
                let (arena, position) = states.state(row);
                let mut frame = self.workspace.frame(arena, &tokens[row..=row], position);
                std::mem::swap(frame.buffers, &mut self.one);
                op.run(&mut frame);
                std::mem::swap(frame.buffers, &mut self.one);
            }
        }
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
    /// The state before; while tokens are drafted, what the MTP block reads them into.
    pub before: Arena,
    pub draft: Option<HostDraft>,
    pub most: usize,
}

/// Bytes of working memory that [`Engine::ahead`] would allocate on the CPU, besides one state.
pub(crate) fn plan_ahead(model: &Model, threads: usize, most: usize, drafts: bool) -> usize {
    let draft = model.draft().filter(|_| drafts);
    let draft = draft.map_or(0, |draft| HostDraft::plan(draft, threads));
    Together::plan(model.program(), threads, most) + draft
}

impl Ahead for HostAhead {
    fn most(&self) -> usize {
        self.most
    }

    fn bytes(&self) -> usize {
        self.together.bytes() + self.draft.as_ref().map_or(0, HostDraft::bytes)
    }

    fn draft(
        &mut self,
        engine: &mut dyn Engine,
        tokens: &mut Vec<u32>,
        count: usize,
    ) -> Result<()> {
        if let (Some(host), Some(draft)) = (&mut self.draft, self.model.draft()) {
            let states = (engine.arena(), &mut self.before);
            host.run(draft, states, tokens, count);
        }
        Ok(())
    }

    fn read(&mut self, engine: &mut dyn Engine, tokens: &[u32], _choose: bool) -> Result<()> {
        let arena = engine.arena_mut();
        if tokens.len() > 1 {
            self.before.copy_from(arena);
        }
        let program = self.model.program();
        self.together
            .step(program, &mut OneState::of(arena), tokens);
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32]> {
        Ok(self.together.logits(row))
    }

    fn commit(&mut self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()> {
        let arena = engine.arena_mut();
        arena.copy_from(&self.before);
        let program = self.model.program();
        self.together
            .repeat(program, &mut OneState::of(arena), tokens);
        Ok(())
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

impl<'a> OneState<'a> {
    fn of(arena: &'a mut Arena) -> Self {
        let position = arena.tensor::<u64>(HEADER)[0];
        OneState { arena, position }
    }
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
            let values = &from.get(view.buffer)[view.columns(source)];
            to.get_mut(view.buffer)[view.columns(place)].copy_from_slice(values);
        }
    }
}
