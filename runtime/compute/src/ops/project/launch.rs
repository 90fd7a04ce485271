//! The op as kernels.

use super::{Linear, Project};
use crate::cuda::{Launches, WeightMatrix};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

impl Linear {
    /// The matrix as kernels read it.
    pub(in crate::ops) fn weight(&self) -> WeightMatrix<'_> {
        WeightMatrix {
            matrix: &self.matrix,
            bias: self.bias.as_ref(),
            column: self.column,
            multiplier: self.multiplier,
        }
    }
}

impl DeviceOp for Project {
    fn runs_as_steps(&self) -> bool {
        self.parts.is_none()
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.prologue(self.input, self.norm.as_ref())?;
        let weights: Vec<WeightMatrix> = self.linears.iter().map(Linear::weight).collect();
        let output = View::whole(self.output.buffer, self.output.stride);
        match &self.parts {
            Some(parts) if launches.tokens == 1 => {
                let parts = (parts.partitions, parts.route);
                launches.gemv_chosen(prologue, &weights, parts, output)
            }
            _ => launches.gemm(prologue, &weights, output, false),
        }
    }
}
