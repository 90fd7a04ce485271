//! What an op reads and writes, by name. Order between ops follows from these names alone (`crate::schedule`), on every
//! device: an op that touches what it does not name fails a test (`super::instrument`).

use crate::program::View;

/// What one op leaves for another: columns of a buffer, or a state tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    /// Columns of a buffer.
    Columns(View),
    /// A state tensor, by its number in the plan.
    State(usize),
}

impl Operand {
    /// Whether some value belongs to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Operand::Columns(a), Operand::Columns(b)) => a.overlaps(b),
            (Operand::State(a), Operand::State(b)) => a == b,
            _ => false,
        }
    }
}

/// What an op reads and writes. What it updates, wholly or in part, stands in both lists.
///
/// [`crate::program::PRODUCT`] is not named: it is working memory, in which an op finds nothing and leaves nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// What other ops left and this one reads.
    pub reads: Vec<Operand>,
    /// What it writes.
    pub writes: Vec<Operand>,
}

impl Access {
    /// It also reads these columns.
    pub fn reads(mut self, views: impl IntoIterator<Item = View>) -> Self {
        self.reads.extend(views.into_iter().map(Operand::Columns));
        self
    }

    /// It also writes all of these columns, and reads nothing of what they held.
    pub fn writes(mut self, views: impl IntoIterator<Item = View>) -> Self {
        self.writes.extend(views.into_iter().map(Operand::Columns));
        self
    }

    /// It also changes these columns: reads them, or writes a part of them only.
    pub fn updates(self, views: impl IntoIterator<Item = View>) -> Self {
        self.update(views.into_iter().map(Operand::Columns))
    }

    /// It also reads and writes these state tensors.
    pub fn state(self, tensors: impl IntoIterator<Item = usize>) -> Self {
        self.update(tensors.into_iter().map(Operand::State))
    }

    fn update(mut self, operands: impl Iterator<Item = Operand>) -> Self {
        for operand in operands {
            self.reads.push(operand);
            self.writes.push(operand);
        }
        self
    }

    /// The first thing by which the order of the two matters, `self` being the earlier one.
    pub fn conflict(&self, later: &Self) -> Option<(Operand, Hazard)> {
        let meet = |a: &[Operand], b: &[Operand]| {
            let meets = |x: &&Operand| b.iter().any(|y| x.overlaps(y));
            a.iter().find(meets).copied()
        };
        let read = meet(&self.writes, &later.reads).map(|x| (x, Hazard::ReadAfterWrite));
        let written = || meet(&self.writes, &later.writes).map(|x| (x, Hazard::WriteAfterWrite));
        let overwritten = || meet(&self.reads, &later.writes).map(|x| (x, Hazard::WriteAfterRead));
        read.or_else(overwritten).or_else(written)
    }
}

/// Why one op comes after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Hazard {
    /// The later one reads what the earlier one wrote.
    ReadAfterWrite,
    /// The later one writes over what the earlier one read.
    WriteAfterRead,
    /// Both write it.
    WriteAfterWrite,
}
