//! Products with the parts of matrices that a token has chosen (mixtures of memories): builds the arguments of `chosen.cu`.

use waterline_quant::Rounding;

use crate::cuda::gemm::{
    MOST_LINEARS, Prologue, WeightMatrix, by_rounding, formats_of, shared_bytes,
};
use crate::cuda::schedule::{Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::operands::View;

impl Launches<'_> {
    /// Like [`Launches::gemm`], for matrices of `parts` equal parts and one token: reads only the parts whose numbers are in the first half
    /// of `route`, and writes their columns.
    pub(crate) fn gemv_chosen(
        &mut self,
        prologue: Prologue,
        weights: &[WeightMatrix],
        (parts, route): (usize, View),
        output: View,
    ) -> Result<()> {
        let cols = weights[0].matrix.cols();
        let groups = by_rounding(weights);
        let groups = groups
            .iter()
            .flat_map(|(rounding, weights)| weights.chunks(MOST_LINEARS).map(|w| (*rounding, w)));
        for (rounding, weights) in groups {
            let formats = formats_of(weights);
            let rounding = Rounding::device_number(rounding);
            // `parts` times a block's rows, so that the tiles of one part are counted.
            let (linears, tiles) = self.linears(weights, parts * self.block_rows(), false)?;
            self.push(Call {
                source: const { &[Source::new("cuda/gemm/chosen.cu", &[])] },
                kernel: format!(
                    "gemv_chosen<{formats}, {rounding}, {cols}, {}, {parts}>",
                    prologue.flags(cols)
                ),
                grid: Grid::EachToken(route.width / 2 * tiles),
                threads: self.prologue_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value(prologue),
                    linears,
                    self.view(route),
                    Parameter::int(tiles),
                    self.view(output),
                ],
            });
        }
        Ok(())
    }
}
