//! The op as kernels.

use super::Emit;
use crate::cuda::{Call, Grid, Launches, Source};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{PRODUCT, RESIDUAL, View};
use crate::ops::DeviceOp;

impl DeviceOp for Emit {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.output_prologue(self.input, &self.finish)?;
        let residual = View::whole(RESIDUAL, self.linear.matrix.rows());
        let factor = [self.linear.weight()];
        let Some(norm) = &self.norm else {
            return launches.gemm(prologue, &factor, residual, true);
        };
        let product = View::whole(PRODUCT, residual.width);
        launches.also_writes(launches.rows(product).bytes());
        launches.gemm(prologue, &factor, product, false)?;
        launches.add_normed(product, norm)
    }
}

impl Launches<'_> {
    /// Launches `residual += norm(product)`, which overwrites the product.
    pub(in crate::ops) fn add_normed(&mut self, product: View, norm: &Norm) -> Result<()> {
        self.norm_columns(product, norm)?;
        let residual = View::whole(RESIDUAL, product.width);
        self.push(Call {
            source: const { &[Source::new("ops/emit/emit.cu", &[])] },
            kernel: format!("add_rows<{}>", product.width),
            grid: Grid::Tokens,
            threads: 256,
            shared: 0,
            parameters: vec![self.view(product), self.view(residual)],
        });
        Ok(())
    }
}
