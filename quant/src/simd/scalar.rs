//! The reference kernel: plain loops.

use std::ops::Range;

use crate::activations::{BLOCK, GROUP, Row, RowMut};
use crate::kernel::Product;
use crate::rounding::Rounding;

/// A format's dot product of one stored row with one row of inputs.
pub(crate) trait Dot {
    fn dot(row: &[u8], x: Row) -> f32;
}

/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel).
pub(crate) unsafe fn multiply<B: Dot>(product: &Product, rows: Range<usize>) {
    for r in rows {
        let weights = &product.weights[r * product.row_bytes..][..product.row_bytes];
        for t in 0..product.tokens() {
            let dot = B::dot(weights, product.input(t));
            // SAFETY: the caller guarantees that (t, r) is valid.
            unsafe { product.out.add(t * product.out_stride + r).write(dot) };
        }
    }
}

/// See [`Activations`](crate::Activations) for the layout.
pub(crate) fn quantize(values: &[f32], mut rounded: RowMut, rounding: Rounding) {
    let blocks = rounding.blocks();
    for (index, x) in values.chunks_exact(blocks * BLOCK).enumerate() {
        let magnitude = x
            .iter()
            .map(|x| x.to_bits() & 0x7fff_ffff)
            .max()
            .unwrap_or(0);
        let scale = rounding.scale(magnitude);
        for (block, x) in x.chunks_exact(BLOCK).enumerate() {
            let block = index * blocks + block;
            let first = block / 4 * GROUP + block % 4 * 16;
            let mut sums = [0; 2];
            for (i, x) in x.iter().enumerate() {
                let code = (x * scale.inverse).round_ties_even() as i8;
                rounded.codes[first + i / 16 * 64 + i % 16] = code;
                sums[i / 16] += i32::from(code);
            }
            rounded.set(block, scale, sums);
        }
    }
}

/// Sum of products of two blocks of codes.
pub(crate) fn dot_codes<const N: usize>(weights: &[i8; N], x: &[i8; N]) -> i32 {
    weights
        .iter()
        .zip(x)
        .map(|(&w, &x)| i32::from(w) * i32::from(x))
        .sum()
}
