//! Norms columns in place.

use super::{Access, CpuOp, DeviceOp, Op, Rules};
use crate::cpu::{Frame, Shared};
use crate::cuda::Launches;
use crate::error::Result;
use crate::functions::Norm;
use crate::operands::View;

/// `columns = norm(columns)`, one norm over all of them.
pub struct Normalize {
    /// The columns.
    pub columns: View,
    /// The norm, with a gain for each column.
    pub norm: Norm,
}

impl Op for Normalize {
    fn access(&self) -> Access {
        Access::default().updates([self.columns])
    }

    fn check(&self, rules: &mut Rules) {
        rules.width("columns", self.columns, self.norm.weight.len());
    }
}

impl CpuOp for Normalize {
    fn run(&self, frame: &mut Frame) {
        let View {
            buffer,
            start,
            width,
            stride,
        } = self.columns;
        let mut values = frame.buffers.take(buffer);
        let rows = Shared::new(&mut values);
        frame.each_token(
            #[inline(always)]
            |t| {
                let first = t * stride + start;
                // SAFETY: each task has its own token's columns (rules: bounds, widths).
                let row = unsafe { rows.part(first..first + width) };
                self.norm.apply_in_place(row);
            },
        );
        frame.buffers.put(buffer, values);
    }
}

impl DeviceOp for Normalize {
    fn runs_as_steps(&self) -> bool {
        true
    }

    fn launch(&self, launches: &mut Launches) -> Result<()> {
        launches.norm_columns(self.columns, &self.norm)
    }
}

impl Launches<'_> {
    /// Launches `columns = norm(columns)`.
    pub(super) fn norm_columns(&mut self, columns: View, norm: &Norm) -> Result<()> {
        let prologue = self.prologue(columns, Some(norm))?;
        self.store_prologue(prologue, columns);
        Ok(())
    }
}
