//! A full attention context: what is moved or read again before the next token is read. Recurrent layers have no such limit.
//!
//! Attention caches token p in row `p mod context` of a ring, so that each new token overwrites the oldest. With [`ContextEnd::Shift`]
//! the first tokens, the attention sinks, stay: whenever one half of the ring has been written, they are copied in front of the tokens
//! of that half, over the oldest of these, and their keys are rotated to the rotary positions of their new rows, as in StreamingLLM
//! (arXiv 2309.17453). So a query sees between half of the context and all of it. No other row moves, and positions keep counting:
//! rotary attention depends only on distances. Values, and keys up to rotation, remain those of the first reading.
//!
//! With [`ContextEnd::Compact`] the session restarts from the first tokens and the most recent ones, enough to fill half of the
//! remaining context. All layers, including recurrent ones, read them again; the tokens in between are lost.

use std::sync::Arc;

use super::{ContextEnd, Session};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::session::SessionOptions;

/// Number of rows moved at once.
const TOGETHER: usize = 16;

/// Buffers for a full context, and the number of first tokens that stay.
#[derive(Default)]
pub(super) struct Full {
    /// Number of first tokens that stay.
    pub keep: usize,
    /// Buffer for rows that are being moved.
    rows: Vec<u8>,
    /// Buffer for tokens that are read again.
    tokens: Vec<u32>,
}

impl Full {
    /// Allocates the buffers for a session on `model`; empty if its context is unbounded or [`ContextEnd::Refuse`] applies.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the first tokens fit into half of the context, [`Error::Memory`].
    pub fn new(model: &Model, options: &SessionOptions) -> Result<Self> {
        let (rows, tokens) = sizes(model, options)?;
        let moves = rows > 0 || tokens > 0;
        Ok(Full {
            keep: if moves { options.keep } else { 0 },
            rows: room(rows)?,
            tokens: room(tokens)?,
        })
    }

    /// Size in bytes of the buffers that a session on `model` with `options` would allocate.
    ///
    /// # Errors
    /// See [`Full::new`].
    pub fn plan(model: &Model, options: &SessionOptions) -> Result<usize> {
        let (rows, tokens) = sizes(model, options)?;
        Ok(rows + size_of::<u32>() * tokens)
    }

    /// Size of the buffers in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() + size_of::<u32>() * self.tokens.len()
    }
}

/// Bytes for rows that are being moved, and number of tokens that are read again.
fn sizes(model: &Model, options: &SessionOptions) -> Result<(usize, usize)> {
    let (end, context) = (options.context_end, options.state.context);
    if end == ContextEnd::Refuse || !model.reads_context() {
        return Ok((0, 0));
    }
    if options.keep > most_kept(context) {
        let reason = format!(
            "found {}, expected at most {}, less than half of the context",
            options.keep,
            most_kept(context)
        );
        return Err(Error::invalid("keep", reason));
    }
    if end == ContextEnd::Compact {
        return Ok((0, context));
    }
    if !model.keeps_first_tokens() {
        return Ok((0, 0));
    }
    let together = TOGETHER.min(context) as u64;
    Ok((model.plan(&options.state)?.row_bytes(0..together), 0))
}

/// Allocates zeros, or returns an out-of-memory error.
fn room<T: bytemuck::Zeroable>(count: usize) -> Result<Vec<T>> {
    let refused = |_| Error::memory("a full context", "choose a smaller context");
    waterline_quant::zeroed(count).map_err(refused)
}

/// The largest number of first tokens that can stay in a context.
fn most_kept(context: usize) -> usize {
    (context / 2).saturating_sub(1)
}

/// The number of most recent tokens kept when a context is compacted.
fn tail(context: usize, keep: usize) -> usize {
    (context - keep) / 2
}

impl Session {
    pub(super) fn check(&self, tokens: &[u32]) -> Result<()> {
        self.check_from(self.position(), tokens)
    }

    /// Fails if a session at `position` could not read `tokens`.
    pub(super) fn check_from(&self, position: u64, tokens: &[u32]) -> Result<()> {
        self.model.check_token_ids(tokens)?;
        let context = self.options.state.context;
        let refuse = self.bounded && self.options.context_end == ContextEnd::Refuse;
        if refuse && position + tokens.len() as u64 > context as u64 {
            return Err(Error::ContextFull {
                context,
                position,
                requested: tokens.len(),
            });
        }
        Ok(())
    }

    /// From now on keeps at least this many first tokens (the instructions), up to half of the context.
    pub(super) fn keep_first(&mut self, tokens: usize) {
        if self.full.bytes() > 0 {
            let most = most_kept(self.options.state.context);
            self.full.keep = self.options.keep.max(tokens).min(most);
        }
    }

    /// Number of tokens that can be read before [`Session::make_room`] has work to do again.
    pub(super) fn room(&self) -> usize {
        let context = self.options.state.context;
        let position = self.position();
        match self.options.context_end {
            _ if !self.bounded => usize::MAX,
            ContextEnd::Refuse => usize::MAX,
            ContextEnd::Compact => context.saturating_sub(position as usize),
            ContextEnd::Shift if position < context as u64 => context - position as usize,
            ContextEnd::Shift => {
                let row = (position % context as u64) as usize;
                let half = context / 2;
                if row < half {
                    half - row
                } else {
                    context - row
                }
            }
        }
    }

    /// Makes room in a full context before a token is chosen or read. Calling it twice changes nothing.
    pub(crate) fn make_room(&mut self) -> Result<()> {
        let context = self.options.state.context as u64;
        if !self.bounded || self.position() < context {
            return Ok(());
        }
        match self.options.context_end {
            ContextEnd::Refuse => Ok(()),
            ContextEnd::Compact => self.compact(),
            ContextEnd::Shift => {
                let row = self.position() % context;
                if row == 0 || row == context / 2 {
                    self.shift(row as usize)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Copies the first tokens from the half of the ring that is overwritten next, starting at `row`, to the other half.
    fn shift(&mut self, row: usize) -> Result<()> {
        let (context, half) = (self.options.state.context, self.options.state.context / 2);
        let (to, turned) = match row {
            0 => (half, half),
            _ => (0, context - half),
        };
        let plan = Arc::clone(self.engine.plan());
        for first in (0..self.full.keep).step_by(TOGETHER) {
            let count = TOGETHER.min(self.full.keep - first);
            let rows = |start: usize| (start + first) as u64..(start + first + count) as u64;
            let moved = &mut self.full.rows[..plan.row_bytes(rows(row))];
            self.engine.copy_out(&mut plan.rows(rows(row)), moved)?;
            let mut rest = &mut *moved;
            for (tensor, part) in plan.tensor_rows(rows(row)) {
                let (own, after) = rest.split_at_mut(part.len());
                if let Some(rotary) = tensor.rotary() {
                    rotary.turn(own, count, tensor.dtype, turned);
                }
                rest = after;
            }
            let mut rest = &*moved;
            let mut copies = plan.rows(rows(to)).map(|part| {
                let (own, after) = rest.split_at(part.len());
                rest = after;
                (part, own)
            });
            self.engine.copy_in(&mut copies)?;
        }
        Ok(())
    }

    /// Restarts from the first tokens and the most recent ones. Runs to completion even if the session is cancelled meanwhile.
    fn compact(&mut self) -> Result<()> {
        let (context, keep) = (self.options.state.context, self.full.keep);
        let mut tokens = std::mem::take(&mut self.full.tokens);
        let (older, newer) = self.recent();
        for (to, &from) in tokens.iter_mut().zip(older.iter().chain(newer)) {
            *to = from;
        }
        let tail = tail(context, keep);
        tokens.copy_within(context - tail..context, keep);
        let outcome = self.read_again(&tokens[..keep + tail]);
        self.full.tokens = tokens;
        outcome
    }

    fn read_again(&mut self, tokens: &[u32]) -> Result<()> {
        self.forget()?;
        let mut last = 0;
        for piece in tokens.chunks(self.options.chunk) {
            self.engine.read(piece)?;
            self.advance(piece);
            last = piece.len() - 1;
        }
        self.engine.compute_logits(last)
    }

    /// The tokens that a session holds after reading `tokens`; `None` if it holds all of them.
    pub(super) fn compacted(&self, tokens: &[u32]) -> Option<Vec<u32>> {
        let context = self.options.state.context;
        let compacts = self.bounded && self.options.context_end == ContextEnd::Compact;
        if !compacts || tokens.len() <= context {
            return None;
        }
        let start = compacted_from(tokens.len(), context, self.full.keep);
        Some([&tokens[..self.full.keep], &tokens[start..]].concat())
    }
}

/// The index of the first of `count` tokens after the gap: a compacting session holds the first `keep` tokens and all from this index on.
fn compacted_from(count: usize, context: usize, keep: usize) -> usize {
    let tail = tail(context, keep);
    // Tokens read between two compactions.
    let between = context - keep - tail;
    let times = (count - context).div_ceil(between);
    context + (times - 1) * between - tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with reading one token at a time.
    #[test]
    fn a_history_is_compacted_as_its_tokens_are_one_by_one() {
        for (context, keep) in [(24, 0), (24, 5), (25, 11), (8, 3)] {
            let mut held: Vec<usize> = Vec::new();
            for count in 1..10 * context {
                if held.len() == context {
                    let tail = tail(context, keep);
                    let kept = [&held[..keep], &held[context - tail..]].concat();
                    held = kept;
                }
                held.push(count - 1);
                if count > context {
                    let start = compacted_from(count, context, keep);
                    let expected: Vec<usize> = (0..keep).chain(start..count).collect();
                    assert_eq!(held, expected, "{count} of {context}, {keep}");
                }
            }
        }
    }
}
