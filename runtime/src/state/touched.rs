//! What one token's reading touches of a state: counted from the stages, not measured.

use super::plan::StatePlan;

/// Bytes of a slot that reading one token touches, each counted once: those left by earlier tokens that it reads, and
/// those that it writes. Where the tokens decide, as when a set keeps a token or does not, these are the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The slot's number in the plan.
    pub slot: usize,
    /// Bytes of earlier tokens that are read.
    pub read: usize,
    /// Bytes that are written.
    pub written: usize,
}

impl Touched {
    /// All of a slot is read, and written anew.
    pub(crate) fn whole(plan: &StatePlan, slot: usize) -> Self {
        let bytes = plan.slots[slot].bytes;
        Touched {
            slot,
            read: bytes,
            written: bytes,
        }
    }

    /// So many rows of every head of a slot `[heads, rows, ..]` are read and written.
    pub(crate) fn rows(plan: &StatePlan, slot: usize, read: usize, written: usize) -> Self {
        let rows = plan.slots[slot].shape[1];
        let bytes = plan.slots[slot].bytes / rows.max(1);
        Touched {
            slot,
            read: read.min(rows) * bytes,
            written: written.min(rows) * bytes,
        }
    }

    /// So many entries of a slot `[entries, ..]` are read and written.
    pub(crate) fn entries(plan: &StatePlan, slot: usize, read: usize, written: usize) -> Self {
        let entries = plan.slots[slot].shape[0];
        let bytes = plan.slots[slot].bytes / entries.max(1);
        Touched {
            slot,
            read: read.min(entries) * bytes,
            written: written.min(entries) * bytes,
        }
    }

    /// Bytes read and written together.
    pub fn bytes(&self) -> usize {
        self.read + self.written
    }
}
