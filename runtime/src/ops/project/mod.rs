//! Matrices with a common input, behind an optional norm: one pass over their weights.

use waterline_quant::{Matrix, Output, Rounding};

use super::route::Chosen;
use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, simd};
use crate::cuda::{Launches, WeightMatrix};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{INPUTS, View};
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
        frame.gather(self.input, |x, staged| match &self.norm {
            Some(norm) => norm.apply(x, staged),
            None => staged.copy_from_slice(x),
        });
        frame.load_inputs(self.input.width, self.rounding);
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
            let plain = |linear: &&Linear| linear.bias.is_none() && linear.multiplier == 1.0;
            for linear in self.linears.iter().filter(|linear| !plain(linear)) {
                let tokens = output[..used].chunks_exact_mut(width);
                tokens.for_each(|row| linear.finish(row));
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

impl Frame<'_> {
    /// Fills the input buffer: `f(columns of a token, their place)` for each token.
    pub(super) fn gather(&mut self, input: View, f: impl Fn(&[f32], &mut [f32])) {
        let mut staged = self.buffers.take(INPUTS);
        let width = input.stride;
        let source = self.buffers.get(input.buffer);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..self.tokens.len() {
                    let x = &source[t * width + input.start..][..input.width];
                    f(x, &mut staged[t * input.width..][..input.width]);
                }
            },
        );
        self.buffers.put(INPUTS, staged);
    }

    /// Hands the first `cols` columns a token of the input buffer to the matrix kernels.
    pub(super) fn load_inputs(&mut self, cols: usize, rounding: Option<Rounding>) {
        let rows = self.tokens.len();
        self.inputs.load(
            &self.buffers.get(INPUTS)[..rows * cols],
            rows,
            cols,
            rounding,
        );
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
