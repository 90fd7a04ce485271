//! Copies rows of an embedding matrix into the residual stream or another buffer.

use waterline_quant::Matrix;

use super::{Access, CpuOp, DeviceOp, Op, Rules};
use crate::cpu::{Frame, simd};
use crate::cuda::{Call, Grid, Launches, Parameter, Source, format_of};
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::View;

/// Decodes the embedding row of each token.
pub struct Embed {
    /// The embedding `[vocab, hidden]`.
    pub matrix: Matrix,
    /// Multiplies the rows.
    pub multiplier: f32,
    /// Applied to the multiplied rows.
    pub norm: Option<Norm>,
    /// The columns for the rows, `[hidden]`.
    pub output: View,
}

impl Op for Embed {
    fn access(&self) -> Access {
        Access::default().writes([self.output])
    }

    fn check(&self, rules: &mut Rules) {
        rules.width("output", self.output, self.matrix.cols());
    }

    fn weight_bytes(&self) -> usize {
        self.matrix.bytes().len() / self.matrix.rows()
    }
}

impl CpuOp for Embed {
    fn run(&self, frame: &mut Frame) {
        let values = frame.buffers.get_mut(self.output.buffer);
        for (t, &token) in frame.tokens.iter().enumerate() {
            let row = &mut values[self.output.columns(t)];
            self.matrix.decode_row(token as usize, row);
            if self.multiplier != 1.0 {
                simd::scale(self.multiplier, row);
            }
            if let Some(norm) = &self.norm {
                norm.apply_in_place(row);
            }
        }
    }
}

impl DeviceOp for Embed {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let hidden = self.matrix.cols();
        let norm = launches.prologue(self.output, self.norm.as_ref())?;
        let matrix = launches.matrix_address(&self.matrix)?;
        launches.push(Call {
            source: const { &[Source::new("ops/embed.cu", &[])] },
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
                Parameter::value(self.multiplier),
                Parameter::pointer("const u32", launches.memory.ids),
                Parameter::value(norm),
                launches.view(self.output),
            ],
        });
        Ok(())
    }
}
