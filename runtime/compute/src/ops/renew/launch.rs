//! The op as kernels.

use super::Renew;
use crate::cuda::Launches;
use crate::error::Result;
use crate::ops::DeviceOp;

impl DeviceOp for Renew {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.prologue(self.residual(), Some(&self.norm))?;
        launches.store_prologue(prologue, self.residual());
        Ok(())
    }
}
