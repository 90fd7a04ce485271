//! A stored matrix and its product with prepared inputs.

use std::marker::PhantomData;
use std::ops::Range;

use crate::activations::Activations;
use crate::cpu::Simd;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::kernel::{Kernel, Product};
use crate::observe::ObservedProduct;
use crate::storage::Bytes;

/// A read-only matrix `[rows, cols]` in any number format. Cloning shares the data.
#[derive(Clone)]
pub struct Matrix {
    format: &'static Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    data: Bytes, // [rows, row_bytes]
    kernel: Kernel,
    simd: Simd,
}

impl Matrix {
    /// Creates a matrix over `data`, which must hold exactly `rows` rows of `cols` values.
    pub fn new(format: &'static Format, rows: usize, cols: usize, data: Bytes) -> Result<Matrix> {
        Matrix::with_simd(format, rows, cols, data, Simd::detect())
    }

    #[doc(hidden)]
    pub fn with_simd(
        format: &'static Format,
        rows: usize,
        cols: usize,
        data: Bytes,
        simd: Simd,
    ) -> Result<Matrix> {
        if !simd.is_available() {
            return Err(Error::NoSimd(simd));
        }
        let expected = format.tensor_bytes(&[rows, cols])?;
        if data.len() != expected {
            let (format, found) = (format.name, data.len());
            return Err(Error::DataLength {
                format,
                shape: vec![rows, cols],
                found,
                expected,
            });
        }
        let row_bytes = format.row_bytes(cols)?;
        Ok(Matrix {
            format,
            rows,
            cols,
            row_bytes,
            data,
            kernel: (format.kernel)(simd),
            simd,
        })
    }

    /// The number format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Number of rows: the length of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the length of an input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes, row after row.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// Returns a matrix of these rows, which shares the data.
    ///
    /// # Panics
    /// If these rows do not exist.
    pub fn rows_in(&self, rows: Range<usize>) -> Matrix {
        assert!(rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        Matrix {
            rows: rows.len(),
            data: self.data.slice(bytes),
            ..self.clone()
        }
    }

    /// Writes the values of row `row` to `out`, which is `cols` long.
    ///
    /// # Panics
    /// If the row does not exist or `out` has another length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.format
            .decode(&self.data[row * self.row_bytes..][..self.row_bytes], out);
    }

    /// Panics if these rows do not exist or the inputs do not fit.
    fn check(&self, rows: &Range<usize>, x: &Activations) {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "rows {rows:?} of {}",
            self.rows
        );
        assert_eq!(
            self.cols,
            x.cols(),
            "columns of the matrix and of its inputs"
        );
        assert!(
            x.is_quantized() || !self.format.is_integer_dot(),
            "{} needs quantized activations",
            self.format
        );
    }

    /// Passes a product to the observer of its inputs, if there is an observer.
    fn show(&self, rows: &Range<usize>, inputs: &Activations, picked: Option<&[u32]>) {
        if let Some(observer) = &inputs.observer {
            let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
            observer(&ObservedProduct {
                rows: &self.data[bytes],
                inputs,
                picked,
            });
        }
    }

    /// For every token t of `x` and every row r in `rows`: `out[t][out_column + r] = dot(row r, x[t])`. `worker` selects the scratch memory
    /// in `x`; concurrent calls with equal numbers wait for each other.
    ///
    /// The value for a row and a token does not depend, bit for bit, on the other tokens in `x` nor on how rows are split over calls. But
    /// products with at least eight tokens, and again with at least 32, may be summed in another order than products with fewer tokens,
    /// unless [`Activations::sum_as_alone`] forbids it.
    ///
    /// # Safety
    /// During the call, no other thread may access columns `out_column + rows` of the first `x.rows()` rows of `out`.
    ///
    /// # Panics
    /// If `rows`, the length of the inputs, or the columns or rows of `out` do not fit, or if the format
    /// [`is_integer_dot`](Format::is_integer_dot) and `x` is not quantized.
    pub unsafe fn mul_rows(
        &self,
        rows: Range<usize>,
        worker: usize,
        x: &Activations,
        out: &Output,
        out_column: usize,
    ) {
        self.check(&rows, x);
        assert!(
            x.rows() <= out.height(),
            "{} tokens, {} rows of output",
            x.rows(),
            out.height()
        );
        assert!(
            out_column + rows.end <= out.width,
            "columns {out_column} + {rows:?} of {}",
            out.width
        );
        if rows.is_empty() || x.rows() == 0 {
            return;
        }
        self.show(&rows, x, None);
        let product = Product {
            format: self.format,
            simd: self.simd,
            worker,
            weights: &self.data,
            row_bytes: self.row_bytes,
            cols: self.cols,
            x,
            picked: None,
            // SAFETY: out_column is within a row of the output, which is not empty.
            out: unsafe { out.data.add(out_column) },
            out_stride: out.width,
        };
        // SAFETY: the kernel was made for a level that this CPU has, the ranges were checked above, and the caller guarantees exclusive
        // access to the columns.
        unsafe { (self.kernel)(&product, rows) };
    }

    /// Multiplies some rows with some tokens. For every index i of `picked` and every row r in `rows`: `out[i][r - rows.start] = dot(row r,
    /// x[picked[i]])`, bit for bit like [`Matrix::mul_rows`] with fewer than eight tokens.
    ///
    /// # Panics
    /// If `rows`, `picked`, the length of the inputs, or the columns or rows of `out` do not fit, or if the format
    /// [`is_integer_dot`](Format::is_integer_dot) and `x` is not quantized.
    pub fn mul_picked(
        &self,
        rows: Range<usize>,
        x: &Activations,
        picked: &[u32],
        out: &mut [f32],
        width: usize,
    ) {
        self.check(&rows, x);
        assert!(
            picked.iter().all(|&t| (t as usize) < x.rows())
                && rows.len() <= width
                && picked.len() * width <= out.len(),
            "{} tokens of {}, {} rows, {} numbers of output in {width} columns",
            picked.len(),
            x.rows(),
            rows.len(),
            out.len()
        );
        if rows.is_empty() || picked.is_empty() {
            return;
        }
        self.show(&rows, x, Some(picked));
        let product = Product {
            format: self.format,
            simd: self.simd,
            worker: 0,
            weights: &self.data[rows.start * self.row_bytes..],
            row_bytes: self.row_bytes,
            cols: self.cols,
            x,
            picked: Some(picked),
            out: out.as_mut_ptr(),
            out_stride: width,
        };
        // SAFETY: the kernel was made for a level that this CPU has, the ranges were checked above, and the output is borrowed.
        unsafe { (self.kernel)(&product, 0..rows.len()) };
    }
}

/// A `[height, width]` f32 buffer into which multiple threads write disjoint columns.
pub struct Output<'a> {
    data: *mut f32,
    len: usize,
    width: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the buffer is written only by `Matrix::mul_rows`, whose callers give each thread its own columns.
unsafe impl Send for Output<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Creates a view of `data` as rows of `width` values.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn new(data: &'a mut [f32], width: usize) -> Output<'a> {
        assert!(
            width > 0 && data.len().is_multiple_of(width),
            "{} numbers in rows of {width}",
            data.len()
        );
        Output {
            data: data.as_mut_ptr(),
            len: data.len(),
            width,
            borrow: PhantomData,
        }
    }

    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.len / self.width
    }
}
