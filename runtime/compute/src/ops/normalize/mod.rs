//! Norms columns in place.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::Rules;

/// `columns = norm(columns)`, over all of them together.
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
