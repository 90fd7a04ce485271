//! Products with matrices in parts, of which a token reads only those that it has chosen: what `project_chosen.cu` is called
//! with.

use super::launches::{Call, Grid, Launches, Parameter};
use super::products::{Factor, Gather, MOST_LINEARS, formats_of, shared_bytes};
use crate::error::Result;
use crate::operands::View;

impl Launches<'_> {
    /// As [`Launches::multiply`] of matrices that are made of `parts` equal parts, for one token: only the parts whose numbers
    /// stand in the first half of `route` are read, and their columns written.
    pub fn multiply_chosen(
        &mut self,
        gather: Gather,
        factors: &[Factor],
        (parts, route): (usize, View),
        output: View,
    ) -> Result<()> {
        let cols = factors[0].matrix.cols();
        let formats = formats_of(factors);
        for factors in factors.chunks(MOST_LINEARS) {
            // As many rows of a whole matrix as its parts have in a block: so tiles are counted as those of one part.
            let (linears, tiles) = self.linears(factors, parts * self.block_rows(), false)?;
            self.push(Call {
                source: include_str!("../ops/project/project_chosen.cu"),
                kernel: format!(
                    "multiply_chosen<{formats}, {cols}, {}, {parts}>",
                    gather.kinds(cols)
                ),
                grid: Grid::EachToken(route.width / 2 * tiles),
                threads: self.gather_threads(),
                shared: shared_bytes(cols),
                parameters: vec![
                    Parameter::value("Gather", gather),
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
