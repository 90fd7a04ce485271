//! Reads prompts of one session on a device in the slots of a batch, so that every token has the bits of a recorded step.

use std::cell::Cell;

use super::{BatchPrograms, CudaEngine, SlotKind, TokenSlots};
use crate::cuda::Address;
use crate::error::Result;
use crate::operands::RESIDUAL;
use crate::state::LOGITS;

/// Reads tokens into the state of its [`CudaEngine`].
pub(in crate::engine) struct DeviceExact {
    slots: BatchPrograms,
    vocab: usize,
    /// Whether the last tokens were read in these slots, which hold their logits.
    pub holds_logits: bool,
    /// Whether its queue may still be reading tokens into the state.
    busy: Cell<bool>,
}

impl DeviceExact {
    /// Allocates memory for up to `most` tokens at once.
    ///
    /// # Errors
    /// See [`BatchPrograms::new`].
    pub fn new(engine: &CudaEngine, most: usize) -> Result<Self> {
        Ok(DeviceExact {
            slots: BatchPrograms::new(engine, SlotKind::Tokens, most)?,
            vocab: engine.model().spec().vocab,
            holds_logits: false,
            busy: Cell::new(false),
        })
    }

    /// Size of device memory in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Reads tokens, at most as many as allocated for.
    pub fn read(&mut self, engine: &mut CudaEngine, tokens: &[u32]) -> Result<()> {
        engine.leave(None)?;
        self.holds_logits = true;
        self.busy.set(true);
        self.slots.read(tokens)
    }

    /// The residual stream `[tokens, hidden]` of the last reading.
    pub fn residual(&self) -> Address {
        self.slots.buffers[RESIDUAL].address()
    }

    /// Waits until the state contains all tokens.
    pub fn settle(&self) -> Result<()> {
        if self.busy.take() {
            self.slots.queue.finish()?;
        }
        Ok(())
    }

    /// Copies the logits after token `row` of the last reading to the state. The reading is complete when this returns.
    pub fn end(&self, engine: &CudaEngine, row: usize) -> Result<()> {
        let bytes = self.vocab * size_of::<f32>();
        let (from, to) = (self.slots.memory().logits(row), engine.tensor(LOGITS));
        self.busy.set(true);
        self.slots.queue.copy(from, to, bytes)?;
        self.settle()
    }
}
