//! What one token's reading touches of a state: counted from the ops, not measured.

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
        Self::some(plan, slot, plan.slots[slot].shape[1], [read, written])
    }

    /// So many entries of a slot `[entries, ..]` are read and written.
    pub(crate) fn entries(plan: &StatePlan, slot: usize, read: usize, written: usize) -> Self {
        Self::some(plan, slot, plan.slots[slot].shape[0], [read, written])
    }

    /// Of a slot in so many equal parts, some or all are touched.
    fn some(plan: &StatePlan, slot: usize, parts: usize, touched: [usize; 2]) -> Self {
        let bytes = plan.slots[slot].bytes / parts.max(1);
        let [read, written] = touched.map(|n| n.min(parts) * bytes);
        Touched {
            slot,
            read,
            written,
        }
    }

    /// Bytes read and written together.
    pub fn bytes(&self) -> usize {
        self.read + self.written
    }
}
