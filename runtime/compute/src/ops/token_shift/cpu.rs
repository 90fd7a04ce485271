//! The op on a CPU.

use super::TokenShift;
use crate::cpu::{Frame, simd};
use crate::operands::RESIDUAL;
use crate::ops::CpuOp;

impl CpuOp for TokenShift {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.mixes[0].len();
        let mut out = frame.buffers.take(self.out.buffer);
        let residual = frame.buffers.get(RESIDUAL).chunks_exact(hidden);
        let before = frame.arena.tensor_mut::<f32>(self.state);
        let mut scratch = frame.scratch[0].lock().expect("scratch");
        let normed = &mut scratch[..hidden];
        simd::vectorize(
            #[inline(always)]
            || {
                let rows = out.chunks_exact_mut(self.out.stride);
                for (x, row) in residual.zip(rows).take(frame.tokens.len()) {
                    match &self.norm {
                        Some(norm) => norm.apply(x, normed),
                        None => normed.copy_from_slice(x),
                    }
                    let row = &mut row[self.out.start..][..self.out.width];
                    for (mix, out) in self.mixes.iter().zip(row.chunks_exact_mut(hidden)) {
                        let inputs = normed.iter().zip(before.iter()).zip(mix.iter());
                        for (out, ((h, before), mix)) in out.iter_mut().zip(inputs) {
                            *out = h + mix * (before - h);
                        }
                    }
                    before.copy_from_slice(normed);
                }
            },
        );
        drop(scratch);
        frame.buffers.put(self.out.buffer, out);
    }

    fn reads_chunks_as_steps(&self) -> bool {
        true
    }

    fn scratch(&self, _chunk: usize) -> usize {
        self.mixes[0].len()
    }
}
