//! Products of one token whose weights come through a persistent program's ring: what `project_ring.cu` is called with.

use std::ops::Range;

use waterline_quant::FORMATS;

use super::driver::{Address, TensorCores};
use super::launches::{Call, Grid, Launches, Parameter, Rows};
use super::levels::Touched;
use super::products::{ADD, Factor, GATE, Gather, format_of, formats_of};
use crate::error::Result;
use crate::functions::Activation;

/// Bits beside those of `Gather::kinds`, in gather.cu.
const QUADS: usize = 256;
const LATE_NORM: usize = 512;
const NEAR: usize = 1024;
const SILU_GATES: usize = 2048;
const REPEATED_GAINS: usize = 4096;
/// From this bit on stands the logarithm of the size of parts.
const PART_BITS: u32 = 13;

/// Bytes of an input as three bf16 numbers.
const SPLIT_BYTES: usize = 6;

/// What becomes of a product, by its number in ring_rows.cu.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is stored.
    Store,
    /// It is added to what the output holds.
    Add,
    /// This function of the first matrix' times the second's is stored.
    Gated(Activation),
}

impl Kind {
    /// Its number in ring_rows.cu, and that of its function.
    fn numbers(self) -> (i32, i32) {
        match self {
            Kind::Store => (0, Activation::Identity as i32),
            Kind::Add => (1, Activation::Identity as i32),
            Kind::Gated(function) => (2, function as i32),
        }
    }
}

/// A product whose weights come through a persistent program's ring.
pub(crate) struct Product {
    pub(super) kind: Kind,
    /// Matrices of the same input.
    pub(super) factors: Vec<RingFactor>,
    /// The columns that the input is made of, if at most one step adds others, and at most one gates by others.
    pub(super) input: Option<Rows>,
    /// The columns of these two.
    pub(super) added: Option<Rows>,
    pub(super) gates: Option<Rows>,
    /// Whether a step of the input needs room for all of its columns.
    pub(super) has_odd_norm: bool,
    pub(super) output: Rows,
}

impl Product {
    /// Columns of the matrices.
    fn cols(&self) -> usize {
        self.factors[0].cols
    }

    /// Bytes of shared memory for the input.
    pub(super) fn input_bytes(&self) -> usize {
        let whole = if self.has_odd_norm {
            self.cols() * size_of::<f32>()
        } else {
            0
        };
        self.input_ends()[2].max(whole)
    }

    /// Where the input ends as it is, in 8 bits with scales, and split into bf16 numbers; each only where a format
    /// wants it.
    fn input_ends(&self) -> [usize; 3] {
        let cols = self.cols();
        let integer = |f: &RingFactor| FORMATS[f.format].is_integer_dot();
        let any = |wants: &dyn Fn(&RingFactor) -> bool| usize::from(self.factors.iter().any(wants));
        let plain = any(&|f| !integer(f) && !f.on_tensor_cores) * cols * size_of::<f32>();
        let codes = any(&integer) * (cols + cols / 32 * 4);
        let split = any(&|f| f.on_tensor_cores) * SPLIT_BYTES * (cols.next_multiple_of(64) + 32);
        let first = plain.next_multiple_of(128);
        let second = first + codes.next_multiple_of(128);
        [first, second, second + split]
    }

    /// Whether any of its rows goes through a task.
    pub fn has_tasks(&self) -> bool {
        self.factors.iter().any(|factor| factor.task.is_some())
    }

    /// The memory that it touches, if the columns that its input is made of are known.
    pub(super) fn touched(&self) -> Option<Touched> {
        let inputs = [Some(self.input?), self.added, self.gates];
        let rows = self.owners().iter().map(|factor| self.output_of(factor));
        Some(Touched {
            reads: inputs.into_iter().flatten().map(Rows::bytes).collect(),
            writes: rows.map(Rows::bytes).collect(),
        })
    }

    /// The matrices whose rows' products stand in the output: of a gated product the first half.
    pub(super) fn owners(&self) -> &[RingFactor] {
        let together = if matches!(self.kind, Kind::Gated(_)) {
            2
        } else {
            1
        };
        &self.factors[..self.factors.len() / together]
    }

    /// The columns of the output that a matrix makes.
    pub(super) fn output_of(&self, factor: &RingFactor) -> Rows {
        Rows {
            first: self.output.first + (factor.column * size_of::<f32>()) as u64,
            width: factor.rows as i32,
            ..self.output
        }
    }

    /// Where these columns stand in the output, if every one of them is a row of this product.
    pub(super) fn columns(&self, columns: Rows) -> Option<Range<usize>> {
        let (whole, part) = (self.output.bytes(), columns.bytes());
        if part.start < whole.start || part.end > whole.end {
            return None;
        }
        let first = (part.start - whole.start) as usize / size_of::<f32>();
        let range = first..first + columns.width as usize;
        let covered = self.owners().iter().map(|factor| {
            let [start, end] = factor.cuts(&range);
            end - start
        });
        (covered.sum::<usize>() == range.len()).then_some(range)
    }

    /// Whether every one of these columns is a row of this product, stored as it comes; if so, each row goes through task
    /// number `task` before it is stored.
    pub fn finish(&mut self, columns: Rows, task: usize) -> bool {
        let Some(range) = self.columns(columns) else {
            return false;
        };
        let cuts = |factor: &RingFactor| factor.cuts(&range);
        let apart = |factor: &RingFactor| {
            let step = factor.aligned_rows();
            let free = factor.task.is_none() || cuts(factor)[0] == cuts(factor)[1];
            free && cuts(factor)
                .iter()
                .all(|row| row.is_multiple_of(step) || *row == factor.rows)
        };
        if self.kind != Kind::Store || !self.factors.iter().all(apart) {
            return false;
        }
        let split = |factor: &RingFactor| {
            let [start, end] = cuts(factor);
            let middle = RingFactor {
                task: Some(task),
                ..factor.rows(start..end)
            };
            let parts = match start < end {
                true => vec![factor.rows(0..start), middle, factor.rows(end..factor.rows)],
                false => vec![factor.clone()],
            };
            parts.into_iter().filter(|part| part.rows > 0)
        };
        self.factors = self.factors.iter().flat_map(split).collect();
        true
    }
}

/// A matrix, or some of its rows, as the ring reads it.
#[derive(Clone)]
pub(super) struct RingFactor {
    pub codes: Address,
    pub scales: Address,
    /// Null for none.
    pub bias: Address,
    /// Multiplies the product.
    pub multiplier: f32,
    /// Bytes from row to row.
    pub code_row: usize,
    pub scale_row: usize,
    pub rows: usize,
    cols: usize,
    /// First column of the product.
    pub column: usize,
    pub format: usize,
    /// Whether tensor cores multiply it.
    pub on_tensor_cores: bool,
    /// The task that its rows go through before they are stored.
    pub task: Option<usize>,
}

impl RingFactor {
    /// A matrix that lies nowhere.
    #[cfg(test)]
    pub(super) fn of_shape(rows: usize, cols: usize) -> Self {
        RingFactor {
            codes: 0,
            scales: 0,
            bias: 0,
            multiplier: 1.0,
            code_row: 4 * cols,
            scale_row: 0,
            rows,
            cols,
            column: 0,
            format: 0,
            on_tensor_cores: false,
            task: None,
        }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.code_row + self.scale_row
    }

    /// Its first row in these columns of the product, and the first behind them.
    fn cuts(&self, columns: &Range<usize>) -> [usize; 2] {
        [columns.start, columns.end].map(|at| at.saturating_sub(self.column).min(self.rows))
    }

    /// Some of its rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let at = |first: Address, row: usize| first + (rows.start * row) as u64;
        RingFactor {
            codes: at(self.codes, self.code_row),
            scales: at(self.scales, self.scale_row),
            bias: match self.bias {
                0 => 0,
                bias => at(bias, size_of::<f32>()),
            },
            rows: rows.len(),
            column: self.column + rows.start,
            ..*self
        }
    }

    /// Units of a row: 16 bytes of floats, 32 numbers of all else.
    pub fn units(&self) -> usize {
        match FORMATS[self.format].block_len {
            1 => self.code_row / 16,
            _ => self.cols / 32,
        }
    }

    /// Fewest rows whose scales are a multiple of 16 bytes.
    pub fn aligned_rows(&self) -> usize {
        (1..=16)
            .find(|rows| (rows * self.scale_row).is_multiple_of(16))
            .unwrap_or(16)
    }
}

impl Launches<'_> {
    /// Appends a product of one token in a persistent program; whether its weights can come through the ring.
    pub(super) fn push_to_ring(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        output: Rows,
        kind: Kind,
    ) -> Result<bool> {
        if !self.persistent() {
            return Ok(false);
        }
        let formats = formats_of(factors);
        let factors = (factors.iter())
            .map(|factor| self.ring_factor(factor))
            .collect::<Result<Option<Vec<_>>>>()?;
        let Some(factors) = factors else {
            return Ok(false);
        };
        let mut product = Product {
            kind,
            input: gather.columns(factors[0].cols),
            added: gather.columns_of(ADD, factors[0].cols),
            gates: gather.columns_of(GATE, factors[0].cols),
            has_odd_norm: gather.has_odd_norm(factors[0].cols),
            factors,
            output,
        };
        // The input as bf16 numbers would leave the weights too little room.
        if product.input_bytes() > self.shared_memory() / 2 {
            let factors = product.factors.iter_mut();
            factors.for_each(|factor| factor.on_tensor_cores = false);
        }
        let cols = product.cols();
        let (number, function) = kind.numbers();
        let [codes_at, parts_at, bytes] = product.input_ends();
        let norm = gather.late_norm(cols);
        let parts = gather.equal_parts(cols);
        let kinds = [
            (true, gather.kinds(cols)),
            (gather.in_quads(cols), QUADS),
            (norm.is_some(), LATE_NORM),
            (gather.has_few_steps(), NEAR),
            (gather.gates_are_silu(), SILU_GATES),
            (parts.is_some_and(|(_, repeated)| repeated), REPEATED_GAINS),
            (
                true,
                parts.map_or(0, |(size, _)| (size.ilog2() as usize) << PART_BITS),
            ),
        ];
        let kinds = (kinds.iter()).fold(0, |set, &(has, kind)| set | if has { kind } else { 0 });
        let call = Call {
            source: "",
            kernel: format!(
                "product<passes, {number}, {function}, {cols}, {kinds}, {formats}, {codes_at}, {parts_at}, {bytes}>"
            ),
            grid: Grid::Blocks(1),
            threads: self.gather_threads(),
            shared: 0,
            parameters: vec![
                Parameter::value("Rows", output),
                // Of the input's norm, where its factor comes late.
                Parameter::value("float", norm.unwrap_or(0.0)),
                Parameter::value("Gather", gather),
            ],
        };
        self.push_product(call, product);
        Ok(true)
    }

    /// A matrix as the ring reads it; none if its rows are not aligned.
    fn ring_factor(&self, factor: &Factor) -> Result<Option<RingFactor>> {
        let matrix = factor.matrix;
        let format = matrix.format();
        let blocks = matrix.cols() / format.block_len;
        let scales = format.device_apart_bytes();
        let factor = RingFactor {
            codes: self.matrix_address(matrix)?,
            scales: 0,
            bias: self.optional_address(factor.bias)?,
            multiplier: factor.multiplier,
            code_row: blocks * (format.block_bytes - scales),
            scale_row: blocks * scales,
            rows: matrix.rows(),
            cols: matrix.cols(),
            column: factor.column,
            format: format_of(matrix),
            on_tensor_cores: format.name == "BF16"
                && self.tensor_cores() != TensorCores::None
                && matrix.cols().is_multiple_of(32),
            task: None,
        };
        let scales = factor.codes + (factor.rows * factor.code_row) as u64;
        // An entry begins with every eighth row.
        let aligned =
            factor.code_row.is_multiple_of(16) && (8 * factor.scale_row).is_multiple_of(16);
        Ok(aligned.then_some(RingFactor { scales, ..factor }))
    }
}
