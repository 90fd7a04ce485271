//! The end of a mixer: norm and gate its output, multiply it back to the residual stream.

use waterline_quant::Output;

use super::project::{Linear, piece};
use super::{Access, DeviceOp, Op};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::cuda::{Call, Grid, Launches};
use crate::error::Result;
use crate::functions::{Norm, OutputOp};
use crate::operands::{PRODUCT, RESIDUAL, View};

/// `residual += norm(multiplier matrix finish(input) + bias)`.
pub struct Emit {
    /// The mixer's output.
    pub input: View,
    /// Norms and gates, in order.
    pub finish: Vec<OutputOp>,
    /// The output matrix `[hidden, input.width]`.
    pub linear: Linear,
    /// Applied to the product `[hidden]` before it is added.
    pub norm: Option<Norm>,
}

impl OutputOp {
    /// Applies it to the values of token `t`.
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
                let columns = view.of_token(buffers, t).iter().zip(gains.iter());
                for (x, (column, gain)) in values.iter_mut().zip(columns) {
                    *x += gain * column;
                }
            }
            OutputOp::Map(function) => function.apply(values),
            OutputOp::Gate(gate, function) => function.gate(gate.of_token(buffers, t), values),
        }
    }
}

impl Op for Emit {
    fn run(&self, frame: &mut Frame) {
        let rounding = self.linear.matrix.format().rounding();
        frame.load(
            self.input.width,
            rounding,
            #[inline(always)]
            |buffers, t, row| {
                row.copy_from_slice(self.input.of_token(buffers, t));
                let finish = self.finish.iter();
                finish.for_each(|finish| finish.apply(buffers, t, row));
            },
        );
        frame.add_product(&self.linear, self.norm.as_ref());
    }

    fn access(&self) -> Access {
        let finish = self.finish.iter().filter_map(|finish| match finish {
            OutputOp::Add(view, _) | OutputOp::Gate(view, _) => Some(*view),
            OutputOp::Norm(_) | OutputOp::GroupNorm(..) | OutputOp::Map(_) => None,
        });
        Access::default()
            .reads([self.input])
            .reads(finish)
            .updates([View::whole(RESIDUAL, self.linear.matrix.rows())])
    }

    fn weight_bytes(&self) -> usize {
        self.linear.matrix.bytes().len()
    }
}

impl DeviceOp for Emit {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.output_prologue(self.input, &self.finish)?;
        let residual = View::whole(RESIDUAL, self.linear.matrix.rows());
        let factor = [self.linear.weight()];
        let Some(norm) = &self.norm else {
            return launches.gemm(prologue, &factor, residual, true);
        };
        let product = View::whole(PRODUCT, residual.width);
        launches.also_writes(launches.rows(product).bytes());
        launches.gemm(prologue, &factor, product, false)?;
        launches.add_normed(product, norm)
    }
}

impl Launches<'_> {
    /// `residual += norm(product)`; the product's columns are used up.
    pub(super) fn add_normed(&mut self, product: View, norm: &Norm) -> Result<()> {
        let normed = self.prologue(product, Some(norm))?;
        self.store_prologue(normed, product);
        let residual = View::whole(RESIDUAL, product.width);
        self.push(Call {
            source: include_str!("emit.cu"),
            kernel: format!("add_rows<{}>", product.width),
            grid: Grid::Tokens,
            threads: 256,
            shared: 0,
            parameters: vec![self.view(product), self.view(residual)],
        });
        Ok(())
    }
}

impl Frame<'_> {
    /// `residual += norm(multiplier matrix inputs + bias)`.
    pub(super) fn add_product(&mut self, linear: &Linear, norm: Option<&Norm>) {
        let hidden = linear.matrix.rows();
        let mut product = self.buffers.take(PRODUCT);
        let used = self.tokens.len() * hidden;
        let rows = Output::new(&mut product[..used], hidden);
        let pieces = self.pool.threads() * 2;
        self.pool.each(pieces, |_, index| {
            let range = piece(hidden, index, pieces);
            // SAFETY: pieces are disjoint columns, by `piece`.
            unsafe { linear.matrix.mul_rows(range, self.inputs, &rows, 0) };
        });
        {
            let product = Shared::new(&mut product[..used]);
            let residual = Shared::new(&mut self.buffers.get_mut(RESIDUAL)[..used]);
            let finish = |t: usize| {
                let place = t * hidden..(t + 1) * hidden;
                // SAFETY: each task has its own token.
                let (row, residual) =
                    unsafe { (product.part(place.clone()), residual.part(place)) };
                linear.finish(row);
                if let Some(norm) = norm {
                    norm.apply_in_place(row);
                }
                simd::add(row, residual);
            };
            self.pool.each(self.tokens.len(), |_, t| {
                simd::vectorize(
                    #[inline(always)]
                    || finish(t),
                )
            });
        }
        self.buffers.put(PRODUCT, product);
    }
}
