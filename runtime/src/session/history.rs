//! Reading a history: brings a session to the state after given tokens while reading as few of them as possible.

use super::Session;
use super::prefix_store::{Place, Reader};
use crate::error::{Error, Result};

/// How a history was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HistoryRead {
    /// Tokens whose state was reused.
    pub reused: usize,
    /// Tokens that had to be read.
    pub read: usize,
}

/// The state from which reading continues.
#[derive(Clone, Copy)]
enum From {
    Beginning,
    Here,
    Mark(usize),
    Stored(Place),
}

impl Session {
    /// Brings the session to the state after `tokens` and nothing else. It continues from its current state, a mark or a checkpoint of
    /// [`crate::SessionOptions::store`], whichever is deepest, and reads the rest. Afterwards [`Session::logits`] returns the logits
    /// after the last token. The random number state is kept.
    ///
    /// # Errors
    /// See [`Session::feed`]. After [`Error::Cancelled`] the session has read a prefix of the history.
    pub fn read_history(&mut self, tokens: &[u32]) -> Result<HistoryRead> {
        self.read_history_with(tokens, &[], |_, _| ())
    }

    /// Like [`Session::read_history`]. Chunks also end at `borders`, positions where another history may diverge, and `progress(read,
    /// of)` is called after every chunk.
    ///
    /// # Errors
    /// See [`Session::read_history`].
    pub fn read_history_with(
        &mut self,
        tokens: &[u32],
        borders: &[usize],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<HistoryRead> {
        self.check_from(0, tokens)?;
        let compacted = self.compacted(tokens);
        let (tokens, borders) = match &compacted {
            Some(kept) => (&kept[..], &[][..]),
            None => (tokens, borders),
        };
        let reused = self.go_back(tokens)?;
        let (total, store) = (tokens.len() - reused, self.options.store.clone());
        let grid = self.options.grid();
        let is_border = |at: usize| at.is_multiple_of(grid) || borders.contains(&at);
        let cut = |read: usize| {
            let at = reused + read;
            let border = borders.iter().copied().filter(|&border| border > at).min();
            let next = (at / grid + 1) * grid;
            next.min(border.unwrap_or(next)) - at
        };
        // The checkpoint that is being copied while the next chunk is read.
        let mut begun = None;
        let outcome = self.read(
            &tokens[reused..],
            cut,
            |session, chunk| session.engine.compute_logits(chunk - 1),
            |session, (first, length)| {
                let at = reused + first + length;
                if let Some(store) = store
                    .as_ref()
                    .filter(|_| is_border(at) && at < tokens.len())
                {
                    session.end_checkpoint(store, begun.take());
                    begun = session.begin_checkpoint(store, Some(&tokens[..at]), false);
                }
                progress(first + length, total);
                Ok(())
            },
        );
        if let Some(store) = &store {
            self.end_checkpoint(store, begun);
        }
        outcome?;
        if let Some(store) = &store {
            self.save_checkpoint(store, Some(tokens), true);
            store.tree().count(reused, total);
        } else if total > 0 {
            self.mark()?;
        }
        if total > 0 && self.canceller.take() {
            return Err(Error::Cancelled { fed: total });
        }
        Ok(HistoryRead {
            reused,
            read: total,
        })
    }

    /// A hash of all positions where a chunk or a step ended. Two sessions on the same kind of device that have read the same tokens
    /// with the same grid are bit-identical. All exact sessions have the same grid.
    pub fn grid(&self) -> u64 {
        self.reading.grid()
    }

    /// Returns to the deepest state whose tokens are a prefix of `tokens`. Returns the length of that prefix.
    fn go_back(&mut self, tokens: &[u32]) -> Result<usize> {
        loop {
            let (from, position) = self.nearest(tokens);
            match from {
                // The next message may be undone.
                From::Here if self.options.store.is_none() && position > 0 => self.mark()?,
                From::Here => {}
                From::Beginning => self.forget()?,
                From::Mark(mark) => {
                    let random = self.random();
                    self.load_mark(mark)?;
                    self.set_random(random);
                }
                From::Stored(place) => {
                    if !self.restore_checkpoint(place, &tokens[..position])? {
                        continue;
                    }
                }
            }
            return Ok(position);
        }
    }

    /// Forgets everything read so far, but keeps the random number state.
    pub(super) fn forget(&mut self) -> Result<()> {
        let random = self.random();
        self.reset()?;
        self.set_random(random);
        Ok(())
    }

    /// Finds the deepest state whose tokens are a prefix of `tokens`.
    fn nearest(&mut self, tokens: &[u32]) -> (From, usize) {
        let mut best = (From::Beginning, 0);
        let here = self.position() as usize;
        if here <= tokens.len()
            && self.reading.is_of(&tokens[..here])
            && self.ends_like(&tokens[..here])
        {
            best = (From::Here, here);
        }
        for (index, mark) in self.marks.iter().enumerate() {
            let Some(mark) = mark else { continue };
            let read = mark.position as usize;
            if read > best.1 && read <= tokens.len() && mark.reading.is_of(&tokens[..read]) {
                best = (From::Mark(index), read);
            }
        }
        if let Some(store) = &self.options.store {
            let (key, most) = (self.key(), self.most_position());
            let mut found = store.tree().find(&key, tokens, most);
            let depth = best.1.max(found.map_or(0, |place| place.position as usize));
            let reader = Reader {
                rows: &|file, index| self.part_rows(file, index),
                state: &|file, index| self.part_state(file, index),
            };
            store.load(&key, tokens, depth as u64, &reader);
            found = store.tree().find(&key, tokens, most).or(found);
            if let Some(place) = found.filter(|place| place.position as usize > best.1) {
                best = (From::Stored(place), place.position as usize);
            }
        }
        best
    }

    /// Whether `tokens` end with the session's history.
    fn ends_like(&self, tokens: &[u32]) -> bool {
        let (older, newer) = self.recent();
        let rest = tokens.strip_suffix(newer);
        rest.is_some_and(|rest| rest.ends_with(older))
    }

    /// Drops the marks whose tokens are not a prefix of `tokens`.
    pub(super) fn forget_marks_but(&mut self, tokens: &[u32]) {
        for mark in &mut self.marks {
            *mark = mark.filter(|mark| {
                let read = tokens.get(..mark.position as usize);
                read.is_some_and(|read| mark.reading.is_of(read))
            });
        }
    }
}
