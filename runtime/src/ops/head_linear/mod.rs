//! A matrix for each head: `y_h = x_h W_h`, behind which the last columns of a head may pass as they are.

use super::{Access, DeviceOp, Op};
use crate::cpu::simd::{self, gemm};
use crate::cpu::{Frame, Shared};
use crate::cuda::{Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// Products of heads with matrices of their own.
pub struct HeadLinear {
    /// Heads.
    pub heads: usize,
    /// Inputs of equal width for each head, of which the first `rows` are multiplied.
    pub x: View,
    /// `[heads, rows, cols]`; a head's input is a row vector on its left.
    pub weight: Vector,
    /// Columns of a head that are multiplied.
    pub rows: usize,
    /// Columns of a head's product.
    pub cols: usize,
    /// Columns of a head behind those that are multiplied, which stand behind its product.
    pub kept: usize,
    /// Results `[heads, cols + kept]`.
    pub out: View,
}

/// Tokens that are multiplied at once.
const BLOCK: usize = 16;

impl Op for HeadLinear {
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

    fn access(&self) -> Access {
        Access::default().reads([self.x]).writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("x", self.x, self.heads);
        rules.width("out", self.out, self.heads * (self.cols + self.kept));
    }

    fn scratch(&self, _chunk: usize) -> usize {
        BLOCK * self.cols
    }

    fn weight_bytes(&self) -> usize {
        size_of_val(&self.weight[..])
    }
}

/// Columns of a block of threads, and tokens of one where there are many.
const COLUMNS: usize = 32;
const TILE: usize = 32;

impl DeviceOp for HeadLinear {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (rows, cols, kept) = (self.rows, self.cols, self.kept);
        let tile = if launches.tokens == 1 { 1 } else { TILE };
        let width = self.x.width / self.heads;
        launches.push_prefetching(Call {
            source: include_str!("head_linear.cu"),
            kernel: format!("head_linear<{rows}, {cols}, {kept}, {width}, {tile}>"),
            grid: Grid::EachTile(self.heads * cols.div_ceil(COLUMNS), tile),
            threads: 4 * COLUMNS,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.vector(&self.weight)?,
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::rig::{Rig, noise};

    #[test]
    fn heads_are_multiplied_by_their_own_matrices() {
        let (heads, rows, cols, kept, tokens) = (3, 5, 7, 2, 19);
        let width = rows + kept + 1;
        let weight: Vec<f32> = (0..heads * rows * cols).map(noise).collect();
        let op = HeadLinear {
            heads,
            x: View::whole(0, heads * width),
            weight: weight.clone().into(),
            rows,
            cols,
            kept,
            out: View::whole(1, heads * (cols + kept)),
        };
        let x = |t: usize, i: usize| noise(t * 100 + i);
        let fill = |_: usize, t: usize, row: &mut [f32]| {
            for (i, value) in row.iter_mut().enumerate() {
                *value = x(t, i);
            }
        };
        let widths = [heads * width, op.out.width];
        let mut rig = Rig::new(&op, &widths, &[]);
        for chunks in [vec![tokens], vec![1; tokens]] {
            let (found, _) = rig.read(&chunks, fill, op.out);
            for (i, found) in found.iter().enumerate() {
                let (t, column) = (i / op.out.width, i % op.out.width);
                let (head, column) = (column / (cols + kept), column % (cols + kept));
                let expected = match column.checked_sub(cols) {
                    Some(kept) => x(t, head * width + rows + kept),
                    None => (0..rows)
                        .map(|r| x(t, head * width + r) * weight[(head * rows + r) * cols + column])
                        .sum(),
                };
                assert!((found - expected).abs() < 1e-5, "{i}: {found} {expected}");
            }
        }
    }
}
