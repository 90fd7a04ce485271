//! The op as kernels.

use waterline_kernels::file;

use super::Embed;
use crate::cuda::{Call, Grid, Launches, Parameter, format_of};
use crate::error::Result;
use crate::operands::{RESIDUAL, View};
use crate::ops::DeviceOp;

impl DeviceOp for Embed {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let hidden = self.matrix.cols();
        let output = View::whole(RESIDUAL, hidden);
        let norm = launches.prologue(output, self.norm.as_ref())?;
        let matrix = launches.matrix_address(&self.matrix)?;
        launches.push(Call {
            source: const { &[file("ops/embed/embed.cu")] },
            kernel: format!(
                "embed<{}, {hidden}, {}>",
                format_of(&self.matrix),
                norm.flags(hidden)
            ),
            grid: Grid::Tokens,
            threads: launches.prologue_threads(),
            shared: 0,
            parameters: vec![
                Parameter::pointer("const u8", matrix),
                Parameter::int(self.matrix.rows()),
                Parameter::value("float", self.multiplier),
                launches.ids(),
                Parameter::value("Prologue", norm),
                launches.view(output),
            ],
        });
        Ok(())
    }
}
