//! The op as kernels.

use super::HeadLinear;
use crate::cuda::{Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::ops::DeviceOp;

/// Columns of a block of threads, and tokens of one where there are many.
const COLUMNS: usize = 32;

const TILE: usize = 32;

impl DeviceOp for HeadLinear {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (rows, cols, kept) = (self.rows, self.cols, self.kept);
        let tile = if launches.tokens == 1 { 1 } else { TILE };
        let width = self.x.width / self.heads;
        launches.push_prefetching(Call {
            source: include_str!("head_linear.cu"),
            kernel: format!("head_linear<{rows}, {cols}, {kept}, {width}, {tile}>"),
            grid: Grid::EachTile(self.heads * cols.div_ceil(COLUMNS), tile),
            threads: 4 * COLUMNS,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.vector(&self.weight)?,
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}
