//! The gated feed-forward network of a layer.

use waterline_quant::Output;

use super::project::{Linear, piece};
use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, Shared};
use crate::cuda::{GatedUnit, Launches};
use crate::error::Result;
use crate::functions::{Activation, Norm};
use crate::operands::{PRODUCT, RESIDUAL, View};

/// `residual += post_norm(down(activation(gate n) * up n))` with `n = norm(residual)`.
pub struct Mlp {
    /// Applied to the residual stream first.
    pub norm: Option<Norm>,
    /// `[intermediate, hidden]`; its product stands in the first columns of `inner`.
    pub gate: Linear,
    /// `[intermediate, hidden]`; its product stands behind the gate's.
    pub up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
    /// What the gate passes through.
    pub activation: Activation,
    /// Room for gate and up, side by side.
    pub inner: View,
    /// Applied to what is added `[hidden]`.
    pub post_norm: Option<Norm>,
}

impl Op for Mlp {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.down.matrix.rows();
        let intermediate = self.gate.matrix.rows();
        let residual = View::whole(RESIDUAL, hidden);
        let inner_linears = [&self.gate, &self.up];
        let rounding = |linear: &Linear| linear.matrix.format().rounding();
        let inner = inner_linears.iter().map(|linear| rounding(linear)).max();
        frame.load_normed(residual, self.norm.as_ref(), inner.flatten());

        let mut inner = frame.buffers.take(self.inner.buffer);
        let used = frame.tokens.len() * 2 * intermediate;
        let rows = Output::new(&mut inner[..used], 2 * intermediate);
        let pieces = frame.pool.threads() * 2;
        frame.pool.each(pieces, |_, index| {
            for linear in inner_linears {
                let range = piece(intermediate, index, pieces);
                // SAFETY: pieces are disjoint columns, and gate and up have halves of their own.
                unsafe {
                    linear
                        .matrix
                        .mul_rows(range, frame.inputs, &rows, linear.column)
                };
            }
        });
        {
            let inner = Shared::new(&mut inner[..used]);
            frame.load(
                intermediate,
                rounding(&self.down),
                #[inline(always)]
                |_, t, row| {
                    let width = 2 * intermediate;
                    // SAFETY: each token is written once.
                    let products = unsafe { inner.part(t * width..(t + 1) * width) };
                    let linears = inner_linears.iter();
                    linears.for_each(|linear| linear.finish(products));
                    let (gate, up) = products.split_at(intermediate);
                    row.copy_from_slice(up);
                    self.activation.gate(gate, row);
                },
            );
        }
        frame.buffers.put(self.inner.buffer, inner);
        frame.add_product(&self.down, self.post_norm.as_ref());
    }

    fn access(&self) -> Access {
        let inner = View::whole(self.inner.buffer, 2 * self.gate.matrix.rows());
        Access::default()
            .updates([View::whole(RESIDUAL, self.down.matrix.rows())])
            .writes([inner])
    }

    fn weight_bytes(&self) -> usize {
        let linears = [&self.gate, &self.up, &self.down];
        linears.iter().map(|l| l.matrix.bytes().len()).sum()
    }
}

impl DeviceOp for Mlp {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let residual = View::whole(RESIDUAL, self.down.matrix.rows());
        let prologue = launches.prologue(residual, self.norm.as_ref())?;
        let unit = GatedUnit {
            gate: self.gate.weight(),
            up: self.up.weight(),
            down: self.down.weight(),
            activation: self.activation,
            inner: self.inner,
        };
        let Some(norm) = &self.post_norm else {
            return launches.gemm_gated(prologue, &unit, residual, true);
        };
        let product = View::whole(PRODUCT, residual.width);
        launches.also_writes(launches.rows(product).bytes());
        launches.gemm_gated(prologue, &unit, product, false)?;
        launches.add_normed(product, norm)
    }
}
