//! The parts of a state that reading one token accesses: computed from the ops, not measured.

use super::plan::StatePlan;

/// Bytes of a state tensor that reading one token accesses, each byte counted once: bytes of earlier tokens that are read, and bytes that
/// are written. Where the count depends on the tokens, as when a set keeps or drops a token, it is the maximum.
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
    /// All of a state tensor is read and rewritten.
    pub(crate) fn whole(plan: &StatePlan, tensor: usize) -> Self {
        let bytes = plan.tensors()[tensor].bytes;
        Touched {
            tensor,
            read: bytes,
            written: bytes,
        }
    }

    /// These numbers of rows of every head of a state tensor `[heads, rows, ..]` are read and written.
    pub(crate) fn rows(plan: &StatePlan, tensor: usize, read: usize, written: usize) -> Self {
        Self::some(
            plan,
            tensor,
            plan.tensors()[tensor].shape[1],
            [read, written],
        )
    }

    /// These numbers of entries of a state tensor `[entries, ..]` are read and written.
    pub(crate) fn entries(plan: &StatePlan, tensor: usize, read: usize, written: usize) -> Self {
        Self::some(
            plan,
            tensor,
            plan.tensors()[tensor].shape[0],
            [read, written],
        )
    }

    /// Some or all of the `parts` equal parts of a state tensor are read and written.
    fn some(plan: &StatePlan, tensor: usize, parts: usize, touched: [usize; 2]) -> Self {
        let bytes = plan.tensors()[tensor].bytes / parts.max(1);
        let [read, written] = touched.map(|n| n.min(parts) * bytes);
        Touched {
            tensor,
            read,
            written,
        }
    }

    /// Total of the bytes read and the bytes written.
    #[doc(hidden)]
    pub fn bytes(&self) -> usize {
        self.read + self.written
    }
}
