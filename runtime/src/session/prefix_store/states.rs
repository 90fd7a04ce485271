//! State files as a source of checkpoints: a history that begins with the tokens of one continues from it.

use std::sync::{Arc, Mutex};

use super::lock;
use super::tree::{Checkpoint, Key, Piece, Place, Present, Tree};
use crate::error::Result;
use crate::session::document::StateFile;

/// A state file that fits the sessions of a key, whoever owns them.
struct Offer {
    file: Arc<StateFile>,
    /// See [`Key::shape`].
    shape: u32,
}

/// The state of a checkpoint, and its logits.
type StateAndLogits = (Vec<u8>, Vec<f32>);

/// How a session reads a record of a file.
pub struct Reader<'a> {
    pub rows: &'a dyn Fn(&StateFile, usize) -> Result<Vec<u8>>,
    pub state: &'a dyn Fn(&StateFile, usize) -> Result<StateAndLogits>,
}

/// The state files of a store.
#[derive(Default)]
pub struct States {
    offers: Mutex<Vec<Offer>>,
    notes: Mutex<Vec<String>>,
}

impl States {
    /// Adds a file that sessions with this key can continue from.
    pub fn add(&self, key: &Key, file: Arc<StateFile>) {
        let shape = key.shape;
        lock(&self.offers).push(Offer { file, shape });
    }

    /// Takes the notes about files that could not be read.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.notes))
    }

    /// Adds the deepest checkpoint whose tokens are a prefix of `tokens` to the tree, if it is deeper than `position`. A file that cannot
    /// be read is dropped, with a note.
    pub fn load(
        &self,
        tree: &Mutex<Tree>,
        (key, tokens, position): (&Key, &[u32], u64),
        reader: &Reader<'_>,
    ) {
        let found = {
            let offers = lock(&self.offers);
            let fitting = offers.iter().filter(|offer| offer.shape == key.shape);
            let deepest = fitting.filter_map(|offer| {
                let index = offer.file.deepest(tokens)?;
                Some((Arc::clone(&offer.file), index))
            });
            deepest.max_by_key(|(file, index)| file.position(*index))
        };
        let Some((file, index)) = found.filter(|(file, index)| file.position(*index) > position)
        else {
            return;
        };
        // Offers share a shape across models.
        let model = key.model.fingerprint();
        if model.is_ok_and(|own| own.to_string() != file.description().model) {
            return;
        }
        if let Err(error) = adopt(tree, key, &file, index, reader) {
            lock(&self.offers).retain(|offer| !Arc::ptr_eq(&offer.file, &file));
            lock(&self.notes).push(format!("ignored: {error}"));
        }
    }
}

/// Adds a checkpoint of a file to the tree, with the rows before it. Does nothing if there is no room.
fn adopt(
    tree: &Mutex<Tree>,
    key: &Key,
    file: &StateFile,
    index: usize,
    reader: &Reader<'_>,
) -> Result<()> {
    let mut parent: Option<Place> = None;
    for part in 0..=index {
        let (start, end) = (file.start(part) as usize, file.position(part) as usize);
        let (own, grid) = (&file.tokens()[start..end], file.head(part).grid);
        let held = lock(tree).piece(key, parent, own, grid);
        let is_last = part == index;
        let (rows, present) = (
            match held {
                None => (reader.rows)(file, part)?,
                Some(_) => Vec::new(),
            },
            match is_last {
                true => Some((reader.state)(file, part)?),
                false => None,
            },
        );
        let present = present.map(|(state, logits)| Arc::new(Present { state, logits }));
        let (state, logits) = present
            .as_ref()
            .map_or((0, 0), |it| (it.state.len(), it.logits.len()));
        let mut tree = lock(tree);
        let place = match held {
            Some(place) if !is_last => Some(place),
            Some(place) => {
                let cost = state + logits * size_of::<f32>();
                if !tree.reserve(cost, Some(place)) {
                    return Ok(());
                }
                tree.refill(place, present, cost)
            }
            None => {
                let cost = Checkpoint::cost(own.len(), rows.len(), state, logits);
                if !tree.reserve(cost, parent) {
                    return Ok(());
                }
                let piece = Piece {
                    tokens: Arc::new(own.to_vec()),
                    rows: Arc::new(rows),
                    present,
                    grid,
                    file: None,
                    checked: false,
                };
                let added = tree.add(key.clone(), parent, piece);
                if added.is_none() {
                    tree.release(cost);
                }
                added
            }
        };
        let Some(place) = place else {
            return Ok(());
        };
        parent = Some(place);
    }
    Ok(())
}
