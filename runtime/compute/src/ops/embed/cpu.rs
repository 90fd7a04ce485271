//! The op on a CPU.

use super::Embed;
use crate::cpu::{Frame, simd};
use crate::operands::RESIDUAL;
use crate::ops::CpuOp;

impl CpuOp for Embed {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.matrix.cols();
        let residual = frame.buffers.get_mut(RESIDUAL);
        for (row, &token) in residual.chunks_exact_mut(hidden).zip(frame.tokens) {
            self.matrix.decode_row(token as usize, row);
            if self.multiplier != 1.0 {
                simd::scale(self.multiplier, row);
            }
            if let Some(norm) = &self.norm {
                norm.apply_in_place(row);
            }
        }
    }
}
