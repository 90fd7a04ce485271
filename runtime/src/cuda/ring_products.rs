//! Products of one token whose weights come through a persistent program's ring: what `project_ring.cu` is called with.

use bytemuck::{Pod, Zeroable};
use waterline_quant::FORMATS;

use super::driver::Address;
use super::launches::{Call, Grid, Launches, Parameter, Rows};
use super::products::{Factor, Gather, format_of, shared_bytes};
use crate::error::Result;

/// `ProductEnd` in project_ring.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ProductEnd {
    output: Rows,
    kind: i32,
    cols: i32,
}

/// What becomes of a product, by its number in project_ring.cu.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is stored.
    Store,
    /// It is added to what the output holds.
    Add,
    /// `silu` of the first matrix' times the second's is stored.
    Gated,
}

/// A product whose weights come through a persistent program's ring.
pub(crate) struct Product {
    pub(super) kind: Kind,
    /// Matrices of the same input.
    pub(super) factors: Vec<RingFactor>,
}

impl Product {
    /// Columns of the matrices.
    fn cols(&self) -> usize {
        self.factors[0].cols
    }

    /// Shared memory for the input, and the same in 8 bits.
    pub(super) fn input_bytes(&self) -> usize {
        shared_bytes(self.cols())
    }
}

/// A matrix as the ring reads it.
pub(super) struct RingFactor {
    pub codes: Address,
    pub scales: Address,
    /// Null for none.
    pub bias: Address,
    /// Bytes from row to row.
    pub code_row: usize,
    pub scale_row: usize,
    pub rows: usize,
    cols: usize,
    /// First column of the product.
    pub column: usize,
    pub format: usize,
}

impl RingFactor {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.code_row + self.scale_row
    }

    /// Bytes of the codes and of the scales of 32 units, which is a piece (`RingPiece` in project_ring.cu).
    pub fn piece(&self) -> [usize; 2] {
        // Units are 16 bytes of floats, 32 numbers of all else.
        let unit = match FORMATS[self.format].block_len {
            1 => 16 * self.cols / self.code_row,
            _ => 32,
        };
        [self.code_row, self.scale_row].map(|bytes| 32 * unit * bytes / self.cols)
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
        let factors = (factors.iter())
            .map(|factor| self.ring_factor(factor))
            .collect::<Result<Option<Vec<_>>>>()?;
        let Some(factors) = factors else {
            return Ok(false);
        };
        let rounds = factors.iter().any(|f| FORMATS[f.format].is_integer_dot());
        let product = Product { kind, factors };
        let cols = product.cols();
        let end = ProductEnd {
            output,
            kind: kind as i32,
            cols: cols as i32,
        };
        let call = Call {
            source: "",
            kernel: format!("product_input<{cols}, {}, {rounds}>", gather.kinds(cols)),
            grid: Grid::Blocks(1),
            threads: self.gather_threads(),
            shared: 0,
            parameters: vec![
                Parameter::value("ProductEnd", end),
                Parameter::value("Gather", gather),
            ],
        };
        self.push_product(call, product);
        Ok(true)
    }

    /// A matrix as the ring reads it; none if its rows are not aligned.
    fn ring_factor(&self, (matrix, bias, column): &Factor) -> Result<Option<RingFactor>> {
        let format = matrix.format();
        let blocks = matrix.cols() / format.block_len;
        let scales = if format.has_device_scale() { 2 } else { 0 };
        let factor = RingFactor {
            codes: self.matrix_address(matrix)?,
            scales: 0,
            bias: self.optional_address(*bias)?,
            code_row: blocks * (format.block_bytes - scales),
            scale_row: blocks * scales,
            rows: matrix.rows(),
            cols: matrix.cols(),
            column: *column,
            format: format_of(matrix),
        };
        let scales = factor.codes + (factor.rows * factor.code_row) as u64;
        let aligned = factor.code_row.is_multiple_of(16) && factor.scale_row.is_multiple_of(4);
        Ok(aligned.then_some(RingFactor { scales, ..factor }))
    }
}
