//! Prompts of one session on a device, which are read in the slots of a batch: every token has the bits of a recorded step.

use std::cell::Cell;

use super::{BatchPrograms, CudaEngine, SlotKind};
use crate::error::Result;
use crate::state::LOGITS;

/// Reads tokens into the state of the [`CudaEngine`] that it was made for.
pub(in crate::engine) struct DeviceExact {
    slots: BatchPrograms,
    vocab: usize,
    /// The state's logits are those of a slot of the last reading.
    pub holds_logits: bool,
    /// Its queue may still be reading tokens into the state.
    busy: Cell<bool>,
}

impl DeviceExact {
    /// For up to `most` tokens at once.
    ///
    /// # Errors
    /// As of [`BatchPrograms::new`].
    pub fn new(engine: &CudaEngine, most: usize) -> Result<Self> {
        Ok(DeviceExact {
            slots: BatchPrograms::new(engine, SlotKind::Tokens, most)?,
            vocab: engine.model().spec().vocab,
            holds_logits: false,
            busy: Cell::new(false),
        })
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }

    /// Reads tokens, no more than it was made for.
    pub fn read(&mut self, engine: &mut CudaEngine, tokens: &[u32]) -> Result<()> {
        engine.leave(None)?;
        self.holds_logits = true;
        self.busy.set(true);
        self.slots.read(tokens)
    }

    /// Waits until the state has all tokens.
    pub fn settle(&self) -> Result<()> {
        if self.busy.take() {
            self.slots.queue.finish()?;
        }
        Ok(())
    }

    /// The state's logits become those after token `row` of the last reading, which is over when this returns.
    pub fn end(&self, engine: &CudaEngine, row: usize) -> Result<()> {
        let bytes = self.vocab * size_of::<f32>();
        let (from, to) = (self.slots.logits(row), engine.tensor(LOGITS));
        self.busy.set(true);
        self.slots.queue.copy(from, to, bytes)?;
        self.settle()
    }
}
