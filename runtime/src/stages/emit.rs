//! The end of a mixer: norm and gate its output, multiply it back to the residual stream.

use waterline_quant::{Matrix, Output};

use super::norm::Norm;
use super::project::piece;
use crate::cpu::{Frame, simd};
use crate::program::{INPUTS, PRODUCT, RESIDUAL, Vector, View};

/// A norm over each group of values that its gains span: a head, or the whole width.
pub type HeadNorm = Norm;

/// What happens to a mixer's output before the output matrix, in this order.
#[derive(Default)]
pub struct Finish {
    /// Norm over each head.
    pub norm: Option<HeadNorm>,
    /// Multiplied by `silu` of these columns.
    pub gate: Option<View>,
}

/// `residual += matrix finish(input)`.
pub struct Emit {
    /// The mixer's output.
    pub input: View,
    /// Norm and gate.
    pub finish: Finish,
    /// The output matrix `[hidden, input.width]`.
    pub matrix: Matrix,
    /// Added to the product `[hidden]`.
    pub bias: Option<Vector>,
}

impl Emit {
    pub(crate) fn run(&self, frame: &mut Frame) {
        frame.gather(self.input, |x, staged| {
            staged.copy_from_slice(x);
            if let Some(norm) = &self.finish.norm {
                for head in staged.chunks_exact_mut(norm.weight.len()) {
                    norm.apply_in_place(head);
                }
            }
        });
        if let Some(gate) = self.finish.gate {
            frame.gate_inputs(gate);
        }
        frame.load_inputs(self.input.width, self.matrix.format().is_integer_dot());
        frame.add_product(&self.matrix);
        if let Some(bias) = &self.bias {
            let residual = frame.buffers.get_mut(RESIDUAL);
            for row in residual
                .chunks_exact_mut(bias.len())
                .take(frame.tokens.len())
            {
                simd::add(bias, row);
            }
        }
    }
}

impl Frame<'_> {
    /// Multiplies the input buffer by `silu` of the gate's columns.
    fn gate_inputs(&mut self, gate: View) {
        let mut staged = self.buffers.take(INPUTS);
        let width = gate.stride;
        let source = self.buffers.get(gate.buffer);
        simd::vectorize(|| {
            for t in 0..self.tokens.len() {
                let gates = &source[t * width + gate.start..][..gate.width];
                for (x, &g) in staged[t * gate.width..][..gate.width].iter_mut().zip(gates) {
                    *x *= simd::silu(g);
                }
            }
        });
        self.buffers.put(INPUTS, staged);
    }

    /// `residual += matrix inputs`.
    pub(super) fn add_product(&mut self, matrix: &Matrix) {
        let hidden = matrix.rows();
        let mut product = self.buffers.take(PRODUCT);
        let used = self.tokens.len() * hidden;
        let rows = Output::new(&mut product[..used], hidden);
        let pieces = self.pool.threads() * 2;
        self.pool.each(pieces, |_, index| {
            // SAFETY: pieces are disjoint columns.
            unsafe { matrix.mul_rows(piece(hidden, index, pieces), self.inputs, &rows, 0) };
        });
        let residual = &mut self.buffers.get_mut(RESIDUAL)[..used];
        simd::vectorize(|| simd::add(&product[..used], residual));
        self.buffers.put(PRODUCT, product);
    }
}
