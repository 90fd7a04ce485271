//! The op on a CPU.

use std::ops::Range;

use waterline_quant::{Activations, Output};

use super::Logits;
use crate::cpu::{Buffers, Pool, Shared, simd};
use crate::functions::Activation;
use crate::operands::RESIDUAL;
use crate::ops::project::{load, piece};

impl Logits {
    /// Writes the logits `[rows, vocab]` after these tokens of the chunk, in one pass over the output matrix.
    pub fn run(
        &self,
        pool: &Pool,
        buffers: &Buffers,
        inputs: &mut Activations,
        rows: Range<usize>,
        logits: &mut [f32],
    ) {
        let hidden = self.matrix.cols();
        let count = rows.len();
        let residual = &buffers.get(RESIDUAL)[rows.start * hidden..rows.end * hidden];
        let rounding = self.matrix.format().rounding();
        load(
            pool,
            inputs,
            [count, hidden],
            rounding,
            #[inline(always)]
            |t, row| self.norm.apply(&residual[t * hidden..][..hidden], row),
        );
        let vocab = self.matrix.rows();
        let out = Output::new(logits, vocab);
        let pieces = pool.threads() * 4;
        pool.each(pieces, |worker, index| {
            // SAFETY: a row is as wide as the matrix has rows, and a task has its own piece of them.
            unsafe {
                self.matrix
                    .mul_rows(piece(vocab, index, pieces), worker, inputs, &out, 0)
            };
        });
        if let Some(cap) = self.softcap {
            let logits = Shared::new(&mut logits[..count * vocab]);
            let length = (count * vocab).div_ceil(pieces);
            pool.each(pieces, |_, index| {
                let first = (index * length).min(count * vocab);
                // SAFETY: the parts are disjoint.
                let part = unsafe { logits.part(first..(first + length).min(count * vocab)) };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        simd::scale(1.0 / cap, part);
                        Activation::Tanh.apply(part);
                        simd::scale(cap, part);
                    },
                );
            });
        }
    }
}
