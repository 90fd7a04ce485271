//! Copies of a state on a device for checkpoints: the host takes one over while the device reads the next chunk.

use std::ops::Range;
use std::sync::Arc;

use super::CudaEngine;
use crate::cpu::Pool;
use crate::cuda::Transfer;
use crate::engine::{StateCopy, checkpoint_room, no_copy};
use crate::error::{Error, Result};
use crate::state::StatePlan;

/// A copy that was begun.
pub(super) enum Copying {
    None,
    /// It is on its way: bytes of its rows and of all others.
    Begun([usize; 2], Transfer),
    Ended(Result<StateCopy>, Option<Transfer>),
}

/// Most bytes of a checkpoint that has read `grid` tokens more than the one before it.
pub(super) fn checkpoint_bytes(plan: &StatePlan, grid: usize) -> usize {
    match grid as u64 {
        0 => 0,
        // A block of tokens may begin before the first of them.
        grid => plan.present_bytes() + plan.row_bytes(1..grid + 1),
    }
}

impl Copying {
    /// Takes over what has come from the device, if a copy was begun. An error is left to [`CudaEngine::end`].
    pub fn take_over(&mut self, pool: &Pool) {
        *self = match std::mem::replace(self, Copying::None) {
            Copying::Begun(lengths, mut transfer) => {
                let ended = transfer.end(pool, lengths);
                let copy = ended.map(|[rows, present]| StateCopy { rows, present });
                Copying::Ended(copy, Some(transfer))
            }
            other => other,
        };
    }
}

impl CudaEngine {
    /// Begins to copy the state. Where no transfer is large enough, or another session of the model uses it, all is copied at once.
    pub(super) fn begin(&mut self, positions: Range<u64>) -> Result<()> {
        let (plan, arena) = (Arc::clone(&self.plan), self.arena.address());
        let rows = plan.rows(positions.clone());
        let lengths = [plan.row_bytes(positions), plan.present_bytes()];
        let bytes = lengths[0] + lengths[1];
        let transfer = self
            .lock_chunks()
            .transfer
            .take_if(|room| room.bytes() >= bytes);
        let queue = self.queue()?;
        self.copying = match transfer {
            Some(mut transfer) => {
                transfer.begin(queue, arena, rows.chain(plan.present()))?;
                Copying::Begun(lengths, transfer)
            }
            None => {
                let read = |parts: &mut dyn Iterator<Item = Range<usize>>, length| {
                    let mut copy = checkpoint_room(length)?;
                    for part in parts {
                        let start = copy.len();
                        copy.resize(start + part.len(), 0);
                        queue.read(arena + part.start as u64, &mut copy[start..])?;
                    }
                    Ok::<_, Error>(copy)
                };
                let copy = StateCopy {
                    rows: read(&mut { rows }, lengths[0])?,
                    present: read(&mut plan.present(), lengths[1])?,
                };
                Copying::Ended(Ok(copy), None)
            }
        };
        Ok(())
    }

    /// Ends the copy that was begun.
    pub(super) fn end(&mut self) -> Result<StateCopy> {
        self.copying.take_over(&self.pool);
        match std::mem::replace(&mut self.copying, Copying::None) {
            Copying::Ended(copy, transfer) => {
                let mut chunks = self.lock_chunks();
                chunks.transfer = chunks.transfer.take().or(transfer);
                copy
            }
            _ => Err(no_copy()),
        }
    }
}
