//! The op on a CPU.

use waterline_quant::Output;

use super::{Linear, Parts, Pass, Project};
use crate::cpu::{Frame, Shared, simd};
use crate::ops::CpuOp;
use crate::ops::frame::piece;
use crate::ops::route::Chosen;

impl Linear {
    /// Applies the multiplier and the bias to the products of one token in a row of the op's output.
    #[inline(always)]
    pub(in crate::ops) fn finish(&self, row: &mut [f32]) {
        let products = &mut row[self.column..][..self.matrix.rows()];
        if self.multiplier != 1.0 {
            simd::scale(self.multiplier, products);
        }
        if let Some(bias) = &self.bias {
            simd::add(bias, products);
        }
    }
}

impl CpuOp for Project {
    fn run(&self, frame: &mut Frame) {
        for pass in &self.passes {
            frame.load_normed(self.input, self.norm.as_ref(), pass.rounding);
            let mut output = frame.buffers.take(self.output.buffer);
            self.multiply(pass, frame, &mut output);
            frame.buffers.put(self.output.buffer, output);
        }
        let plain = |linear: &Linear| linear.bias.is_none() && linear.multiplier == 1.0;
        if self.linears.iter().all(plain) {
            return;
        }
        let mut output = frame.buffers.take(self.output.buffer);
        {
            let width = self.output.stride;
            let used = frame.tokens.len() * width;
            let output = Shared::new(&mut output[..used]);
            frame.each_token(
                #[inline(always)]
                |t| {
                    // SAFETY: each task has a different token, a complete row.
                    let row = unsafe { output.part(t * width..(t + 1) * width) };
                    for linear in &self.linears {
                        linear.finish(row);
                    }
                },
            );
        }
        frame.buffers.put(self.output.buffer, output);
    }
}

impl Project {
    /// Multiplies the matrices of a pass whose inputs are loaded.
    fn multiply(&self, pass: &Pass, frame: &Frame, output: &mut [f32]) {
        let (tokens, width) = (frame.tokens.len(), self.output.stride);
        let rows = Output::new(&mut output[..tokens * width], width);
        let pieces = frame.pool.threads() * 2;
        let partitions = self.parts.as_ref().map_or(1, |parts| parts.partitions);
        let is_chosen = |partition: usize| {
            self.parts.as_ref().is_none_or(|Parts { route, .. }| {
                let chosen = Chosen::new(route, frame.buffers.get(route.buffer));
                (0..tokens).any(|t| chosen.rank(t, partition).is_some())
            })
        };
        let tasks = pass.linears.len() * partitions * pieces;
        frame.pool.each(tasks, |worker, task| {
            let (part, index) = (task / pieces, task % pieces);
            let linear = &self.linears[pass.linears[part / partitions]];
            let partition = part % partitions;
            if !is_chosen(partition) {
                return;
            }
            let height = linear.matrix.rows() / partitions;
            let range = piece(height, index, pieces);
            let range = partition * height + range.start..partition * height + range.end;
            // SAFETY: each matrix writes its own columns (rules: bounds, disjoint writes, widths), and a task its own piece of them.
            unsafe {
                linear
                    .matrix
                    .mul_rows(range, worker, frame.inputs, &rows, linear.column)
            };
        });
    }
}
