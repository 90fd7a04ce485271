//! The parts of a state that one token reads and writes: computed from the ops, not measured.

use super::plan::StatePlan;

/// Bytes of a state tensor that reading one token touches, each counted once: those left by earlier tokens that it reads, and
/// those that it writes. Where the tokens decide, as when a set keeps a token or does not, these are the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The state tensor's number in the plan.
    pub tensor: usize,
    /// Bytes of earlier tokens that are read.
    pub read: usize,
    /// Bytes that are written.
    pub written: usize,
}

impl Touched {
    /// All of a state tensor is read, and written anew.
    pub(crate) fn whole(plan: &StatePlan, tensor: usize) -> Self {
        let bytes = plan.tensors()[tensor].bytes;
        Touched {
            tensor,
            read: bytes,
            written: bytes,
        }
    }

    /// This many rows of every head of a state tensor `[heads, rows, ..]` are read and written.
    pub(crate) fn rows(plan: &StatePlan, tensor: usize, read: usize, written: usize) -> Self {
        Self::some(
            plan,
            tensor,
            plan.tensors()[tensor].shape[1],
            [read, written],
        )
    }

    /// This many entries of a state tensor `[entries, ..]` are read and written.
    pub(crate) fn entries(plan: &StatePlan, tensor: usize, read: usize, written: usize) -> Self {
        Self::some(
            plan,
            tensor,
            plan.tensors()[tensor].shape[0],
            [read, written],
        )
    }

    /// Some or all of a state tensor's equal parts are read and written.
    fn some(plan: &StatePlan, tensor: usize, parts: usize, touched: [usize; 2]) -> Self {
        let bytes = plan.tensors()[tensor].bytes / parts.max(1);
        let [read, written] = touched.map(|n| n.min(parts) * bytes);
        Touched {
            tensor,
            read,
            written,
        }
    }

    /// Bytes read and written together.
    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        self.read + self.written
    }
}
