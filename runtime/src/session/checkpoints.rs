//! Checkpoints of a session's state: saving them to the prefix store and restoring them.

use std::ops::Range;
use std::sync::Arc;

use super::prefix_store::{Checkpoint, Key, Node, Place, PrefixStore, Present};
use super::reading::Reading;
use super::{Session, check_numbers};
use crate::error::{Error, Result};
use crate::state::{LOGITS, StatePlan, is_sound};

/// A checkpoint whose state is being copied. The store has reserved its bytes but does not contain it yet.
pub(super) struct Begun {
    key: Key,
    origin: Option<Place>,
    tokens: Vec<u32>,
    grid: u64,
    logits: Vec<f32>,
    cost: usize,
    /// See [`Session::begin_checkpoint`].
    ends: bool,
}

impl Session {
    /// Saves a checkpoint of this state, if the session has a store, so that other histories can continue from here.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn checkpoint(&mut self) -> Result<()> {
        // A lost device is an error; a full store is not.
        self.engine.logits()?;
        if let Some(store) = self.options.store.clone() {
            self.save_checkpoint(&store, None, true);
        }
        Ok(())
    }

    /// The key of this session's checkpoints. Exact sessions on the CPU and on a GPU have separate keys: their bits depend only on the
    /// tokens and the kind of device.
    pub(super) fn key(&self) -> Key {
        let kind = match (self.options.exact, &self.options.device) {
            (false, _) => 0,
            (true, None) => 1,
            (true, Some(_)) => 2,
        };
        Key {
            model: Arc::clone(self.model.identity()),
            // Sessions of another owner find nothing, as if they had another model.
            owner: self.options.owner,
            shape: self.engine.plan().shape_hash().wrapping_add(kind),
        }
    }

    /// The position beyond which states depend on the context size.
    pub(super) fn most_position(&self) -> u64 {
        if self.bounded {
            self.options.state.context as u64
        } else {
            u64::MAX
        }
    }

    /// The tokens from position `start` on, if the history reaches back that far.
    pub(super) fn tokens_since(&self, start: u64) -> Option<Vec<u32>> {
        let (older, newer) = self.recent();
        let count = usize::try_from(self.position().checked_sub(start)?).ok()?;
        let skip = (older.len() + newer.len()).checked_sub(count)?;
        Some(older.iter().chain(newer).copied().skip(skip).collect())
    }

    /// Saves a checkpoint of this state with [`Session::begin_checkpoint`] and [`Session::end_checkpoint`].
    pub(super) fn save_checkpoint(
        &mut self,
        store: &PrefixStore,
        tokens: Option<&[u32]>,
        ends: bool,
    ) {
        let begun = self.begin_checkpoint(store, tokens, ends);
        self.end_checkpoint(store, begun);
    }

    /// Begins a checkpoint of this state, unless the store has it already. `tokens` are all tokens read, if known. `ends` means that the
    /// logits belong to the checkpoint and that it is worth a file. Returns `None` if the store has no room or the device is lost.
    pub(super) fn begin_checkpoint(
        &mut self,
        store: &PrefixStore,
        tokens: Option<&[u32]>,
        ends: bool,
    ) -> Option<Begun> {
        let here = self.position();
        if here == 0 || here > self.most_position() {
            return None;
        }
        let key = self.key();
        let origin = self
            .reading
            .origin
            .filter(|&place| store.tree().get(place).is_some());
        let start = origin.map_or(0, |place| place.position);
        let own = match tokens {
            Some(tokens) => tokens[start as usize..].to_vec(),
            None => self.tokens_since(start)?,
        };
        if own.is_empty() {
            // This state is the origin checkpoint itself.
            if let Some(origin) = origin.filter(|_| ends) {
                store.keep(origin);
            }
            return None;
        }
        let held = store.tree().holds(&key, origin, &own, ends);
        if let Some(place) = held {
            if ends {
                store.keep(place);
            }
            // The stored checkpoint may have another grid and other bits; then it cannot be this state's origin.
            let is_same = store
                .tree()
                .get(place)
                .is_some_and(|node| node.grid == self.grid());
            if is_same {
                self.reading.origin = Some(place);
            }
            return None;
        }
        let plan = self.engine.plan();
        let rows = plan.row_bytes(start..here);
        let (state, logits) = (
            plan.present_bytes(),
            if ends { self.model.spec().vocab } else { 0 },
        );
        let cost = Checkpoint::cost(own.len(), rows, state, logits);
        if !store.tree().reserve(cost, origin) {
            return None;
        }
        let Ok(logits) = self.begin_copy(start..here, ends) else {
            store.tree().release(cost);
            return None;
        };
        Some(Begun {
            key,
            origin,
            tokens: own,
            grid: self.grid(),
            logits,
            cost,
            ends,
        })
    }

    /// Begins to copy the state with the rows of these positions. Returns a copy of the logits if `ends`.
    fn begin_copy(&mut self, positions: Range<u64>, ends: bool) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        if ends {
            logits = room(self.model.spec().vocab)?;
            logits.copy_from_slice(self.engine.logits()?);
        }
        self.engine.begin_copy(positions)?;
        Ok(logits)
    }

    /// Adds a checkpoint that was begun to the store.
    pub(super) fn end_checkpoint(&mut self, store: &PrefixStore, begun: Option<Begun>) {
        let Some(begun) = begun else {
            return;
        };
        let Ok(copy) = self.engine.end_copy() else {
            return store.tree().release(begun.cost);
        };
        let checkpoint = Checkpoint {
            tokens: begun.tokens,
            rows: copy.rows,
            present: Present {
                state: copy.present,
                logits: begun.logits,
            },
            grid: begun.grid,
        };
        let place = store.tree().insert(begun.key, begun.origin, checkpoint);
        let Some(place) = place else {
            return;
        };
        self.reading.origin = Some(place);
        if begun.ends {
            store.keep(place);
        }
    }

    /// Restores the checkpoint after `tokens`. Returns false, and discards the checkpoint, if it is gone or does not fit this model.
    pub(super) fn restore_checkpoint(&mut self, place: Place, tokens: &[u32]) -> Result<bool> {
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
        let bad = if fits {
            let is_known = |node: &Node| node.checked || has_sound_values(&plan, node);
            nodes.iter().position(|node| !is_known(node))
        } else {
            nodes.len().checked_sub(1)
        };
        if let Some(bad) = bad {
            // A file holds several pieces, and the last of them names it.
            let file = nodes[bad..].iter().find_map(|node| node.file);
            drop(nodes);
            drop(present);
            tree.discard(place);
            drop(tree);
            if let Some(file) = file {
                store.pass_over(file);
            }
            return Ok(false);
        }
        // Clears rows that this session has written and the checkpoint has not: a session that never wrote them has zeros there.
        let before = self.position().min(self.most_position());
        if before > place.position {
            self.engine.clear(&mut plan.rows(place.position..before))?;
        }
        // This state already holds its ancestors' rows. The last shared node is copied all the same: its token block may have cleared rows.
        let ours = self.reading.origin.and_then(|origin| tree.path(origin));
        let ours = ours.filter(|_| self.position() <= self.most_position());
        let ours = ours.unwrap_or_default();
        let shared = path
            .iter()
            .zip(&ours)
            .take_while(|(one, other)| one == other);
        let shared = shared.count().min(nodes.len() - 1);
        let rows = nodes[shared..].iter().flat_map(|node| {
            let parts = plan.rows(start(node)..node.position);
            with_bytes(parts, &node.rows)
        });
        let logits = &plan.tensors()[LOGITS];
        let logits = logits.offset..logits.offset + 4 * present.logits.len();
        let logits = (logits, bytemuck::cast_slice(&present.logits));
        let overwritten = with_bytes(plan.present(), &present.state);
        self.engine
            .copy_in(&mut rows.chain(overwritten).chain([logits]))?;
        let grid = nodes.last().map_or(0, |node| node.grid);
        drop(nodes);
        tree.check(&path);
        drop(tree);
        self.set_history(0, tokens);
        self.engine.replace_own()?;
        self.reading = Reading::at_checkpoint(place, grid, tokens);
        self.forget_marks_but(tokens);
        Ok(true)
    }
}

/// Whether all values of a checkpoint are values that a state can have. Its logits may be minus infinity: such tokens are never chosen.
fn has_sound_values(plan: &StatePlan, node: &Node) -> bool {
    let positions = node.position - node.tokens.len() as u64..node.position;
    let rows = with_bytes(plan.rows(positions.clone()), &node.rows);
    let tensors = plan.tensor_rows(positions);
    let rows = tensors
        .zip(rows)
        .map(|((tensor, _), (_, bytes))| (tensor, bytes));
    let present = node.present.as_deref();
    let state = present.map_or(&[][..], |present| &present.state);
    let logits = present.map_or(&[][..], |present| &present.logits);
    rows.chain(plan.present_tensors(state))
        .all(|(tensor, bytes)| is_sound(None, tensor, bytes))
        && !logits.iter().any(|logit| logit.is_nan())
}

/// Pairs each part with its slice of consecutive bytes.
pub(super) fn with_bytes<'a, T>(
    parts: T,
    mut rest: &'a [u8],
) -> impl Iterator<Item = (Range<usize>, &'a [u8])> + use<'a, T>
where
    T: Iterator<Item = Range<usize>>,
{
    parts.map(move |part| {
        let (here, after) = rest.split_at(part.len());
        rest = after;
        (part, here)
    })
}

/// Allocates zeros, or returns an out-of-memory error.
fn room<T: bytemuck::Zeroable>(count: usize) -> Result<Vec<T>> {
    let refused = |_| Error::memory("a checkpoint", "reduce the size of the prefix store");
    waterline_quant::zeroed(count).map_err(refused)
}
