//! The op as kernels.

use waterline_quant::Rounding;

use super::HeadLinear;
use crate::cuda::{Call, Grid, Launches, Parameter, Source, format_of};
use crate::error::Result;
use crate::ops::DeviceOp;

/// Threads per block, as in head_linear.cu.
const THREADS: usize = 128;

/// Tokens per thread block in a chunk.
const TILE: usize = 32;

/// Most numbers of a row that a thread keeps, unless the row is too long for a warp.
const KEPT: usize = 32;

impl DeviceOp for HeadLinear {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (heads, rows, cols) = (self.heads, self.rows(), self.matrix.cols());
        let (copied, width) = (self.copied, self.x.width / heads);
        let tile = if launches.tokens == 1 { 1 } else { TILE };
        let lanes = cols.div_ceil(KEPT).next_power_of_two().min(32);
        let format = format_of(&self.matrix);
        let rounding = self.matrix.format().rounding();
        launches.push_prefetching(Call {
            source: const { &[Source::new("ops/head_linear/head_linear.cu", &[])] },
            kernel: format!(
                "head_linear<{format}, {}, {lanes}, {heads}, {rows}, {cols}, {copied}, {width}, {tile}>",
                Rounding::device_number(rounding)
            ),
            grid: Grid::EachTile(heads * rows.div_ceil(THREADS / lanes), tile),
            threads: THREADS,
            shared: rounding.map_or(0, |_| cols * size_of::<f32>()),
            parameters: vec![
                launches.view(self.x),
                Parameter::pointer("const u8", launches.matrix_address(&self.matrix)?),
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}
