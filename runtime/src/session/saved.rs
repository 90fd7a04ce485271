//! States that were kept: forks, snapshots, marks.

use std::sync::Arc;

use super::{Session, SessionOptions, setup};
use crate::error::{Error, Result};
use crate::state::{Arena, HEADER, Snapshot, StateDtype, StateRange};

impl Session {
    /// A second session in the same state, independent from now on. It shares the threads.
    pub fn fork(&self) -> Result<Session> {
        let options = SessionOptions {
            pool: Some(Arc::clone(&self.pool)),
            sampler: self.sampler.params().clone(),
            ..self.options.clone()
        };
        let engine = self.engine.fork(&setup(&options, &self.pool))?;
        Session::with_engine(
            Arc::clone(&self.model),
            options,
            Arc::clone(&self.pool),
            engine,
        )
    }

    /// A copy of the state, in the host's memory.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost. A snapshot that was taken before can be restored on another device or
    /// on the CPU.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let mut arena = Arena::new(Arc::clone(self.engine.plan()))?;
        self.engine.download(arena.bytes_mut())?;
        Ok(Snapshot::new(self.model.fingerprint(), arena))
    }

    /// Returns to a copied state. To go on from there is, bit for bit, to go on from where it was taken.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is of another model or another layout, or if a counter is beyond its range; the session is
    /// as it was.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.check_snapshot(snapshot)?;
        self.engine.upload(snapshot.arena().bytes())?;
        self.forget_marks(0);
        Ok(())
    }

    /// Overwrites an earlier copy with the state as it is now. Nothing is allocated; the note stays.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is of another model or another layout; the copy is as it was.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) -> Result<()> {
        self.check_layout(snapshot)?;
        self.engine.download(snapshot.bytes_mut())
    }

    /// Refuses a state that this session cannot go on from.
    pub(super) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.check_layout(snapshot)?;
        self.check_numbers(snapshot)
    }

    fn check_layout(&self, snapshot: &Snapshot) -> Result<()> {
        let differs = |reason: String| Error::Snapshot {
            file: "state".into(),
            reason,
        };
        if snapshot.fingerprint() != self.model.fingerprint() {
            return Err(differs(format!(
                "it was saved from another model than {}, or by a version that describes this model otherwise",
                self.model.file()
            )));
        }
        let (ours, theirs) = (
            self.engine.plan().tensors(),
            snapshot.arena().plan().tensors(),
        );
        if ours.len() != theirs.len() {
            return Err(differs(format!(
                "it has {} tensors, this session {}; a model that is opened with its MTP block has more",
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
                "tensor {} is {:?} {:?} there and {:?} {:?} here; open the session with the same context, cache type \
                 and history",
                ours.name, theirs.dtype, theirs.shape, ours.dtype, ours.shape
            )));
        }
        Ok(())
    }

    /// Every whole number of the state must be within the range that its state tensor declares: what follows uses them as indices
    /// and counts, on the CPU and on a device.
    fn check_numbers(&self, snapshot: &Snapshot) -> Result<()> {
        let arena = snapshot.arena();
        let position = arena.tensor::<u64>(HEADER)[0];
        for (i, tensor) in self.engine.plan().tensors().iter().enumerate() {
            let most = match tensor.range() {
                StateRange::Any => continue,
                StateRange::UpTo(most) => most,
                StateRange::UpToPosition => position,
            };
            let largest = match tensor.dtype {
                StateDtype::U32 => arena.tensor::<u32>(i).iter().copied().map(u64::from).max(),
                StateDtype::U64 => arena.tensor::<u64>(i).iter().copied().max(),
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

    /// Remembers this state for [`Session::rewind`], in place of the oldest mark if all are taken. Without marks in
    /// the options it does nothing.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn mark(&mut self) -> Result<()> {
        let position = self.position();
        self.forget_marks(position);
        let oldest =
            (0..self.marks.len()).min_by_key(|&mark| self.marks[mark].map_or(0, |p| p + 1));
        if let Some(oldest) = oldest {
            self.engine.save_mark(oldest)?;
            self.marks[oldest] = Some(position);
        }
        Ok(())
    }

    /// Returns to an earlier position: to the last mark at or before it, and from there by reading tokens of the history
    /// again. At a mark the state is what it was, bit for bit. A cancellation is left to the next call.
    ///
    /// # Errors
    /// [`Error::Rewind`] if the position has not been reached, or no mark and history lead there; nothing changes then.
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
        let mark = (0..self.marks.len())
            .filter(|&mark| self.marks[mark].is_some_and(|p| p <= position))
            .max_by_key(|&mark| self.marks[mark]);
        let from = mark.and_then(|mark| self.marks[mark]).unwrap_or(0);
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
            Some(mark) => {
                self.engine.load_mark(mark)?;
            }
            None => self.reset()?,
        }
        self.forget_marks(position + 1);
        let mut fed = 0;
        // Half way there the session would be at a position that the caller did not choose, so a cancellation waits.
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
}
