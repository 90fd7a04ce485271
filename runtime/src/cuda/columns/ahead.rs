//! Tokens of one session that are read together, with a way back.

use std::sync::Arc;

use super::{Columns, Of};
use crate::cuda::Engine;
use crate::cuda::driver::Memory;
use crate::error::Result;
use crate::model::Model;
use crate::state::{Kv, LOGITS};

/// Reads up to a fixed number of tokens into the state of an [`Engine`], which may return to the state before.
pub(crate) struct Ahead {
    columns: Columns,
    /// The state before.
    before: Memory,
    /// The most probable token behind each of those that were read last, if it was chosen.
    chosen: Vec<u32>,
    /// The logits behind each, once they are fetched `[most, vocab]`.
    logits: Vec<f32>,
    fetched: bool,
    vocab: usize,
}

impl Ahead {
    /// For up to `most` tokens at once.
    ///
    /// # Errors
    /// As of [`Columns::new`].
    pub fn new(model: &Arc<Model>, engine: &Engine, kv: Kv, most: usize) -> Result<Self> {
        let device = Arc::clone(engine.device());
        let before = Memory::new(device.driver(), engine.plan().bytes)?;
        let vocab = model.spec().vocab;
        let layout = (&**engine.plan(), kv);
        let of = Of::Tokens(engine.state());
        Ok(Ahead {
            columns: Columns::new(model, device, layout, of, most)?,
            before,
            chosen: Vec::with_capacity(most),
            logits: vec![0.0; most * vocab],
            fetched: false,
            vocab,
        })
    }

    /// Bytes of working memory, besides the state before.
    pub fn bytes(&self) -> usize {
        self.columns.bytes()
    }

    /// Keeps the state as it is.
    pub fn keep(&self, engine: &mut Engine) -> Result<()> {
        let (state, bytes) = (engine.leave()?, engine.plan().bytes);
        self.columns.queue().copy(state, self.before.address(), bytes)
    }

    /// Returns to the state that was kept.
    pub fn go_back(&self, engine: &mut Engine) -> Result<()> {
        let (state, bytes) = (engine.leave()?, engine.plan().bytes);
        engine.replaced();
        self.columns.queue().copy(self.before.address(), state, bytes)
    }

    /// Reads tokens; the most probable ones behind each are chosen if `choose`.
    pub fn read(&mut self, engine: &mut Engine, tokens: &[u32], choose: bool) -> Result<()> {
        engine.leave()?;
        self.chosen.clear();
        self.fetched = false;
        self.columns.feed(tokens)?;
        if choose {
            self.chosen.resize(tokens.len(), 0);
            self.columns.choose(&mut self.chosen)?;
        }
        Ok(())
    }

    /// The most probable token behind token `row`, if it was chosen; beyond the vocabulary if the logits are not finite.
    pub fn chosen(&self, row: usize) -> Option<u32> {
        self.chosen.get(row).copied()
    }

    /// The logits behind token `row` of `count` that were read last.
    pub fn logits(&mut self, row: usize, count: usize) -> Result<&[f32]> {
        if !self.fetched {
            let all = bytemuck::cast_slice_mut(&mut self.logits[..count * self.vocab]);
            self.columns.queue().read(self.columns.logits(0), all)?;
            self.fetched = true;
        }
        Ok(&self.logits[row * self.vocab..][..self.vocab])
    }

    /// Ends a reading: the state's logits are those behind token `row`, and nothing is left to do.
    pub fn end(&self, engine: &mut Engine, row: usize) -> Result<()> {
        let queue = self.columns.queue();
        let bytes = self.vocab * size_of::<f32>();
        queue.copy(self.columns.logits(row), engine.slot(LOGITS), bytes)?;
        queue.finish()?;
        let next = self.chosen(row).filter(|&token| (token as usize) < self.vocab);
        engine.set_next(next);
        Ok(())
    }
}
