//! The memory that kernel calls access, by which they depend on one another.

use std::ops::Range;

use crate::cuda::driver::Address;

/// An op, and the memory that it names: [`crate::ops::Op::access`].
#[derive(Clone, Debug)]
pub struct OpMemory {
    /// Its index in the program.
    pub op: usize,
    /// The named memory, and workspaces that it shares with other ops.
    pub accesses: Accesses,
    /// Private workspaces.
    pub own: Vec<Range<Address>>,
}

/// Memory that a call reads, and memory that it writes, without what no other call of a step accesses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accesses {
    pub reads: Vec<Range<Address>>,
    pub writes: Vec<Range<Address>>,
}

impl Accesses {
    /// Whether the order of the two matters.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        overlap(&self.writes, &other.writes)
            || overlap(&self.writes, &other.reads)
            || overlap(&self.reads, &other.writes)
    }
}

/// Whether a range of the one list shares memory with one of the other.
pub(crate) fn overlap(a: &[Range<Address>], b: &[Range<Address>]) -> bool {
    let meet = |a: &Range<Address>, b: &Range<Address>| a.start < b.end && b.start < a.end;
    a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}
