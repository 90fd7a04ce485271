//! Computes logits from the residual stream.

use std::ops::Range;

use waterline_quant::{Activations, Matrix, Output};

use super::frame::{load, piece};
use super::{Access, Operand};
use crate::cpu::{Buffers, Pool, Shared, simd};
use crate::cuda::{Call, Grid, Launches, Parameter, Rows, Source, WeightMatrix};
use crate::error::Result;
use crate::functions::{Activation, Norm};
use crate::operands::{RESIDUAL, View};
use crate::state::LOGITS;

/// The final norm and the output matrix.
pub struct Logits {
    /// The final norm.
    pub norm: Norm,
    /// `[vocab, hidden]`; the embedding itself in tied models.
    pub matrix: Matrix,
    /// Bounds the logits: `cap tanh(logits / cap)`.
    pub softcap: Option<f32>,
}

impl Logits {
    /// The op's operands.
    pub fn access(&self) -> Access {
        Access {
            writes: vec![Operand::State(LOGITS)],
            ..Access::default().reads([View::whole(RESIDUAL, self.matrix.cols())])
        }
    }
}

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

impl Logits {
    /// Launches the logits after each token in `residual`.
    pub fn launch(&self, launches: &mut Launches, residual: View, logits: Rows) -> Result<()> {
        let prologue = launches.prologue(residual, Some(&self.norm))?;
        launches.gemm_into(
            prologue,
            &[WeightMatrix::plain(&self.matrix)],
            logits,
            false,
        )?;
        if let Some(cap) = self.softcap {
            const THREADS: usize = 256;
            launches.push(Call {
                source: const { &[Source::new("ops/logits.cu", &[])] },
                kernel: "cap_logits".into(),
                grid: Grid::EachToken(self.matrix.rows().div_ceil(THREADS)),
                threads: THREADS,
                shared: 0,
                parameters: vec![Parameter::value(logits), Parameter::value(cap)],
            });
        }
        Ok(())
    }
}
