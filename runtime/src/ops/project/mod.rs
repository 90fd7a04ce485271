//! Matrices with a common input, behind an optional norm: one pass over their weights.

use waterline_quant::{Activations, Matrix, Output, Rounding};

use super::route::Chosen;
use super::{Access, DeviceOp, Op};
use crate::cpu::{Buffers, Frame, Pool, Shared, simd};
use crate::cuda::{Launches, WeightMatrix};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::View;
use crate::weights::Vector;

/// One of the stacked matrices.
pub struct Linear {
    /// First column of its result in the op's output.
    pub column: usize,
    /// Added to the multiplied result.
    pub bias: Option<Vector>,
    /// Multiplies the result.
    pub multiplier: f32,
    /// The weights `[rows, cols]`.
    pub matrix: Matrix,
}

impl Linear {
    /// Multiplies the products of one token in a row of the op's output, and adds the bias.
    #[inline(always)]
    pub(super) fn finish(&self, row: &mut [f32]) {
        let products = &mut row[self.column..][..self.matrix.rows()];
        if self.multiplier != 1.0 {
            simd::scale(self.multiplier, products);
        }
        if let Some(bias) = &self.bias {
            simd::add(bias, products);
        }
    }

    /// The same for a device.
    pub(super) fn weight(&self) -> WeightMatrix<'_> {
        WeightMatrix {
            matrix: &self.matrix,
            bias: self.bias.as_ref(),
            column: self.column,
            multiplier: self.multiplier,
        }
    }
}

/// `output[column..] = multiplier matrix norm(input) + bias` for every matrix.
pub struct Project {
    /// What is multiplied.
    pub input: View,
    /// Applied to the input first.
    pub norm: Option<Norm>,
    /// The matrices.
    pub linears: Vec<Linear>,
    /// Where the results stand, side by side.
    pub output: View,
    /// Where each matrix is made of as many equal parts as there are partitions.
    parts: Option<Parts>,
    /// How the input is rounded: the finest way that a matrix needs.
    rounding: Option<Rounding>,
}

/// Parts of a matrix that are left out where no token of the chunk has chosen their partition: their columns of the
/// output stay as they are. (A GPU leaves them out of a step, and multiplies them all for a chunk, of which some token wants
/// nearly every one.)
struct Parts {
    partitions: usize,
    /// What [`super::Route`] chose.
    route: View,
}

impl Project {
    /// An op over `linears`, whose columns lie in `output`.
    pub fn new(input: View, norm: Option<Norm>, linears: Vec<Linear>, output: View) -> Self {
        let rounding = linears.iter().map(|l| l.matrix.format().rounding()).max();
        Project {
            input,
            norm,
            linears,
            output,
            parts: None,
            rounding: rounding.flatten(),
        }
    }

    /// The same, but only for the partitions that `route` has chosen.
    pub fn of_chosen(self, partitions: usize, route: View) -> Self {
        let parts = Some(Parts { partitions, route });
        Project { parts, ..self }
    }
}

impl Op for Project {
    fn run(&self, frame: &mut Frame) {
        frame.load_normed(self.input, self.norm.as_ref(), self.rounding);
        let mut output = frame.buffers.take(self.output.buffer);
        {
            let width = self.output.stride;
            let used = frame.tokens.len() * width;
            let rows = Output::new(&mut output[..used], width);
            let pieces = frame.pool.threads() * 2;
            let partitions = self.parts.as_ref().map_or(1, |parts| parts.partitions);
            let tokens = frame.tokens.len();
            let is_chosen = |partition: usize| {
                self.parts.as_ref().is_none_or(|Parts { route, .. }| {
                    let chosen = Chosen::new(route, frame.buffers.get(route.buffer));
                    (0..tokens).any(|t| chosen.rank(t, partition).is_some())
                })
            };
            let tasks = self.linears.len() * partitions * pieces;
            frame.pool.each(tasks, |_, task| {
                let (part, index) = (task / pieces, task % pieces);
                let (linear, partition) = (&self.linears[part / partitions], part % partitions);
                if !is_chosen(partition) {
                    return;
                }
                let height = linear.matrix.rows() / partitions;
                let range = piece(height, index, pieces);
                let range = partition * height + range.start..partition * height + range.end;
                // SAFETY: the pieces of all matrices are disjoint columns of the output.
                unsafe {
                    linear
                        .matrix
                        .mul_rows(range, frame.inputs, &rows, linear.column)
                };
            });
            let plain = |linear: &Linear| linear.bias.is_none() && linear.multiplier == 1.0;
            if !self.linears.iter().all(plain) {
                let output = Shared::new(&mut output[..used]);
                frame.each_token(|t| {
                    // SAFETY: each task has its own token.
                    let row = unsafe { output.part(t * width..(t + 1) * width) };
                    self.linears.iter().for_each(|linear| linear.finish(row));
                });
            }
        }
        frame.buffers.put(self.output.buffer, output);
    }

    fn access(&self) -> Access {
        let results = self.linears.iter().map(|linear| View {
            start: self.output.start + linear.column,
            width: linear.matrix.rows(),
            ..self.output
        });
        let access = Access::default().reads([self.input]);
        match &self.parts {
            Some(parts) => access.reads([parts.route]).updates(results),
            None => access.writes(results),
        }
    }

    fn weight_bytes(&self) -> usize {
        let all: usize = self.linears.iter().map(|l| l.matrix.bytes().len()).sum();
        match &self.parts {
            Some(parts) => all / parts.partitions * (parts.route.width / 2),
            None => all,
        }
    }
}

impl DeviceOp for Project {
    fn runs_as_steps(&self) -> bool {
        self.parts.is_none()
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.prologue(self.input, self.norm.as_ref())?;
        let weights: Vec<WeightMatrix> = self.linears.iter().map(Linear::weight).collect();
        let output = View::whole(self.output.buffer, self.output.stride);
        match &self.parts {
            Some(parts) if launches.tokens == 1 => {
                let parts = (parts.partitions, parts.route);
                launches.gemv_chosen(prologue, &weights, parts, output)
            }
            _ => launches.gemm(prologue, &weights, output, false),
        }
    }
}

/// Rows of piece `index` of `pieces`, on borders that kernels like.
pub(super) fn piece(rows: usize, index: usize, pieces: usize) -> std::ops::Range<usize> {
    const TILE: usize = 16;
    let tiles = rows.div_ceil(TILE);
    let border = |i: usize| (tiles * i / pieces * TILE).min(rows);
    border(index)..border(index + 1)
}

/// Makes the inputs of a product, `size = [tokens, columns]`: `write(t, columns of token t)` for every token, on all threads.
pub(super) fn load(
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
    /// Makes the inputs of a product of `width` columns: `write(buffers, t, columns of token t)` for every token.
    pub(super) fn load(
        &mut self,
        width: usize,
        rounding: Option<Rounding>,
        write: impl Fn(&Buffers, usize, &mut [f32]) + Sync,
    ) {
        let (size, buffers) = ([self.tokens.len(), width], &*self.buffers);
        let write = |t: usize, row: &mut [f32]| write(buffers, t, row);
        load(self.pool, self.inputs, size, rounding, write);
    }

    /// Makes columns of a buffer, normed, the inputs of a product.
    pub(super) fn load_normed(
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

    /// Runs `task(t)`, compiled for this CPU's vector unit, for every token, on all threads.
    pub(super) fn each_token(&self, task: impl Fn(usize) + Sync) {
        self.pool.each(self.tokens.len(), |_, t| {
            simd::vectorize(
                #[inline(always)]
                || task(t),
            )
        });
    }
}

impl View {
    /// Its columns of token `t`.
    #[inline(always)]
    pub(super) fn of_token<'a>(&self, buffers: &'a Buffers, t: usize) -> &'a [f32] {
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
