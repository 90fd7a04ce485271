//! The op as kernels.

use super::Mlp;
use crate::cuda::{GatedUnit, Launches};
use crate::error::Result;
use crate::operands::{PRODUCT, RESIDUAL, View};
use crate::ops::DeviceOp;

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
