//! The residual stream in models whose residual is the normed input.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};

/// `residual = norm(residual)`.
pub struct Renew {
    /// The norm.
    pub norm: Norm,
}

impl Renew {
    fn residual(&self) -> View {
        View::whole(RESIDUAL, self.norm.weight.len())
    }
}

impl Op for Renew {
    fn access(&self) -> Access {
        Access::default().updates([self.residual()])
    }
}
