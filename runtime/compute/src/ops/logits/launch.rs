//! The op as kernels.

use waterline_kernels::file;

use super::Logits;
use crate::cuda::{Call, Grid, Launches, Parameter, Rows, WeightMatrix};
use crate::error::Result;
use crate::operands::View;

impl Logits {
    /// The logits after each token in `residual`.
    pub fn launch(&self, launches: &mut Launches, residual: View, logits: Rows) -> Result<()> {
        let prologue = launches.prologue(residual, Some(&self.norm))?;
        launches.gemm_into(
            prologue,
            &[WeightMatrix::plain(&self.matrix)],
            logits,
            false,
        )?;
        if let Some(cap) = self.softcap {
            const THREADS: usize = 256;
            launches.push(Call {
                source: const { &[file("ops/logits/logits.cu")] },
                kernel: "cap_logits".into(),
                grid: Grid::EachToken(self.matrix.rows().div_ceil(THREADS)),
                threads: THREADS,
                shared: 0,
                parameters: vec![
                    Parameter::value("Rows", logits),
                    Parameter::value("float", cap),
                ],
            });
        }
        Ok(())
    }
}
