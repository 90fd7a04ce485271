//! The op as kernels.

use super::RgLru;
use crate::cuda::{Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

/// Channels per thread block.
const CHANNELS: usize = 32;

impl DeviceOp for RgLru {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let dim = self.head_dim();
        launches.push_prefetching(Call {
            source: const { &[Source::new("ops/rg_lru/rg_lru.cu", &[])] },
            kernel: format!("rg_lru<{dim}>"),
            grid: Grid::Blocks(self.heads * dim.div_ceil(CHANNELS)),
            threads: 4 * CHANNELS,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.vector(&self.input.weight)?,
                launches.vector(&self.input.bias)?,
                launches.vector(&self.recurrence.weight)?,
                launches.vector(&self.recurrence.bias)?,
                launches.vector(&self.rate)?,
                launches.state("float", self.state),
                launches.view(self.out),
                launches.position(),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}
