//! Rows of the embedding matrix into the residual stream.

mod cpu;
mod launch;

use waterline_quant::Matrix;

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};

/// Decodes the row of each token.
pub struct Embed {
    /// The embedding `[vocab, hidden]`.
    pub matrix: Matrix,
    /// Multiplies the rows.
    pub multiplier: f32,
    /// Applied to the multiplied rows.
    pub norm: Option<Norm>,
}

impl Op for Embed {
    fn access(&self) -> Access {
        Access::default().writes([View::whole(RESIDUAL, self.matrix.cols())])
    }

    fn weight_bytes(&self) -> usize {
        self.matrix.bytes().len() / self.matrix.rows()
    }
}
