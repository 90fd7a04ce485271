//! The op on a CPU.

use super::Renew;
use crate::cpu::{Frame, simd};
use crate::operands::RESIDUAL;
use crate::ops::CpuOp;

impl CpuOp for Renew {
    fn run(&self, frame: &mut Frame) {
        let width = self.residual().width;
        let rows = frame.buffers.get_mut(RESIDUAL).chunks_exact_mut(width);
        simd::vectorize(
            #[inline(always)]
            || {
                rows.take(frame.tokens.len())
                    .for_each(|row| self.norm.apply_in_place(row));
            },
        );
    }
}
