//! A streaming GEMV as an op of the decode kernel: its matrices, its input and output columns.

use std::ops::Range;

use waterline_quant::FORMATS;

use super::{Accesses, PrepareTasks, Rows};
use crate::cuda::driver::Address;
use crate::functions::Activation;

/// Bytes of an input value as three bf16 numbers.
const SPLIT_BYTES: usize = 6;

/// Destination of the products.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Epilogue {
    /// Stores the products.
    Store,
    /// Adds the products to the output.
    Add,
    /// Stores function(product of the first matrix) * product of the second matrix.
    Gated(Activation),
}

/// A GEMV with weights from the pipeline.
pub struct Gemv {
    pub(crate) epilogue: Epilogue,
    /// Matrices with a common input.
    pub(crate) weights: Vec<StreamedMatrix>,
    /// The input columns, if the prologue has at most one addition and one gate.
    pub(crate) input: Option<Rows>,
    /// The columns of that addition and that gate.
    pub(crate) added: Option<Rows>,
    pub(crate) gates: Option<Rows>,
    /// Whether the prologue needs shared memory for a whole row.
    pub(crate) has_odd_norm: bool,
    pub(crate) output: Rows,
    /// The work of row ops, each of which some rows have.
    pub(crate) row_ops: Option<Box<PrepareTasks>>,
}

impl Gemv {
    /// Returns the columns of the matrices.
    pub(crate) fn cols(&self) -> usize {
        self.weights[0].cols
    }

    /// Returns the bytes of shared memory for the input.
    pub(crate) fn input_bytes(&self) -> usize {
        let whole = if self.has_odd_norm {
            self.cols() * size_of::<f32>()
        } else {
            0
        };
        self.input_ends()[2].max(whole)
    }

    /// Returns where the input ends in f32, in 8 bits with scales, and split into bf16 numbers. Each form has bytes only where a format
    /// multiplies with it.
    pub(crate) fn input_ends(&self) -> [usize; 3] {
        let cols = self.cols();
        let integer = |f: &StreamedMatrix| FORMATS[f.format].is_integer_dot();
        let any =
            |wants: &dyn Fn(&StreamedMatrix) -> bool| usize::from(self.weights.iter().any(wants));
        let plain = any(&|f| !integer(f) && !f.on_tensor_cores) * cols * size_of::<f32>();
        let codes = any(&integer) * (cols + cols / 32 * 4);
        let split = any(&|f| f.on_tensor_cores) * SPLIT_BYTES * (cols.next_multiple_of(64) + 32);
        let first = plain.next_multiple_of(128);
        let second = first + codes.next_multiple_of(128);
        [first, second, second + split]
    }

    /// Whether any row has a row op.
    pub fn has_row_ops(&self) -> bool {
        self.weights.iter().any(|weight| weight.row_op.is_some())
    }

    /// Returns the memory that the GEMV accesses, if its input columns are known.
    pub(crate) fn accesses(&self) -> Option<Accesses> {
        let inputs = [Some(self.input?), self.added, self.gates];
        let rows = self.owners().iter().map(|weight| self.output_of(weight));
        Some(Accesses {
            reads: inputs.into_iter().flatten().map(Rows::bytes).collect(),
            writes: rows.map(Rows::bytes).collect(),
        })
    }

    /// Returns the matrices with rows in the output: in a gated GEMV the first half.
    pub(crate) fn owners(&self) -> &[StreamedMatrix] {
        let per_owner = if matches!(self.epilogue, Epilogue::Gated(_)) {
            2
        } else {
            1
        };
        &self.weights[..self.weights.len() / per_owner]
    }

    /// Returns a matrix's columns of the output.
    pub(crate) fn output_of(&self, weight: &StreamedMatrix) -> Rows {
        Rows {
            first: self.output.first + (weight.column * size_of::<f32>()) as u64,
            width: weight.rows as i32,
            ..self.output
        }
    }

    /// Returns the indices of these columns in the output, if every one of them is a row of this GEMV.
    pub(crate) fn columns(&self, columns: Rows) -> Option<Range<usize>> {
        let (whole, part) = (self.output.bytes(), columns.bytes());
        if part.start < whole.start || part.end > whole.end {
            return None;
        }
        let first = (part.start - whole.start) as usize / size_of::<f32>();
        let range = first..first + columns.width as usize;
        let covered = self.owners().iter().map(|weight| {
            let [start, end] = weight.cuts(&range);
            end - start
        });
        (covered.sum::<usize>() == range.len()).then_some(range)
    }

    /// Gives these columns row op number `row_op` if each of them is a stored row of this GEMV without a row op; returns whether it did.
    pub fn finish(&mut self, columns: Rows, row_op: usize) -> bool {
        let Some(range) = self.columns(columns) else {
            return false;
        };
        let cuts = |weight: &StreamedMatrix| weight.cuts(&range);
        let apart = |weight: &StreamedMatrix| {
            let step = weight.aligned_rows();
            let free = weight.row_op.is_none() || cuts(weight)[0] == cuts(weight)[1];
            free && cuts(weight)
                .iter()
                .all(|row| row.is_multiple_of(step) || *row == weight.rows)
        };
        if self.epilogue != Epilogue::Store || !self.weights.iter().all(apart) {
            return false;
        }
        let split = |weight: &StreamedMatrix| {
            let [start, end] = cuts(weight);
            let middle = StreamedMatrix {
                row_op: Some(row_op),
                ..weight.rows(start..end)
            };
            let parts = if start < end {
                vec![weight.rows(0..start), middle, weight.rows(end..weight.rows)]
            } else {
                vec![weight.clone()]
            };
            parts.into_iter().filter(|part| part.rows > 0)
        };
        self.weights = self.weights.iter().flat_map(split).collect();
        true
    }
}

/// A matrix, or some of its rows, as the pipeline reads it.
#[derive(Clone)]
pub(crate) struct StreamedMatrix {
    pub codes: Address,
    pub scales: Address,
    /// 0 for none.
    pub bias: Address,
    /// Factor of the product.
    pub multiplier: f32,
    /// Bytes from one row to the next, of codes and of scales.
    pub code_row: usize,
    pub scale_row: usize,
    pub rows: usize,
    pub cols: usize,
    /// First column of the output.
    pub column: usize,
    pub format: usize,
    /// Whether the matrix is multiplied on tensor cores.
    pub on_tensor_cores: bool,
    /// The row op of all rows.
    pub row_op: Option<usize>,
}

impl StreamedMatrix {
    /// A matrix without memory.
    #[cfg(test)]
    pub(crate) fn for_shape(rows: usize, cols: usize) -> Self {
        StreamedMatrix {
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
            row_op: None,
        }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.code_row + self.scale_row
    }

    /// Returns the first row among these columns of the output, and the first row after them.
    fn cuts(&self, columns: &Range<usize>) -> [usize; 2] {
        [columns.start, columns.end].map(|at| at.saturating_sub(self.column).min(self.rows))
    }

    /// Returns the given rows of the matrix.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let at = |first: Address, row: usize| first + (rows.start * row) as u64;
        StreamedMatrix {
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

    /// Returns the units of a row: 16 bytes of floats, or 32 quantized numbers.
    pub fn units(&self) -> usize {
        match FORMATS[self.format].block_len {
            1 => self.code_row / 16,
            _ => self.cols / 32,
        }
    }

    /// Returns the fewest rows whose scales take a multiple of 16 bytes.
    pub fn aligned_rows(&self) -> usize {
        (1..=16)
            .find(|rows| (rows * self.scale_row).is_multiple_of(16))
            .unwrap_or(16)
    }
}
