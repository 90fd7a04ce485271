//! Copies of a device state for checkpoints: the host receives them while the device reads the next chunk.

use std::ops::Range;
use std::sync::Arc;

use super::CudaEngine;
use crate::cpu::Pool;
use crate::cuda::Transfer;
use crate::engine::{StateCopy, checkpoint_room, no_copy};
use crate::error::{Error, Result};
use crate::state::StatePlan;

/// The progress of a copy.
pub(super) enum Copying {
    None,
    /// In progress: the size of its rows and of its other tensors in bytes.
    Begun([usize; 2], Transfer),
    Ended(Result<StateCopy>, Option<Transfer>),
}

/// Upper bound of a checkpoint's size in bytes, if it is `grid` tokens after the previous one.
pub(super) fn checkpoint_bytes(plan: &StatePlan, grid: usize) -> usize {
    match grid as u64 {
        0 => 0,
        // The first token may lie inside a token block that begins earlier.
        grid => plan.present_bytes() + plan.row_bytes(1..grid + 1),
    }
}

impl Copying {
    /// Receives the bytes from the device, if a copy is in progress. [`CudaEngine::end`] reports errors.
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
    /// Begins to copy the state. Copies synchronously if no transfer buffer is large enough or another session of the model uses it.
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

    /// Waits for the copy and returns it.
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
