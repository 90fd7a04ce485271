//! Histories: a session becomes one that has read some tokens, and reads as few of them as it can.

use std::ops::Range;

use super::prefix_store::{Checkpoint, Key, Node, Place, PrefixStore, Present};
use super::reading::Reading;
use super::{Session, check_numbers};
use crate::error::{Error, Result};
use crate::state::{HEADER, HISTORY, LOGITS};

/// Positions between checkpoints of a long prompt on a CPU, unless a store says otherwise. On a GPU they are as far apart as chunks are long:
/// pieces of 256 tokens would read a prompt at a tenth of its speed.
const GRID: usize = 256;

/// How a history came into a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HistoryRead {
    /// Tokens that were not read again.
    pub reused: usize,
    /// Tokens that were read.
    pub read: usize,
}

/// From where a history goes on.
#[derive(Clone, Copy)]
enum From {
    Beginning,
    Here,
    Mark(usize),
    Stored(Place),
}

impl Session {
    /// Becomes a session that has read `tokens` and nothing else. It goes on from its own state, a mark or a checkpoint of
    /// [`crate::SessionOptions::store`], whichever is deepest, and reads the rest. Afterwards [`Session::logits`] are those after the
    /// last token. Random numbers go on.
    ///
    /// # Errors
    /// As [`Session::feed`]. After [`Error::Cancelled`] the session has read some first tokens of the history.
    pub fn read_history(&mut self, tokens: &[u32]) -> Result<HistoryRead> {
        self.read_history_with(tokens, &[], |_, _| ())
    }

    /// As [`Session::read_history`]. Chunks end at `borders` too, which are positions where another history may go on otherwise, and
    /// `progress(read, of)` is called after every chunk.
    ///
    /// # Errors
    /// As [`Session::read_history`].
    pub fn read_history_with(
        &mut self,
        tokens: &[u32],
        borders: &[usize],
        mut progress: impl FnMut(usize, usize),
    ) -> Result<HistoryRead> {
        self.check_from(0, tokens)?;
        let reused = self.go_back(tokens)?;
        let (total, store) = (tokens.len() - reused, self.options.store.clone());
        let grid = match store.as_ref().map_or(0, |store| store.grid()) {
            0 if self.options.device.is_some() => self.options.chunk.max(GRID),
            0 => GRID,
            grid => grid,
        };
        let is_border = |at: usize| at.is_multiple_of(grid) || borders.contains(&at);
        let cut = |read: usize| {
            let at = reused + read;
            let border = borders.iter().copied().filter(|&border| border > at).min();
            let next = (at / grid + 1) * grid;
            next.min(border.unwrap_or(next)) - at
        };
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
                    session.save_checkpoint(store, Some(&tokens[..at]), false);
                }
                progress(first + length, total);
                Ok(())
            },
        );
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

    /// Takes a checkpoint of this state, if the session has a store: other histories go on from here.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn checkpoint(&mut self) -> Result<()> {
        // A lost device is an error; a full store is none.
        self.engine.logits()?;
        if let Some(store) = self.options.store.clone() {
            self.save_checkpoint(&store, None, true);
        }
        Ok(())
    }

    /// One number made of all positions where a chunk or a step ended. Two sessions on one kind of device that have read the same tokens
    /// by the same grid have the same bits. All exact sessions have one grid.
    pub fn grid(&self) -> u64 {
        self.reading.grid()
    }

    /// Returns to the deepest state that `tokens` begin with; how many tokens it has read.
    fn go_back(&mut self, tokens: &[u32]) -> Result<usize> {
        loop {
            let (from, position) = self.nearest(tokens);
            match from {
                // The next message may be taken back.
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

    /// Forgets what was read, but not the random numbers.
    fn forget(&mut self) -> Result<()> {
        let random = self.random();
        self.reset()?;
        self.set_random(random);
        Ok(())
    }

    /// The deepest state that `tokens` begin with.
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
            let mut found = store.tree().find(key, tokens, most);
            let depth = best.1.max(found.map_or(0, |place| place.position as usize));
            store.load(key, tokens, depth as u64);
            found = store.tree().find(key, tokens, most).or(found);
            if let Some(place) = found.filter(|place| place.position as usize > best.1) {
                best = (From::Stored(place), place.position as usize);
            }
        }
        best
    }

    /// True if the tokens that the session remembers are the end of `tokens`.
    fn ends_like(&self, tokens: &[u32]) -> bool {
        let (older, newer) = self.recent();
        let rest = tokens.strip_suffix(newer);
        rest.is_some_and(|rest| rest.ends_with(older))
    }

    /// The key of this session's checkpoints. Those of exact sessions are apart, and apart on a GPU and on the CPU: their bits
    /// depend on nothing but the tokens and the kind of device.
    fn key(&self) -> Key {
        let kind = match (self.options.exact, &self.options.device) {
            (false, _) => 0,
            (true, None) => 1,
            (true, Some(_)) => 2,
        };
        Key {
            model: self.model.fingerprint(),
            shape: self.engine.plan().shape_hash().wrapping_add(kind),
        }
    }

    /// Beyond this position states depend on the context.
    fn most_position(&self) -> u64 {
        if self.bounded {
            self.options.state.context as u64
        } else {
            u64::MAX
        }
    }

    /// The tokens since position `start`, if the history reaches back so far.
    pub(super) fn tokens_since(&self, start: u64) -> Option<Vec<u32>> {
        let (older, newer) = self.recent();
        let count = usize::try_from(self.position().checked_sub(start)?).ok()?;
        let skip = (older.len() + newer.len()).checked_sub(count)?;
        Some(older.iter().chain(newer).copied().skip(skip).collect())
    }

    /// Takes a checkpoint of this state. `tokens` are all that was read, if they are known; `ends` says that the logits belong to them,
    /// and that the checkpoint is worth a file. A store without room, or a device that is lost, takes none.
    fn save_checkpoint(&mut self, store: &PrefixStore, tokens: Option<&[u32]>, ends: bool) {
        let here = self.position();
        if here == 0 || here > self.most_position() {
            return;
        }
        let key = self.key();
        let origin = self
            .reading
            .origin
            .filter(|&place| store.tree().get(place).is_some());
        let start = origin.map_or(0, |place| place.position);
        let own = match tokens {
            Some(tokens) => Some(tokens[start as usize..].to_vec()),
            None => self.tokens_since(start),
        };
        let Some(own) = own else {
            return;
        };
        if own.is_empty() {
            // The origin itself.
            if let Some(origin) = origin.filter(|_| ends) {
                store.keep(origin);
            }
            return;
        }
        let held = store.tree().holds(key, origin, &own, ends);
        if let Some(place) = held {
            if ends {
                store.keep(place);
            }
            // Its bits may be those of another grid: then it is no origin of this state.
            let is_same = store
                .tree()
                .get(place)
                .is_some_and(|node| node.grid == self.grid());
            if is_same {
                self.reading.origin = Some(place);
            }
            return;
        }
        let Some(place) = self.copy_checkpoint(store, (key, origin), start..here, (own, ends))
        else {
            return;
        };
        self.reading.origin = Some(place);
        if ends {
            store.keep(place);
        }
    }

    /// Copies this state into the store, where the room is reserved first.
    fn copy_checkpoint(
        &self,
        store: &PrefixStore,
        (key, origin): (Key, Option<Place>),
        positions: Range<u64>,
        (tokens, ends): (Vec<u32>, bool),
    ) -> Option<Place> {
        let plan = self.engine.plan();
        let rows = plan.row_bytes(positions.clone());
        let (state, logits) = (
            plan.present_bytes(),
            if ends { self.model.spec().vocab } else { 0 },
        );
        let cost = Checkpoint::cost(tokens.len(), rows, state, logits);
        if !store.tree().reserve(cost, origin) {
            return None;
        }
        let copy = || -> Result<Checkpoint> {
            let mut checkpoint = Checkpoint {
                tokens,
                rows: room(rows)?,
                present: Present {
                    state: room(state)?,
                    logits: room(logits)?,
                },
                grid: self.grid(),
            };
            let engine = &self.engine;
            engine.copy_out(&mut plan.rows(positions), &mut checkpoint.rows)?;
            engine.copy_out(&mut plan.present(), &mut checkpoint.present.state)?;
            if ends {
                checkpoint.present.logits.copy_from_slice(engine.logits()?);
            }
            Ok(checkpoint)
        };
        match copy() {
            Ok(checkpoint) => store.tree().insert(key, origin, checkpoint),
            Err(_) => {
                store.tree().release(cost);
                None
            }
        }
    }

    /// Takes over a checkpoint that has read `tokens`. False if it is gone or cannot be this model's; it is forgotten then.
    fn restore_checkpoint(&mut self, place: Place, tokens: &[u32]) -> Result<bool> {
        let Some(store) = self.options.store.clone() else {
            return Ok(false);
        };
        let plan = self.engine.plan().clone();
        let mut tree = store.tree();
        let path = tree.path(place).unwrap_or_default();
        let nodes: Vec<_> = path.iter().filter_map(|&place| tree.get(place)).collect();
        let Some(present) = nodes.last().and_then(|node| node.present.clone()) else {
            return Ok(false);
        };
        let start = |node: &Node| node.position - node.tokens.len() as u64;
        let fits = present.state.len() == plan.present_bytes()
            && [0, self.model.spec().vocab].contains(&present.logits.len())
            && place.position <= self.most_position()
            && nodes
                .iter()
                .all(|node| node.rows.len() == plan.row_bytes(start(node)..node.position))
            && check_numbers(place.position, plan.present_tensors(&present.state)).is_ok();
        if !fits {
            let file = nodes.last().and_then(|node| node.file);
            drop(nodes);
            drop(present);
            tree.discard(place);
            drop(tree);
            if let Some(file) = file {
                store.pass_over(file);
            }
            return Ok(false);
        }
        // Rows that this session has written and the checkpoint has not are zeros again, as in a session that never had them.
        let before = self.position().min(self.most_position());
        if before > place.position {
            self.engine.clear(&mut plan.rows(place.position..before))?;
        }
        for node in &nodes {
            self.engine
                .copy_in(&mut plan.rows(start(node)..node.position), &node.rows)?;
        }
        self.engine.copy_in(&mut plan.present(), &present.state)?;
        if !present.logits.is_empty() {
            let logits = &plan.tensors()[LOGITS];
            let range = logits.offset..logits.offset + logits.bytes;
            let bytes = bytemuck::cast_slice(&present.logits);
            self.engine.copy_in(&mut std::iter::once(range), bytes)?;
        }
        let grid = nodes.last().map_or(0, |node| node.grid);
        drop(nodes);
        drop(tree);
        self.set_read(tokens);
        self.engine.replace_own()?;
        self.reading = Reading::at_checkpoint(place, grid, tokens);
        self.forget_marks_but(tokens);
        Ok(true)
    }

    /// The position and the history become those of a session that has read `tokens`.
    fn set_read(&mut self, tokens: &[u32]) {
        let arena = self.engine.arena_mut();
        let history = arena.tensor_mut::<u32>(HISTORY);
        history.fill(0);
        let rows = history.len();
        let first = tokens.len().saturating_sub(rows);
        for (position, &token) in tokens.iter().enumerate().skip(first) {
            history[position % rows] = token;
        }
        arena.tensor_mut::<u64>(HEADER)[0] = tokens.len() as u64;
    }

    /// Marks of other tokens are of no use any more.
    fn forget_marks_but(&mut self, tokens: &[u32]) {
        for mark in &mut self.marks {
            *mark = mark.filter(|mark| {
                let read = tokens.get(..mark.position as usize);
                read.is_some_and(|read| mark.reading.is_of(read))
            });
        }
    }
}

/// Zeros, or the system's refusal.
fn room<T: bytemuck::Zeroable>(count: usize) -> Result<Vec<T>> {
    let refused = |_| Error::memory("a checkpoint", "give the prefix store fewer bytes");
    waterline_quant::zeroed(count).map_err(refused)
}
