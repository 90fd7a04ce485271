//! The gated feed-forward network of a layer.

use waterline_quant::{Output, Rounding};

use super::frame::piece;
use super::project::Linear;
use super::{Access, CpuOp, DeviceOp, Op, Rules};
use crate::cpu::{Frame, Shared};
use crate::cuda::{GatedUnit, Launches};
use crate::error::Result;
use crate::functions::{Activation, Norm};
use crate::operands::{PRODUCT, RESIDUAL, View};

/// `residual += post_norm(down(activation(gate n) * up n))` with `n = norm(residual)`, or the same without the sum.
pub struct Mlp {
    /// Applied to the residual stream first.
    pub norm: Option<Norm>,
    /// `[intermediate, hidden]`; its product is stored in the first columns of `inner`.
    pub gate: Linear,
    /// `[intermediate, hidden]`; its product follows the gate's.
    pub up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
    /// Activation of the gate.
    pub activation: Activation,
    /// Room for the products of gate and up, one after the other.
    pub inner: View,
    /// Norm of the output before it is added `[hidden]`.
    pub post_norm: Option<Norm>,
    /// Columns that the output replaces; `None` to add it to the residual stream.
    pub output: Option<View>,
}

impl Mlp {
    fn residual(&self) -> View {
        View::whole(RESIDUAL, self.gate.matrix.cols())
    }
}

impl Op for Mlp {
    fn access(&self) -> Access {
        let inner = View::whole(self.inner.buffer, 2 * self.gate.matrix.rows());
        match self.output {
            None => Access::default().updates([self.residual()]),
            Some(output) => Access::default().reads([self.residual()]).writes([output]),
        }
        .writes([inner])
    }

    fn check(&self, rules: &mut Rules) {
        let intermediate = self.gate.matrix.rows();
        rules.equal("the gate's first column", self.gate.column, 0);
        rules.equal("the first column of up", self.up.column, intermediate);
        rules.equal("up's width", self.up.matrix.rows(), intermediate);
        let output = self.output.unwrap_or(self.residual());
        rules.width("output", output, self.down.matrix.rows());
    }

    fn weight_bytes(&self) -> usize {
        let linears = [&self.gate, &self.up, &self.down];
        linears.iter().map(|l| l.matrix.bytes().len()).sum()
    }
}

impl CpuOp for Mlp {
    fn run(&self, frame: &mut Frame) {
        let intermediate = self.gate.matrix.rows();
        let residual = self.residual();
        let inner_linears = [&self.gate, &self.up];
        let rounding = |linear: &Linear| {
            let all = inner_linears.map(|linear| linear.matrix.format());
            Rounding::for_shared_input(linear.matrix.format(), all)
        };
        let mut inner = frame.buffers.take(self.inner.buffer);
        let used = frame.tokens.len() * 2 * intermediate;
        let rows = Output::new(&mut inner[..used], 2 * intermediate);
        let pieces = frame.pool.threads() * 2;
        for linears in inner_linears.chunk_by(|a, b| rounding(a) == rounding(b)) {
            frame.load_normed(residual, self.norm.as_ref(), rounding(linears[0]));
            frame.pool.each(pieces, |worker, index| {
                for linear in linears {
                    let range = piece(intermediate, index, pieces);
                    // SAFETY: gate and up have separate halves (rule: widths), and a task writes its own piece of each.
                    unsafe {
                        linear
                            .matrix
                            .mul_rows(range, worker, frame.inputs, &rows, linear.column)
                    };
                }
            });
        }
        {
            let inner = Shared::new(&mut inner[..used]);
            frame.load(
                intermediate,
                self.down.matrix.format().rounding(),
                #[inline(always)]
                |_, t, row| {
                    let width = 2 * intermediate;
                    // SAFETY: each task has a different token, and therefore a different row.
                    let products = unsafe { inner.part(t * width..(t + 1) * width) };
                    for linear in inner_linears {
                        linear.finish(products);
                    }
                    let (gate, up) = products.split_at(intermediate);
                    row.copy_from_slice(up);
                    self.activation.gate(gate, row);
                },
            );
        }
        frame.buffers.put(self.inner.buffer, inner);
        frame.finish_product(&self.down, self.post_norm.as_ref(), self.output);
    }
}

impl DeviceOp for Mlp {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let residual = self.residual();
        let prologue = launches.prologue(residual, self.norm.as_ref())?;
        let unit = GatedUnit {
            gate: self.gate.weight(),
            up: self.up.weight(),
            down: self.down.weight(),
            activation: self.activation,
            inner: self.inner,
        };
        if let Some(output) = self.output {
            launches.gemm_gated(prologue, &unit, output, false)?;
            return match &self.post_norm {
                Some(norm) => launches.norm_columns(output, norm),
                None => Ok(()),
            };
        }
        let Some(norm) = &self.post_norm else {
            return launches.gemm_gated(prologue, &unit, residual, true);
        };
        let product = View::whole(PRODUCT, residual.width);
        launches.also_writes(launches.rows(product).bytes());
        launches.gemm_gated(prologue, &unit, product, false)?;
        launches.add_normed(product, norm)
    }
}
