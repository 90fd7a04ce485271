//! Helpers of the ops' CPU code: pieces of rows, normed and rounded inputs of products, tasks for each token.

use waterline_quant::{Activations, Rounding};

use crate::cpu::{Buffers, Frame, Pool, simd};
use crate::functions::Norm;
use crate::operands::View;

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
                row.copy_from_slice(input.token(buffers, t));
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
    pub(in crate::ops) fn token<'a>(&self, buffers: &'a Buffers, t: usize) -> &'a [f32] {
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
