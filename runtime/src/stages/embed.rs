//! Rows of the embedding matrix into the residual stream.

use waterline_quant::Matrix;

use super::norm::Norm;
use crate::cpu::Frame;
use crate::program::RESIDUAL;

/// Decodes the row of each token.
pub struct Embed {
    /// The embedding `[vocab, hidden]`.
    pub matrix: Matrix,
    /// Applied to the rows.
    pub norm: Option<Norm>,
}

impl Embed {
    pub(crate) fn run(&self, frame: &mut Frame) {
        let hidden = self.matrix.cols();
        let residual = frame.buffers.get_mut(RESIDUAL);
        for (row, &token) in residual.chunks_exact_mut(hidden).zip(frame.tokens) {
            self.matrix.decode_row(token as usize, row);
            if let Some(norm) = &self.norm {
                norm.apply_in_place(row);
            }
        }
    }
}
