//! The gated feed-forward network of a layer.

mod cpu;
mod launch;

use super::project::Linear;
use super::{Access, Op};
use crate::functions::{Activation, Norm};
use crate::operands::{RESIDUAL, View};
use crate::ops::Rules;

/// `residual += post_norm(down(activation(gate n) * up n))` with `n = norm(residual)`.
pub struct Mlp {
    /// Applied to the residual stream first.
    pub norm: Option<Norm>,
    /// `[intermediate, hidden]`; its product is stored in the first columns of `inner`.
    pub gate: Linear,
    /// `[intermediate, hidden]`; its product follows the gate's.
    pub up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
    /// Function of the gate.
    pub activation: Activation,
    /// Room for gate and up, side by side.
    pub inner: View,
    /// Norm of the output before it is added `[hidden]`.
    pub post_norm: Option<Norm>,
}

impl Op for Mlp {
    fn access(&self) -> Access {
        let inner = View::whole(self.inner.buffer, 2 * self.gate.matrix.rows());
        Access::default()
            .updates([View::whole(RESIDUAL, self.down.matrix.rows())])
            .writes([inner])
    }

    fn check(&self, rules: &mut Rules) {
        let intermediate = self.gate.matrix.rows();
        rules.equal("the gate's first column", self.gate.column, 0);
        rules.equal("the first column of up", self.up.column, intermediate);
        rules.equal("up's width", self.up.matrix.rows(), intermediate);
    }

    fn weight_bytes(&self) -> usize {
        let linears = [&self.gate, &self.up, &self.down];
        linears.iter().map(|l| l.matrix.bytes().len()).sum()
    }
}
