//! The op on a CPU.

use super::Normalize;
use crate::cpu::{Frame, Shared};
use crate::operands::View;
use crate::ops::CpuOp;

impl CpuOp for Normalize {
    fn run(&self, frame: &mut Frame) {
        let View {
            buffer,
            start,
            width,
            stride,
        } = self.columns;
        let mut values = frame.buffers.take(buffer);
        let rows = Shared::new(&mut values);
        frame.each_token(
            #[inline(always)]
            |t| {
                let first = t * stride + start;
                // SAFETY: each task has its own token's columns (rules: bounds, widths).
                let row = unsafe { rows.part(first..first + width) };
                self.norm.apply_in_place(row);
            },
        );
        frame.buffers.put(buffer, values);
    }
}
