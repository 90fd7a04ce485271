//! The residual stream in models whose residual is the normed input.

use super::{Access, DeviceOp, Op};
use crate::cpu::{Frame, simd};
use crate::cuda::Launches;
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::{RESIDUAL, View};

/// `residual = norm(residual)`.
pub struct Renew {
    /// The norm.
    pub norm: Norm,
}

impl Renew {
    fn residual(&self) -> View {
        View::whole(RESIDUAL, self.norm.weight.len())
    }
}

impl Op for Renew {
    fn run(&self, frame: &mut Frame) {
        let width = self.residual().width;
        let rows = frame.buffers.get_mut(RESIDUAL).chunks_exact_mut(width);
        simd::vectorize(
            #[inline(always)]
            || {
                rows.take(frame.tokens.len())
                    .for_each(|row| self.norm.apply_in_place(row));
            },
        );
    }

    fn access(&self) -> Access {
        Access::default().updates([self.residual()])
    }
}

impl DeviceOp for Renew {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let prologue = launches.prologue(self.residual(), Some(&self.norm))?;
        launches.store_prologue(prologue, self.residual());
        Ok(())
    }
}
