//! From the residual stream to logits.

mod cpu;
mod launch;

use waterline_quant::Matrix;

use super::{Access, Operand};
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};
use crate::state::LOGITS;

/// The final norm and the output matrix.
pub struct Logits {
    /// The final norm.
    pub norm: Norm,
    /// `[vocab, hidden]`; the embedding itself in tied models.
    pub matrix: Matrix,
    /// Bounds the logits: `cap tanh(logits / cap)`.
    pub softcap: Option<f32>,
}

impl Logits {
    /// Operands of the op.
    pub fn access(&self) -> Access {
        Access {
            writes: vec![Operand::State(LOGITS)],
            ..Access::default().reads([View::whole(RESIDUAL, self.matrix.cols())])
        }
    }
}
