//! The operands of ops, by name. These names alone decide the order between ops (`crate::program`), on every device:
//! an op that accesses anything else fails a test (tests/instrument.rs).

/// Columns of a buffer: `width` values of each token from column `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: usize,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub width: usize,
    /// Values from one token to the next.
    pub stride: usize,
}

impl View {
    /// All columns of a buffer that holds `[tokens, width]`.
    pub fn whole(buffer: usize, width: usize) -> Self {
        View {
            buffer,
            start: 0,
            width,
            stride: width,
        }
    }

    /// Whether some value of some token belongs to both. Rows of different lengths always overlap.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let meet = self.start < other.start + other.width && other.start < self.start + self.width;
        self.buffer == other.buffer && (meet || self.stride != other.stride)
    }

    /// Whether all of the other's columns are among these.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let end = |view: &Self| view.start + view.width;
        let rows = (self.buffer, self.stride) == (other.buffer, other.stride);
        rows && self.start <= other.start && end(other) <= end(self)
    }

    /// Where the columns of a row lie in the buffer.
    pub fn columns(&self, row: usize) -> std::ops::Range<usize> {
        let start = row * self.stride + self.start;
        start..start + self.width
    }

    /// The first `width` columns, and the others.
    pub fn split(self, width: usize) -> (Self, Self) {
        let first = View { width, ..self };
        let rest = View {
            start: self.start + width,
            width: self.width - width,
            ..self
        };
        (first, rest)
    }
}

/// The residual stream is buffer 0.
pub const RESIDUAL: usize = 0;
/// Inputs of matrix products are gathered in buffer 1.
pub const INPUTS: usize = 1;
/// Products that are summed into the residual stream pass through buffer 2.
pub const PRODUCT: usize = 2;
/// An operand: columns of a buffer, or a state tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
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

/// The operands of an op. An operand that it updates, wholly or in part, is in both lists. [`crate::operands::INPUTS`]
/// and [`crate::operands::PRODUCT`] are not listed: they are working memory without contents between ops.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Operands written by other ops.
    pub reads: Vec<Operand>,
    /// Operands that it writes.
    pub writes: Vec<Operand>,
}

impl Access {
    /// It also reads these columns.
    pub fn reads(mut self, views: impl IntoIterator<Item = View>) -> Self {
        self.reads.extend(views.into_iter().map(Operand::Columns));
        self
    }

    /// Adds columns that the op overwrites completely, without reading their old contents.
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

    /// The columns that it reads.
    pub fn read_columns(&self) -> impl Iterator<Item = &View> {
        self.reads.iter().filter_map(|operand| match operand {
            Operand::Columns(view) => Some(view),
            Operand::State(_) => None,
        })
    }

    /// Whether it changes a state tensor.
    pub fn changes_state(&self) -> bool {
        let state = |operand: &Operand| matches!(operand, Operand::State(_));
        self.writes.iter().any(state)
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
pub enum Hazard {
    /// The later op reads data that the earlier one wrote.
    ReadAfterWrite,
    /// The later op overwrites data that the earlier one read.
    WriteAfterRead,
    /// Both write it.
    WriteAfterWrite,
}
