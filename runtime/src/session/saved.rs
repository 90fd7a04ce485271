//! Saved states: forks, snapshots, marks.

use std::sync::Arc;

use super::reading::Reading;
use super::{Session, SessionOptions, setup};
use crate::error::{Error, Result};
use crate::state::{Arena, HEADER, HISTORY, Snapshot, StateDtype, StateRange, StateTensorPlan};

/// A saved position of the session.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub position: u64,
    pub reading: Reading,
}

impl Session {
    /// Whether the snapshot is of this model, whatever the options of its session.
    pub fn is_of_model(&self, snapshot: &Snapshot) -> bool {
        snapshot.is_of(self.model.identity())
    }

    /// Creates an independent second session in the same state. It shares the threads.
    pub fn fork(&self) -> Result<Session> {
        let options = SessionOptions {
            pool: Some(Arc::clone(&self.pool)),
            sampler: self.sampler.params().clone(),
            ..self.options.clone()
        };
        let engine = self.engine.fork(&setup(&options, &self.pool))?;
        let mut fork = Session::with_engine(
            Arc::clone(&self.model),
            options,
            Arc::clone(&self.pool),
            engine,
        )?;
        fork.reading = self.reading;
        fork.full.keep = self.full.keep;
        Ok(fork)
    }

    /// Copies the state to host memory.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost. An earlier snapshot can still be restored on another device or on the CPU.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut arena = Arena::new(Arc::clone(self.engine.plan()))?;
        self.engine.download(arena.bytes_mut())?;
        let mut snapshot = Snapshot::new(Arc::clone(self.model.identity()), arena);
        (snapshot.grid, snapshot.tokens) = (self.grid(), self.reading.tokens());
        Ok(snapshot)
    }

    /// Restores a snapshot. Continuing from there is bit-identical to continuing from where it was taken.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the snapshot is of another model or layout, or if a counter is out of range; the session is then unchanged.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.check_snapshot(snapshot)?;
        let arena = snapshot.arena();
        let position = arena.tensor::<u64>(HEADER)[0];
        self.engine.upload(arena.bytes())?;
        self.forget_marks(0);
        let history = arena.tensor::<u32>(HISTORY);
        let all = usize::try_from(position)
            .ok()
            .and_then(|position| history.get(..position));
        self.reading = Reading::restored(snapshot.grid, snapshot.tokens, all);
        Ok(())
    }

    /// Overwrites an existing snapshot with the current state. Allocates nothing and keeps the snapshot's note.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the snapshot is of another model or layout; it is then unchanged.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) -> Result<()> {
        self.check_layout(snapshot)?;
        (snapshot.grid, snapshot.tokens) = (self.grid(), self.reading.tokens());
        snapshot.set_model(Arc::clone(self.model.identity()));
        self.engine.download(snapshot.bytes_mut())
    }

    /// Fails if this session cannot continue from the snapshot.
    pub(super) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.check_layout(snapshot)?;
        let position = snapshot.arena().tensor::<u64>(HEADER)[0];
        let ours = self.engine.plan().tensors().iter();
        check_numbers(
            position,
            ours.zip(snapshot.tensors().map(|(_, bytes)| bytes)),
        )
    }

    fn check_layout(&self, snapshot: &Snapshot) -> Result<()> {
        let differs = |reason: String| Error::Snapshot {
            file: "state".into(),
            reason,
        };
        if !self.is_of_model(snapshot) {
            return Err(differs(format!(
                "it was saved from another model than {}, or by a version that describes this model differently",
                self.model.file()
            )));
        }
        let (ours, theirs) = (
            self.engine.plan().tensors(),
            snapshot.arena().plan().tensors(),
        );
        if ours.len() != theirs.len() {
            return Err(differs(format!(
                "it has {} tensors, but this session has {}; a model that is opened with its MTP block has more",
                theirs.len(),
                ours.len()
            )));
        }
        if let Some((ours, theirs)) = ours
            .iter()
            .zip(theirs)
            .find(|(ours, theirs)| !ours.lies_like(theirs))
        {
            return Err(differs(format!(
                "tensor {} is {:?} {:?} in the snapshot and {:?} {:?} in this session; open the session with the same \
                 context, cache type and history",
                ours.name, theirs.dtype, theirs.shape, ours.dtype, ours.shape
            )));
        }
        Ok(())
    }

    /// Saves this state for [`Session::rewind`], replacing the oldest mark if all are in use. Does nothing if the options have no marks.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn mark(&mut self) -> Result<()> {
        let position = self.position();
        self.forget_marks(position);
        let oldest = (0..self.marks.len())
            .min_by_key(|&mark| self.marks[mark].map_or(0, |m| m.position + 1));
        if let Some(oldest) = oldest {
            self.engine.save_mark(oldest)?;
            self.marks[oldest] = Some(Mark {
                position,
                reading: self.reading,
            });
        }
        Ok(())
    }

    /// Returns to an earlier position: loads the last mark at or before it and reads tokens of the history again from there. At a mark
    /// the state is bit-identical to the original. A cancellation takes effect in the next call.
    ///
    /// # Errors
    /// [`Error::Rewind`] if the position has not been reached, or cannot be reached from a mark and the history; nothing changes then.
    pub fn rewind(&mut self, position: u64) -> Result<()> {
        let here = self.position();
        let error = |reason: &str| Error::Rewind {
            position,
            reason: reason.into(),
        };
        if position > here {
            return Err(error("it has not been reached yet"));
        }
        if position == here {
            return Ok(());
        }
        let at = |mark: usize| self.marks[mark].map(|mark| mark.position);
        let mark = (0..self.marks.len())
            .filter(|&mark| at(mark).is_some_and(|p| p <= position))
            .max_by_key(|&mark| at(mark));
        let from = mark.and_then(at).unwrap_or(0);
        let (older, newer) = self.recent();
        let first = here - (older.len() + newer.len()) as u64;
        if from < position && from < first {
            return Err(error(
                "the tokens from the last mark on are no longer in the history",
            ));
        }
        let skip = (from.max(first) - first) as usize;
        let again: Vec<u32> = older
            .iter()
            .chain(newer)
            .copied()
            .skip(skip)
            .take((position - from) as usize)
            .collect();
        match mark {
            Some(mark) => self.load_mark(mark)?,
            None => self.reset()?,
        }
        self.forget_marks(position + 1);
        let mut fed = 0;
        // Stopping half way would leave the session at a position that the caller did not choose, so a cancellation waits.
        let mut cancelled = false;
        while let Err(error) = self.feed(&again[fed..]) {
            let Error::Cancelled { fed: more } = error else {
                return Err(error);
            };
            fed += more;
            cancelled = true;
        }
        if cancelled {
            self.canceller.cancel();
        }
        Ok(())
    }

    /// Loads a mark.
    pub(super) fn load_mark(&mut self, mark: usize) -> Result<()> {
        if let Some(taken) = self.marks[mark] {
            self.engine.load_mark(mark)?;
            self.reading = taken.reading;
        }
        Ok(())
    }
}

/// Checks that every integer of a state at `position` is within the range that its state tensor declares: CPU and device code use them
/// as indices and counts.
pub(super) fn check_numbers<'a>(
    position: u64,
    tensors: impl Iterator<Item = (&'a StateTensorPlan, &'a [u8])>,
) -> Result<()> {
    for (tensor, bytes) in tensors {
        let most = match tensor.range() {
            StateRange::Any => continue,
            StateRange::UpTo(most) => most,
            StateRange::UpToPosition => position,
        };
        let u32s = bytes.as_chunks::<4>().0.iter();
        let u64s = bytes.as_chunks::<8>().0.iter();
        let largest = match tensor.dtype {
            StateDtype::U32 => u32s.map(|&n| u32::from_le_bytes(n).into()).max(),
            StateDtype::U64 => u64s.map(|&n| u64::from_le_bytes(n)).max(),
            StateDtype::F16 | StateDtype::F32 | StateDtype::Kv => None,
        };
        if let Some(number) = largest.filter(|&number| number > most) {
            let layer = match tensor.layer {
                Some(layer) => format!(" of layer {layer}"),
                None => String::new(),
            };
            return Err(Error::Snapshot {
                file: "state".into(),
                reason: format!(
                    "tensor {}{layer} holds {number}, expected at most {most}",
                    tensor.name
                ),
            });
        }
    }
    Ok(())
}
