//! The feed-forward network of a block.

use waterline_quant::{Matrix, Output};

use super::norm::Norm;
use super::project::piece;
use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, simd};
use crate::cuda::Launches;
use crate::error::Result;
use crate::program::{INPUTS, RESIDUAL, View};

/// `residual += down (silu(gate n) * up n)` with `n = norm(residual)`.
pub struct Mlp {
    /// Applied to the residual stream first.
    pub norm: Norm,
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    /// `[intermediate, hidden]`.
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
    /// Room for gate and up, side by side.
    pub inner: View,
}

impl Op for Mlp {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.down.rows();
        let intermediate = self.gate.rows();
        let residual = View::whole(RESIDUAL, hidden);
        frame.gather(residual, |x, staged| self.norm.apply(x, staged));
        let integer = self.gate.format().is_integer_dot() || self.up.format().is_integer_dot();
        frame.load_inputs(hidden, integer);

        let mut inner = frame.buffers.take(self.inner.buffer);
        let used = frame.tokens.len() * 2 * intermediate;
        let rows = Output::new(&mut inner[..used], 2 * intermediate);
        let pieces = frame.pool.threads() * 2;
        frame.pool.each(pieces, |_, index| {
            let range = piece(intermediate, index, pieces);
            // SAFETY: pieces are disjoint columns, and gate and up have halves of their own.
            unsafe {
                self.gate.mul_rows(range.clone(), frame.inputs, &rows, 0);
                self.up.mul_rows(range, frame.inputs, &rows, intermediate);
            }
        });
        let staged = frame.buffers.get_mut(INPUTS);
        simd::vectorize(
            #[inline(always)]
            || {
                for t in 0..frame.tokens.len() {
                    let (gate, up) =
                        inner[t * 2 * intermediate..][..2 * intermediate].split_at(intermediate);
                    for ((out, &g), &u) in staged[t * intermediate..].iter_mut().zip(gate).zip(up) {
                        *out = simd::silu(g) * u;
                    }
                }
            },
        );
        frame.buffers.put(self.inner.buffer, inner);
        frame.load_inputs(intermediate, self.down.format().is_integer_dot());
        frame.add_product(&self.down, |_| ());
    }

    fn access(&self) -> Access {
        let inner = View::whole(self.inner.buffer, 2 * self.gate.rows());
        Access::default()
            .updates([View::whole(RESIDUAL, self.down.rows())])
            .writes([inner])
    }

    fn weight_bytes(&self) -> usize {
        self.gate.bytes().len() + self.up.bytes().len() + self.down.bytes().len()
    }
}

impl DeviceOp for Mlp {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let residual = View::whole(RESIDUAL, self.down.rows());
        let gather = launches.gathered(residual, Some(&self.norm))?;
        let matrices = [&self.gate, &self.up, &self.down];
        launches.multiply_gated(gather, matrices, self.inner, residual)
    }
}
