//! The memory that kernel calls access, which determines how they depend on one another.

use std::ops::Range;

use crate::cuda::driver::Address;

/// An op, and the memory that it names: [`crate::ops::Op::access`].
#[derive(Clone, Debug)]
pub struct OpMemory {
    /// The index of the op in the program.
    pub op: usize,
    /// The named memory, and workspaces shared with other ops.
    pub accesses: Accesses,
    /// Workspaces of this op only.
    pub own: Vec<Range<Address>>,
}

/// Memory that a call reads, and memory that it writes, without memory that no other call of a step accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accesses {
    pub reads: Vec<Range<Address>>,
    pub writes: Vec<Range<Address>>,
}

impl Accesses {
    /// Whether the order of the two calls matters.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }
}

/// Whether a range of one list shares memory with a range of the other.
pub(crate) fn overlap(a: &[Range<Address>], b: &[Range<Address>]) -> bool {
    let meet = |a: &Range<Address>, b: &Range<Address>| a.start < b.end && b.start < a.end;
    a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}
