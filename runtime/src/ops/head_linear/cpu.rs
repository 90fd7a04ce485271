//! The op on a CPU.

use super::HeadLinear;
use crate::cpu::simd::{self, gemm};
use crate::cpu::{Frame, Shared};
use crate::ops::CpuOp;

/// Tokens that are multiplied at once.
const BLOCK: usize = 16;

impl CpuOp for HeadLinear {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        let (rows, cols, width) = (self.rows, self.cols, self.x.width / self.heads);
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let inputs = frame.buffers.get(self.x.buffer);
            frame.pool.each(self.heads, |worker, head| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let weight = &self.weight[head * rows * cols..][..rows * cols];
                let place = self.out.start + head * (cols + self.kept);
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for first in (0..tokens).step_by(BLOCK) {
                            let n = BLOCK.min(tokens - first);
                            let x = &inputs[first * self.x.stride + self.x.start + head * width..];
                            let product = &mut scratch[..n * cols];
                            product.fill(0.0);
                            gemm(
                                [n, cols, rows],
                                x,
                                [self.x.stride, 1],
                                weight,
                                cols,
                                product,
                                cols,
                            );
                            for (t, product) in product.chunks_exact(cols).enumerate() {
                                let start = (first + t) * self.out.stride + place;
                                // SAFETY: each task has its own head's columns of the output (rules: widths, disjoint writes).
                                let row = unsafe { out.part(start..start + cols + self.kept) };
                                let (products, kept) = row.split_at_mut(cols);
                                products.copy_from_slice(product);
                                kept.copy_from_slice(&x[t * self.x.stride + rows..][..self.kept]);
                            }
                        }
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        BLOCK * self.cols
    }
}
