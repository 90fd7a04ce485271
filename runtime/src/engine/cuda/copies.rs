//! Copies of a state on a device for checkpoints: the host takes one over while the device reads the next chunk.

use std::sync::Arc;

use super::CudaEngine;
use crate::cpu::Pool;
use crate::cuda::Transfer;
use crate::engine::{StateCopy, no_copy};
use crate::error::Result;
use crate::state::StatePlan;

/// A copy that was begun.
pub(super) enum Copying {
    None,
    /// It is on its way.
    Begun(StateCopy, Transfer),
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
            Copying::Begun(mut copy, mut transfer) => {
                let parts = [&mut copy.rows[..], &mut copy.present];
                let ended = transfer.end(pool, parts.into_iter());
                Copying::Ended(ended.map(|()| copy), Some(transfer))
            }
            other => other,
        };
    }
}

impl CudaEngine {
    /// Begins to copy the state. Where no transfer is large enough, or another session of the model uses it, all is copied at once.
    pub(super) fn begin(&mut self, mut copy: StateCopy) -> Result<()> {
        let bytes = copy.rows.len() + copy.present.len();
        let plan = Arc::clone(&self.plan);
        let arena = self.arena.address();
        let transfer = self
            .lock_chunks()
            .transfer
            .take_if(|room| room.bytes() >= bytes);
        let queue = self.queue()?;
        self.copying = match transfer {
            Some(mut transfer) => {
                let parts = copy.parts(&plan).map(|(part, _)| part);
                transfer.begin(queue, arena, parts)?;
                Copying::Begun(copy, transfer)
            }
            None => {
                for (part, here) in copy.parts(&plan) {
                    queue.read(arena + part.start as u64, here)?;
                }
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
