//! Inputs of a product, prepared once for every matrix that they meet.

use crate::aligned::Aligned;
use crate::cpu::Simd;
use crate::error::Result;
use crate::simd::{self, Quantize};

/// Numbers that share one 8-bit scale.
pub(crate) const BLOCK: usize = 32;
/// Numbers whose codes are interleaved.
pub(crate) const GROUP: usize = 128;
/// Rows are padded with zeros to this many numbers: the longest block of any format.
const PAD: usize = 256;

/// T rows of f32 inputs, and, when asked for, the same rows rounded to 8 bits.
///
/// The 8-bit form has one f32 scale per 32 numbers: `x = scale * code`, `scale = max |x| / 127`, codes rounded to nearest
/// even. A block that holds a NaN or an infinity has that scale, so every product with it is NaN.
///
/// Codes are stored in groups of four blocks: the first 16 codes of each block, then the last 16 of each. Formats that keep
/// two codes in a byte then unpack into registers whose 128-bit lanes belong to one block each.
pub struct Activations {
    rows: usize,
    cols: usize,
    stride: usize,
    quantized: bool,
    max_rows: usize,
    max_cols: usize,
    quantize: Quantize,
    values: Aligned,    // f32 [rows, stride]
    codes: Aligned,     // i8 [rows, stride]
    scales: Aligned,    // f32 [rows, stride / 32]
    sums: Aligned,      // f32 [rows, stride / 32]: scale * sum of the codes
    half_sums: Aligned, // f32 [rows, stride / 16]: the same of each half
}

/// One row of [`Activations`]. All but `values` is meaningful if the activations are quantized.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) values: &'a [f32],    // [stride]
    pub(crate) codes: &'a [i8],      // [stride]
    pub(crate) scales: &'a [f32],    // [stride / 32]
    pub(crate) sums: &'a [f32],      // [stride / 32]
    pub(crate) half_sums: &'a [f32], // [stride / 16]
}

/// One row of 8-bit inputs that is made.
pub(crate) struct RowMut<'a> {
    pub(crate) codes: &'a mut [i8],      // [stride]
    pub(crate) scales: &'a mut [f32],    // [stride / 32]
    pub(crate) sums: &'a mut [f32],      // [stride / 32]
    pub(crate) half_sums: &'a mut [f32], // [stride / 16]
}

impl RowMut<'_> {
    /// Stores the scale of a block and the sums of its codes' halves.
    #[inline]
    pub(crate) fn set(&mut self, block: usize, scale: f32, [first, second]: [i32; 2]) {
        self.scales[block] = scale;
        self.sums[block] = scale * (first + second) as f32;
        self.half_sums[2 * block] = scale * first as f32;
        self.half_sums[2 * block + 1] = scale * second as f32;
    }
}

impl Activations {
    /// Room for `max_rows` rows of `max_cols` numbers. Everything is allocated here.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the system refuses it.
    pub fn new(max_rows: usize, max_cols: usize) -> Result<Activations> {
        let len = max_rows * max_cols.next_multiple_of(PAD);
        Ok(Activations {
            rows: 0,
            cols: 0,
            stride: 0,
            quantized: false,
            max_rows,
            max_cols,
            quantize: simd::quantize(Simd::detect()),
            values: Aligned::zeroed(len * size_of::<f32>())?,
            codes: Aligned::zeroed(len)?,
            scales: Aligned::zeroed(len / BLOCK * size_of::<f32>())?,
            sums: Aligned::zeroed(len / BLOCK * size_of::<f32>())?,
            half_sums: Aligned::zeroed(2 * len / BLOCK * size_of::<f32>())?,
        })
    }

    /// Bytes that [`Activations::new`] allocates for the same arguments.
    pub fn bytes(max_rows: usize, max_cols: usize) -> usize {
        let len = max_rows * max_cols.next_multiple_of(PAD);
        len * (size_of::<f32>() + 1) + 4 * (len / BLOCK * size_of::<f32>())
    }

    /// Replaces the contents by `x`, `rows` rows of `cols` numbers; `quantize` makes the 8-bit form as well, which matrices
    /// of a format with [`is_integer_dot`](crate::Format::is_integer_dot) need. Does not allocate.
    ///
    /// # Panics
    /// If `x` is not `rows * cols` long or exceeds the room given at creation.
    pub fn load(&mut self, x: &[f32], rows: usize, cols: usize, quantize: bool) {
        assert_eq!(x.len(), rows * cols, "activations: {rows} rows of {cols}");
        assert!(
            rows <= self.max_rows && cols <= self.max_cols,
            "activations: {rows} rows of {cols}, room for {} rows of {}",
            self.max_rows,
            self.max_cols
        );
        (self.rows, self.cols, self.quantized) = (rows, cols, quantize);
        self.stride = cols.next_multiple_of(PAD);
        let blocks = self.stride / BLOCK;
        let values = self.values.as_mut_slice::<f32>();
        let codes = self.codes.as_mut_slice::<i8>();
        let scales = self.scales.as_mut_slice::<f32>();
        let sums = self.sums.as_mut_slice::<f32>();
        let half_sums = self.half_sums.as_mut_slice::<f32>();
        for t in 0..rows {
            let row = &mut values[t * self.stride..][..self.stride];
            row[..cols].copy_from_slice(&x[t * cols..][..cols]);
            row[cols..].fill(0.0);
            if quantize {
                let rounded = RowMut {
                    codes: &mut codes[t * self.stride..][..self.stride],
                    scales: &mut scales[t * blocks..][..blocks],
                    sums: &mut sums[t * blocks..][..blocks],
                    half_sums: &mut half_sums[2 * t * blocks..][..2 * blocks],
                };
                // SAFETY: the function was chosen for a level that this CPU has; the stride is a multiple of 256.
                unsafe { (self.quantize)(row, rounded) };
            }
        }
    }

    /// Rows that were loaded.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in each row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether the 8-bit form was made.
    pub fn is_quantized(&self) -> bool {
        self.quantized
    }

    /// Row `t` as it was loaded.
    pub fn row(&self, t: usize) -> &[f32] {
        &self.padded_row(t).values[..self.cols]
    }

    #[inline]
    pub(crate) fn padded_row(&self, t: usize) -> Row<'_> {
        debug_assert!(t < self.rows);
        let blocks = self.stride / BLOCK;
        Row {
            values: &self.values.as_slice()[t * self.stride..][..self.stride],
            codes: &self.codes.as_slice()[t * self.stride..][..self.stride],
            scales: &self.scales.as_slice()[t * blocks..][..blocks],
            sums: &self.sums.as_slice()[t * blocks..][..blocks],
            half_sums: &self.half_sums.as_slice()[2 * t * blocks..][..2 * blocks],
        }
    }

    #[doc(hidden)]
    pub fn force_simd(&mut self, simd: Simd) {
        assert!(simd.is_available(), "this CPU has no {simd:?}");
        self.quantize = simd::quantize(simd);
    }

    #[doc(hidden)]
    pub fn quantized_row(&self, t: usize) -> (&[i8], &[f32], &[f32]) {
        let row = self.padded_row(t);
        (row.codes, row.scales, row.sums)
    }
}

impl Row<'_> {
    /// The codes of block `block` in their natural order.
    pub(crate) fn block(&self, block: usize) -> [i8; BLOCK] {
        let first = block / 4 * GROUP + block % 4 * 16;
        let mut codes = [0; BLOCK];
        codes[..16].copy_from_slice(&self.codes[first..][..16]);
        codes[16..].copy_from_slice(&self.codes[first + 64..][..16]);
        codes
    }
}
