//! A full context of attention: what moves, or is read again, before the next token is read. Recurrent layers have no such bound.
//!
//! Attention caches token p in row `p mod context` of a ring, so that each new token overwrites the oldest. With
//! [`ContextEnd::Shift`] the first tokens, to which attention sinks, stay: whenever one half of the ring has been written, they are copied
//! in front of the tokens of that half, over the oldest of these, and their keys are turned to the rotary positions that they get there,
//! as in StreamingLLM (arXiv 2309.17453). So a query sees between half of the context and all of it. No other row moves, and positions
//! go on: rotary attention depends on distances alone. Values, and the keys' contents, are those of the first reading.
//!
//! With [`ContextEnd::Compact`] the session becomes one that has read the first tokens and the last ones, as many as fill half of the rest
//! of the context, and nothing between them: they are read again, by the recurrent layers too.

use std::sync::Arc;

use super::{ContextEnd, Session};
use crate::bound::Model;
use crate::error::{Error, Result};
use crate::session::SessionOptions;

/// Rows that are moved at once.
const TOGETHER: usize = 16;

/// Memory for a full context, and how many first tokens stay.
#[derive(Default)]
pub(super) struct Full {
    /// First tokens that stay.
    pub keep: usize,
    /// Rows on their way.
    rows: Vec<u8>,
    /// Tokens that are read again.
    tokens: Vec<u32>,
}

impl Full {
    /// For a session on `model` with such options; nothing where its context has no end or is refused there.
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

    /// Bytes that a session on `model` with such options would allocate for it.
    ///
    /// # Errors
    /// As [`Full::new`].
    pub fn plan(model: &Model, options: &SessionOptions) -> Result<usize> {
        let (rows, tokens) = sizes(model, options)?;
        Ok(rows + size_of::<u32>() * tokens)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.rows.len() + size_of::<u32>() * self.tokens.len()
    }
}

/// Bytes of rows on their way, and tokens that are read again.
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

/// Zeros, or the system's refusal.
fn room<T: bytemuck::Zeroable>(count: usize) -> Result<Vec<T>> {
    let refused = |_| Error::memory("a full context", "choose a smaller context");
    waterline_quant::zeroed(count).map_err(refused)
}

/// Most first tokens that stay in a context.
fn most_kept(context: usize) -> usize {
    (context / 2).saturating_sub(1)
}

/// How many of the newest tokens are kept when a context is compacted.
fn tail(context: usize, keep: usize) -> usize {
    (context - keep) / 2
}

impl Session {
    pub(super) fn check(&self, tokens: &[u32]) -> Result<()> {
        self.check_from(self.position(), tokens)
    }

    /// Refuses tokens that a session at `position` could not read.
    pub(super) fn check_from(&self, position: u64, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.spec().vocab;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(Error::invalid(
                format!("token {token}"),
                format!("expected a token below {vocab}, the size of the model's vocabulary"),
            ));
        }
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

    /// Keeps at least this many first tokens from now on, as far as half of the context holds them: instructions.
    pub(super) fn keep_first(&mut self, tokens: usize) {
        if self.full.bytes() > 0 {
            let most = most_kept(self.options.state.context);
            self.full.keep = self.options.keep.max(tokens).min(most);
        }
    }

    /// Tokens that can be read before [`Session::make_room`] has something to do again.
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

    /// Before a token is chosen or read: forgets what a full context has no room for. To call it again changes nothing.
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

    /// Copies the first tokens from the half of the ring that is overwritten next, which begins at `row`, to the other half.
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

    /// Begins anew with the first tokens and the last ones. It ends also if the session is cancelled meanwhile.
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

    /// The tokens that a session has read, by this end of the context, which was given `tokens`; all of them unless it compacts.
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

/// From which of `count` tokens on a session that compacts holds all, besides the first `keep`.
fn compacted_from(count: usize, context: usize, keep: usize) -> usize {
    let tail = tail(context, keep);
    // Tokens that are read between two times.
    let between = context - keep - tail;
    let times = (count - context).div_ceil(between);
    context + (times - 1) * between - tail
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One token after the other, as a session does it.
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
