//! The op on a CPU, and helpers for other products: pieces of rows, normed and rounded inputs.

use waterline_quant::{Activations, Output, Rounding};

use super::{Linear, Parts, Pass, Project};
use crate::cpu::{Buffers, Frame, Pool, Shared, simd};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::CpuOp;
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

/// Rows of piece `index` of `pieces`. Pieces begin at multiples of the rows that a kernel computes together.
pub(in crate::ops) fn piece(rows: usize, index: usize, pieces: usize) -> std::ops::Range<usize> {
    const TILE: usize = 16;
    let tiles = rows.div_ceil(TILE);
    let border = |i: usize| (tiles * i / pieces * TILE).min(rows);
    border(index)..border(index + 1)
}

/// Prepares the inputs of a product, `size = [tokens, columns]`: calls `write(t, columns of token t)` for every token, on all threads.
pub(in crate::ops) fn load(
    pool: &Pool,
    inputs: &mut Activations,
    size: [usize; 2],
    rounding: Option<Rounding>,
    write: impl Fn(usize, &mut [f32]) + Sync,
) {
    let [tokens, columns] = size;
    let loading = inputs.begin(tokens, columns, rounding);
    pool.each(loading.parts(), |_, part| {
        let write = |t: usize, row: &mut [f32]| {
            simd::vectorize(
                #[inline(always)]
                || write(t, row),
            )
        };
        // SAFETY: each task has its own part.
        unsafe { loading.fill(part, write) };
    });
}

impl Frame<'_> {
    /// Prepares the inputs of a product of `width` columns: calls `write(buffers, t, columns of token t)` for every token. A
    /// closure marked `#[inline(always)]` is compiled for this CPU's vector unit.
    pub(in crate::ops) fn load(
        &mut self,
        width: usize,
        rounding: Option<Rounding>,
        write: impl Fn(&Buffers, usize, &mut [f32]) + Sync,
    ) {
        let (size, buffers) = ([self.tokens.len(), width], &*self.buffers);
        load(
            self.pool,
            self.inputs,
            size,
            rounding,
            #[inline(always)]
            |t, row| write(buffers, t, row),
        );
    }

    /// Prepares columns of a buffer, after an optional norm, as the inputs of a product.
    pub(in crate::ops) fn load_normed(
        &mut self,
        input: View,
        norm: Option<&Norm>,
        rounding: Option<Rounding>,
    ) {
        self.load(
            input.width,
            rounding,
            #[inline(always)]
            |buffers, t, row| {
                row.copy_from_slice(input.of_token(buffers, t));
                if let Some(norm) = norm {
                    norm.apply_in_place(row);
                }
            },
        );
    }

    /// Runs `task(t)` for every token, on all threads. A closure marked `#[inline(always)]` is compiled for this CPU's vector unit.
    pub(in crate::ops) fn each_token(&self, task: impl Fn(usize) + Sync) {
        self.pool.each(self.tokens.len(), |_, t| {
            simd::vectorize(
                #[inline(always)]
                || task(t),
            )
        });
    }
}

impl View {
    /// The view's columns of token `t`.
    #[inline(always)]
    pub(in crate::ops) fn of_token<'a>(&self, buffers: &'a Buffers, t: usize) -> &'a [f32] {
        &buffers.get(self.buffer)[t * self.stride + self.start..][..self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::piece;

    #[test]
    fn pieces_tile_every_row_count() {
        for rows in [1, 15, 16, 17, 96, 1000] {
            for pieces in 1..9 {
                let mut next = 0;
                for i in 0..pieces {
                    let range = piece(rows, i, pieces);
                    assert_eq!(range.start, next);
                    next = range.end;
                }
                assert_eq!(next, rows);
            }
        }
    }
}
