//! The op on a CPU.

use waterline_quant::{Output, Rounding};

use super::Mlp;
use crate::cpu::{Frame, Shared};
use crate::operands::{RESIDUAL, View};
use crate::ops::CpuOp;
use crate::ops::project::{Linear, piece};

impl CpuOp for Mlp {
    fn run(&self, frame: &mut Frame) {
        let hidden = self.down.matrix.rows();
        let intermediate = self.gate.matrix.rows();
        let residual = View::whole(RESIDUAL, hidden);
        let inner_linears = [&self.gate, &self.up];
        let rounding = |linear: &Linear| {
            let all = inner_linears.map(|linear| linear.matrix.format());
            Rounding::beside(linear.matrix.format(), all)
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
                    // SAFETY: each token is one task, and its row is its own.
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
        frame.add_product(&self.down, self.post_norm.as_ref());
    }
}
