//! Sessions on a device that step together.

use super::{BatchPrograms, CudaEngine, SlotKind, TokenSlots};
use crate::cuda::Sampling;
use crate::engine::{Group, Member, Members};
use crate::error::{Error, Result};
use crate::state::HEADER;

/// The largest batch on a device: a program is recorded for every number of slots up to this.
const MOST: usize = 64;

/// Programs for a batch of sessions: slot i holds the i-th session of a call.
pub(in crate::engine) struct DeviceGroup(BatchPrograms);

impl DeviceGroup {
    /// Allocates memory for up to `most` sessions with states like that of `engine`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 64 sessions, and the errors of [`BatchPrograms::new`].
    pub fn new(engine: &CudaEngine, most: usize) -> Result<Self> {
        if most > MOST {
            let reason = format!("must have 1 to {MOST} sessions on a GPU");
            return Err(Error::invalid("batch", reason));
        }
        BatchPrograms::new(engine, SlotKind::Sessions, most).map(DeviceGroup)
    }

    /// Assigns each slot its session's state. Slots sample if `sampling` returns parameters for their session.
    fn assign_states(
        &mut self,
        members: &mut dyn Members,
        sampling: impl Fn(&Member) -> Option<Sampling>,
    ) -> Result<()> {
        for slot in 0..members.count() {
            let member = members.member(slot);
            let sampling = sampling(&member);
            let Some(engine) = member.engine.on_device() else {
                return Err(Error::invalid("batch", "a session is on another device"));
            };
            if let Some(sampling) = sampling {
                self.0.set_sampling(slot, sampling)?;
            }
            self.0.set_state(slot, engine.leave(sampling)?)?;
        }
        Ok(())
    }
}

impl Group for DeviceGroup {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn read(&mut self, members: &mut dyn Members, tokens: &[u32]) -> Result<()> {
        self.assign_states(members, |_| None)?;
        self.0.read(tokens)?;
        self.0.queue.finish()
    }

    fn step(&mut self, members: &mut dyn Members, tokens: &mut [u32]) -> Result<bool> {
        let mut greedy = true;
        for index in 0..members.count() {
            let Member { engine, params } = members.member(index);
            let is_empty = engine.arena().tensor::<u64>(HEADER)[0] == 0;
            if is_empty || Sampling::new(params).is_none() {
                return Ok(false);
            }
            greedy &= params.is_greedy();
        }
        self.assign_states(members, |member| {
            Sampling::new(member.params).filter(|_| !greedy)
        })?;
        self.0.step(tokens, !greedy)?;
        Ok(true)
    }
}
