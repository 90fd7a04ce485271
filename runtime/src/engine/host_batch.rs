//! One pass over the weights for tokens of several states, one each, or for drafted tokens of one state.

use std::sync::Arc;

use super::draft::HostDraft;
use super::slots::{OneState, Slots, States};
use super::{Engine, Group, Members, Verifier};
use crate::cpu::{Pool, room};
use crate::error::Result;
use crate::loaded::Model;
use crate::program::Program;
use crate::state::{Arena, HEADER, LOGITS};

/// Slots, and the logits of each.
pub(super) struct HostBatch {
    slots: Slots,
    /// `[most, vocab]`
    logits: Vec<f32>,
    vocab: usize,
}

impl HostBatch {
    /// Allocates memory for up to `most` states; with `saves`, also for the inputs of ops with a state, for [`HostBatch::repeat`].
    pub fn new(program: &Program, pool: Arc<Pool>, most: usize, saves: bool) -> Result<Self> {
        let vocab = program.logits.matrix.rows();
        Ok(HostBatch {
            slots: Slots::new(program, pool, most, saves)?,
            logits: room(vocab * most)?,
            vocab,
        })
    }

    /// Size in bytes of the working memory that [`HostBatch::new`] would allocate with `saves`.
    pub fn plan(program: &Program, threads: usize, most: usize) -> usize {
        let logits = program.logits.matrix.rows() * most * size_of::<f32>();
        Slots::plan(program, threads, most, true) + logits
    }

    /// Size of working memory in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.bytes() + self.logits.len() * size_of::<f32>()
    }

    /// Feeds `tokens[row]` to state `row` for every row, and computes the logits.
    fn step(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        self.slots.read(program, states, tokens);
        let logits = &mut self.logits[..tokens.len() * self.vocab];
        let workspace = &mut self.slots.workspace;
        workspace.logits(program, 0..tokens.len(), logits);
    }

    /// Reads a prefix of the last step's tokens again. The logits do not change.
    fn repeat(&mut self, program: &Program, states: &mut dyn States, tokens: &[u32]) {
        self.slots.repeat(program, states, tokens);
    }

    /// The logits of row `row` of the last step.
    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab..][..self.vocab]
    }
}

/// Sessions on the CPU that step together.
pub(super) struct HostGroup {
    pub model: Arc<Model>,
    pub batch: HostBatch,
}

impl Group for HostGroup {
    fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    fn read(&mut self, members: &mut dyn Members, tokens: &[u32]) -> Result<()> {
        let program = self.model.program();
        self.batch.step(program, &mut Arenas(members), tokens);
        for row in 0..tokens.len() {
            let logits = members.member(row).engine.arena_mut().tensor_mut(LOGITS);
            logits.copy_from_slice(self.batch.logits(row));
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

/// Verifies drafted tokens of one session on the CPU.
pub(super) struct HostVerifier {
    pub model: Arc<Model>,
    pub batch: HostBatch,
    /// The state before the last reading; during a draft, the state that the MTP block changes.
    pub before: Arena,
    pub draft: Option<HostDraft>,
    pub most: usize,
}

/// Size in bytes of the working memory that [`Engine::verifier`] would allocate on the CPU, without the additional state.
pub(crate) fn plan_verifier(model: &Model, threads: usize, most: usize, drafts: bool) -> usize {
    let draft = model.draft().filter(|_| drafts);
    let draft = draft.map_or(0, |draft| HostDraft::plan(draft, threads));
    HostBatch::plan(model.program(), threads, most) + draft
}

impl Verifier for HostVerifier {
    fn most(&self) -> usize {
        self.most
    }

    fn bytes(&self) -> usize {
        self.batch.bytes() + self.draft.as_ref().map_or(0, HostDraft::bytes)
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
        self.batch.step(program, &mut OneState::new(arena), tokens);
        Ok(())
    }

    fn logits(&mut self, row: usize) -> Result<&[f32]> {
        Ok(self.batch.logits(row))
    }

    fn commit(&mut self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()> {
        let arena = engine.arena_mut();
        arena.copy_from(&self.before);
        let program = self.model.program();
        self.batch
            .repeat(program, &mut OneState::new(arena), tokens);
        Ok(())
    }

    fn end(&mut self, engine: &mut dyn Engine, row: usize) -> Result<()> {
        let logits = engine.arena_mut().tensor_mut(LOGITS);
        logits.copy_from_slice(self.batch.logits(row));
        Ok(())
    }
}
