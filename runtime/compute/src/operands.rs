//! The operands of ops, by name. The order between ops (`crate::program`) follows from these names alone, on every device. A test
//! (tests/instrument.rs) fails if an op accesses anything that it does not declare.

/// Columns of a buffer: the `width` values of each token that begin at column `start`.
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

    /// Whether the two views share any value. Views with different strides always count as overlapping.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let meet = self.start < other.start + other.width && other.start < self.start + self.width;
        self.buffer == other.buffer && (meet || self.stride != other.stride)
    }

    /// Whether all columns of `other` are among the columns of this view.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let end = |view: &Self| view.start + view.width;
        let rows = (self.buffer, self.stride) == (other.buffer, other.stride);
        rows && self.start <= other.start && end(other) <= end(self)
    }

    /// The index range of these columns of a row in the buffer.
    pub fn columns(&self, row: usize) -> std::ops::Range<usize> {
        let start = row * self.stride + self.start;
        start..start + self.width
    }

    /// Splits the view into its first `width` columns and the rest.
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

/// The buffer of the residual stream.
pub const RESIDUAL: usize = 0;
/// The buffer that gathers the inputs of matrix products.
pub const INPUTS: usize = 1;
/// The buffer for products that are then summed into the residual stream.
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
    /// Whether the two operands share any value.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Operand::Columns(a), Operand::Columns(b)) => a.overlaps(b),
            (Operand::State(a), Operand::State(b)) => a == b,
            _ => false,
        }
    }
}

/// The operands of an op. An operand that the op updates, in whole or in part, is in both lists. [`crate::operands::INPUTS`] and
/// [`crate::operands::PRODUCT`] are not listed: they are scratch buffers whose contents do not outlive an op.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Operands written by other ops.
    pub reads: Vec<Operand>,
    /// Operands that the op writes.
    pub writes: Vec<Operand>,
}

impl Access {
    /// Adds columns that the op reads.
    pub fn reads(mut self, views: impl IntoIterator<Item = View>) -> Self {
        self.reads.extend(views.into_iter().map(Operand::Columns));
        self
    }

    /// Adds columns that the op overwrites completely, without reading their old contents.
    pub fn writes(mut self, views: impl IntoIterator<Item = View>) -> Self {
        self.writes.extend(views.into_iter().map(Operand::Columns));
        self
    }

    /// Adds columns that the op reads and writes, or writes only in part.
    pub fn updates(self, views: impl IntoIterator<Item = View>) -> Self {
        self.update(views.into_iter().map(Operand::Columns))
    }

    /// Adds state tensors that the op reads and writes.
    pub fn state(self, tensors: impl IntoIterator<Item = usize>) -> Self {
        self.update(tensors.into_iter().map(Operand::State))
    }

    /// Adds state tensors that the op only reads.
    pub fn reads_state(mut self, tensors: impl IntoIterator<Item = usize>) -> Self {
        self.reads.extend(tensors.into_iter().map(Operand::State));
        self
    }

    fn update(mut self, operands: impl Iterator<Item = Operand>) -> Self {
        for operand in operands {
            self.reads.push(operand);
            self.writes.push(operand);
        }
        self
    }

    /// The columns that the op reads.
    pub fn read_columns(&self) -> impl Iterator<Item = &View> {
        self.reads.iter().filter_map(|operand| match operand {
            Operand::Columns(view) => Some(view),
            Operand::State(_) => None,
        })
    }

    /// Whether the op writes a state tensor.
    pub fn changes_state(&self) -> bool {
        let state = |operand: &Operand| matches!(operand, Operand::State(_));
        self.writes.iter().any(state)
    }

    /// The first operand for which the order of the two ops matters, and the hazard; `self` is the earlier op.
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
    /// Both ops write the operand.
    WriteAfterWrite,
}
