//! Verifies drafted tokens of one session on a device in the slots of a batch.

use super::draft::DeviceDraft;
use super::kernel::KernelSlots;
use super::{BatchPrograms, CudaEngine, SlotKind, TokenSlots};
use crate::cpu::room;
use crate::cuda::Memory;
use crate::engine::{Engine, Verifier, most_exact_slots};
use crate::error::{Error, Result};
use crate::state::{Arena, HEADER, LOGITS};

/// Reads tokens into the state of its [`CudaEngine`].
pub(in crate::engine) struct DeviceVerifier {
    slots: Box<dyn TokenSlots>,
    /// The state before the last reading, on the device and the host's part.
    before: Memory,
    own: Arena,
    /// The most probable token after each token of the last reading; empty if not computed.
    chosen: Vec<u32>,
    /// The logits after each token `[most, vocab]`, valid if `fetched`.
    logits: Vec<f32>,
    fetched: bool,
    vocab: usize,
    /// Drafts by the model's MTP block, which changes the tensors in `before`.
    draft: Option<DeviceDraft>,
}

/// The engine as a device engine.
fn on_device(engine: &mut dyn Engine) -> Result<&mut CudaEngine> {
    let found = engine.on_device();
    found.ok_or_else(|| Error::invalid("drafts", "the session is on another device"))
}

impl DeviceVerifier {
    /// Allocates memory for up to `most` tokens per pass, at most 4 in the decode kernel, else 16. If `drafts`, also prepares drafts by the
    /// model's MTP block.
    ///
    /// # Errors
    /// See [`BatchPrograms::new`].
    pub fn new(engine: &CudaEngine, most: usize, drafts: bool) -> Result<Self> {
        let most = most.min(most_exact_slots(engine.model()));
        let vocab = engine.model().spec().vocab;
        let slots: Box<dyn TokenSlots> = match KernelSlots::new(engine, most)? {
            Some(slots) => Box::new(slots),
            None => Box::new(BatchPrograms::new(engine, SlotKind::Tokens, most)?),
        };
        let most = slots.most();
        let before = Memory::new(engine.device().driver(), engine.layout().bytes())?;
        let draft = engine.model().draft().filter(|_| drafts);
        let (copy, queue) = (before.address(), slots.queue());
        let draft = draft.map(|draft| DeviceDraft::new(engine, draft, copy, most, queue));
        Ok(DeviceVerifier {
            draft: draft.transpose()?,
            slots,
            before,
            own: engine.arena().try_clone()?,
            chosen: Vec::with_capacity(most),
            logits: room(most * vocab)?,
            fetched: false,
            vocab,
        })
    }
}

impl Verifier for DeviceVerifier {
    fn most(&self) -> usize {
        self.logits.len() / self.vocab
    }

    fn bytes(&self) -> usize {
        self.slots.bytes() + self.draft.as_ref().map_or(0, DeviceDraft::bytes)
    }

    fn draft(
        &mut self,
        engine: &mut dyn Engine,
        tokens: &mut Vec<u32>,
        count: usize,
    ) -> Result<()> {
        let engine = on_device(engine)?;
        let (Some(draft), Some(&token)) = (&self.draft, tokens.last()) else {
            return Ok(());
        };
        let (state, bytes) = (engine.leave(None)?, engine.layout().bytes());
        let position = engine.arena().tensor::<u64>(HEADER)[0];
        let read = tokens.len();
        tokens.resize(read + count, 0);
        let states = (state, self.before.address(), bytes);
        let queue = self.slots.queue();
        draft.run(queue, states, (token, position), &mut tokens[read..])
    }

    fn read(&mut self, engine: &mut dyn Engine, tokens: &[u32], choose: bool) -> Result<()> {
        let engine = on_device(engine)?;
        let (state, bytes) = (engine.leave(None)?, engine.layout().bytes());
        if tokens.len() > 1 {
            self.own.copy_from(engine.arena());
            let before = self.before.address();
            self.slots.queue().copy(state, before, bytes)?;
        }
        self.chosen.clear();
        self.fetched = false;
        self.slots.read(tokens)?;
        self.slots.settle(engine)?;
        if choose {
            self.chosen.resize(tokens.len(), 0);
            self.slots.choose(&mut self.chosen)?;
        }
        Ok(())
    }

    fn commit(&mut self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()> {
        let engine = on_device(engine)?;
        let (state, bytes) = (engine.leave(None)?, engine.layout().bytes());
        engine.replaced();
        engine.arena_mut().copy_from(&self.own);
        let queue = self.slots.queue();
        queue.copy(self.before.address(), state, bytes)?;
        self.slots.commit(tokens.len())?;
        self.slots.settle(engine)
    }

    fn chosen(&self, row: usize) -> Option<u32> {
        self.chosen.get(row).copied()
    }

    fn logits(&mut self, row: usize) -> Result<&[f32]> {
        if !self.fetched {
            let (place, all) = (self.slots.memory().logits(0), &mut self.logits);
            let all = bytemuck::cast_slice_mut(all);
            self.slots.queue().read(place, all)?;
            self.fetched = true;
        }
        Ok(&self.logits[row * self.vocab..][..self.vocab])
    }

    fn end(&mut self, engine: &mut dyn Engine, row: usize) -> Result<()> {
        let engine = on_device(engine)?;
        let queue = self.slots.queue();
        let bytes = self.vocab * size_of::<f32>();
        queue.copy(
            self.slots.memory().logits(row),
            engine.tensor(LOGITS),
            bytes,
        )?;
        queue.finish()?;
        let next = self
            .chosen(row)
            .filter(|&token| (token as usize) < self.vocab);
        engine.set_next(next);
        Ok(())
    }
}
