//! Launch of the kernel in `scan.cu`.

use super::Scan;
use crate::cuda::{Call, Grid, Launches, Parameter, Source};
use crate::error::Result;
use crate::ops::DeviceOp;

impl DeviceOp for Scan {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (channels, components) = (self.x.width, self.b.width);
        // Channels per thread block, and tokens that are in shared memory at once.
        let (block, batch) = (32, if launches.tokens == 1 { 1 } else { 8 });
        let inputs = [self.x, self.step, self.b, self.c];
        let aligned = inputs.iter().all(|view| launches.rows(*view).is_aligned());
        launches.push_prefetching(Call {
            source: const { &[Source::new("ops/scan/scan.cu", &[])] },
            kernel: format!("scan<{channels}, {components}, {batch}, {aligned}>"),
            grid: Grid::Blocks(channels.div_ceil(block)),
            threads: 128,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.view(self.step),
                launches.view(self.b),
                launches.view(self.c),
                launches.vector(&self.rate)?,
                launches.state("float", self.state),
                launches.view(self.out),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}
