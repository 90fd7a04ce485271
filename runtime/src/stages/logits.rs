//! From the residual stream to logits.

use waterline_quant::{Activations, Matrix, Output};

use super::norm::Norm;
use super::project::piece;
use crate::cpu::{Buffers, Pool, simd};
use crate::program::{INPUTS, RESIDUAL};

/// The final norm and the output matrix.
pub struct Logits {
    /// The final norm.
    pub norm: Norm,
    /// `[vocab, hidden]`; the embedding itself in tied models.
    pub matrix: Matrix,
}

impl Logits {
    /// Writes the logits `[vocab]` after the chunk's token `row`.
    pub(crate) fn run(
        &self,
        pool: &Pool,
        buffers: &mut Buffers,
        inputs: &mut Activations,
        row: usize,
        logits: &mut [f32],
    ) {
        let hidden = self.matrix.cols();
        let mut staged = buffers.take(INPUTS);
        let residual = &buffers.get(RESIDUAL)[row * hidden..][..hidden];
        simd::vectorize(
            #[inline(always)]
            || self.norm.apply(residual, &mut staged[..hidden]),
        );
        inputs.load(
            &staged[..hidden],
            1,
            hidden,
            self.matrix.format().is_integer_dot(),
        );
        buffers.put(INPUTS, staged);
        let vocab = self.matrix.rows();
        let out = Output::new(logits, vocab);
        let pieces = pool.threads() * 4;
        pool.each(pieces, |_, index| {
            // SAFETY: pieces are disjoint columns.
            unsafe {
                self.matrix
                    .mul_rows(piece(vocab, index, pieces), inputs, &out, 0)
            };
        });
    }
}
