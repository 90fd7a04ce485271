//! The op as kernels.

use super::Normalize;
use crate::cuda::Launches;
use crate::error::Result;
use crate::ops::DeviceOp;

impl DeviceOp for Normalize {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.prologue(self.columns, Some(&self.norm))?;
        launches.store_prologue(prologue, self.columns);
        Ok(())
    }
}
