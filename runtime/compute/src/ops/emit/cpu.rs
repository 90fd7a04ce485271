//! The op on a CPU, and the product that also ends a feed-forward network.

use waterline_quant::Output;

use super::Emit;
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::functions::{Norm, OutputOp};
use crate::operands::{PRODUCT, RESIDUAL, View};
use crate::ops::CpuOp;
use crate::ops::frame::piece;
use crate::ops::project::Linear;

impl OutputOp {
    /// Applies the op to the values of token `t`.
    #[inline(always)]
    fn apply(&self, buffers: &Buffers, t: usize, values: &mut [f32]) {
        match self {
            OutputOp::Norm(norm) => {
                for group in values.chunks_exact_mut(norm.weight.len()) {
                    norm.apply_in_place(group);
                }
            }
            OutputOp::GroupNorm(norm, groups) => {
                for part in values.chunks_exact_mut(norm.weight.len()) {
                    norm.apply_in_groups(part, *groups);
                }
            }
            OutputOp::Add(view, gains) => {
                let columns = view.token(buffers, t).iter().zip(gains.iter());
                for (x, (column, gain)) in values.iter_mut().zip(columns) {
                    *x += gain * column;
                }
            }
            OutputOp::Map(function) => function.apply(values),
            OutputOp::Gate(gate, function) => function.gate(gate.token(buffers, t), values),
        }
    }
}

impl CpuOp for Emit {
    fn run(&self, frame: &mut Frame) {
        let rounding = self.linear.matrix.format().rounding();
        frame.load(
            self.input.width,
            rounding,
            #[inline(always)]
            |buffers, t, row| {
                row.copy_from_slice(self.input.token(buffers, t));
                for finish in &self.finish {
                    finish.apply(buffers, t, row);
                }
            },
        );
        frame.finish_product(&self.linear, self.norm.as_ref(), None);
    }
}

impl Frame<'_> {
    /// Computes `residual += norm(multiplier matrix inputs + bias)`, or `output = norm(..)`.
    pub(in crate::ops) fn finish_product(
        &mut self,
        linear: &Linear,
        norm: Option<&Norm>,
        output: Option<View>,
    ) {
        let hidden = linear.matrix.rows();
        let mut product = self.buffers.take(PRODUCT);
        let used = self.tokens.len() * hidden;
        let rows = Output::new(&mut product[..used], hidden);
        let pieces = self.pool.threads() * 2;
        self.pool.each(pieces, |worker, index| {
            let range = piece(hidden, index, pieces);
            // SAFETY: a row is as wide as the matrix has rows, and a task has its own piece of them.
            unsafe { linear.matrix.mul_rows(range, worker, self.inputs, &rows, 0) };
        });
        {
            let product = Shared::new(&mut product[..used]);
            let to = output.unwrap_or(View::whole(RESIDUAL, hidden));
            let sums = Shared::new(self.buffers.get_mut(to.buffer));
            self.pool.each(self.tokens.len(), |_, t| {
                let place = t * hidden..(t + 1) * hidden;
                // SAFETY: each task has a different token, a complete row of both (rules: bounds, widths).
                let (row, sum) = unsafe { (product.part(place), sums.part(to.columns(t))) };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        linear.finish(row);
                        if let Some(norm) = norm {
                            norm.apply_in_place(row);
                        }
                        match output {
                            None => simd::add(row, sum),
                            Some(_) => sum.copy_from_slice(row),
                        }
                    },
                )
            });
        }
        self.buffers.put(PRODUCT, product);
    }
}
