//! Guarantees for every op of a program, checked once when a model is bound.
//!
//! - *bounds*: columns lie within their rows, and rows within their buffer; state tensors belong to the op's layer or to an earlier one
//! - *disjoint writes*: an op writes no value more than once
//! - *apart*: an operand that an op only writes is in a buffer that the op does not read
//! - *widths*: the op's own rules ([`crate::ops::Op::check`]), which ensure that its tasks write separate columns and rows
//! - *concurrent heads*: columns that an op reads while its tasks write are not among the columns written; this too follows from the op's
//!   own rules
//!
//! The `SAFETY` comments of the ops name these rules.

use crate::error::{Error, Result};
use crate::operands::{Access, Operand};
use crate::ops::Rules;
use crate::program::Program;
use crate::state::StatePlan;

impl Program {
    /// Checks all ops against the buffers and a state plan.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the op, its layer, and the rule that it breaks.
    pub fn validate(&self, file: &str, plan: &StatePlan) -> Result<()> {
        for (index, op) in self.ops.iter().enumerate() {
            let layer = self.layer_of(index);
            let broken = self.broken_access(&op.access(), layer, plan);
            let mut rules = Rules::new(plan, broken);
            op.check(&mut rules);
            if let Some(rule) = rules.broken() {
                let place = layer.map_or_else(String::new, |layer| format!("layers[{layer}], "));
                return Err(Error::Unsupported {
                    file: file.into(),
                    what: format!("{place}op {}: {rule}", op.name()),
                });
            }
        }
        Ok(())
    }

    /// Returns the first of the rules for all ops that `access` breaks.
    fn broken_access(
        &self,
        access: &Access,
        layer: Option<usize>,
        plan: &StatePlan,
    ) -> Option<String> {
        for operand in access.reads.iter().chain(&access.writes) {
            match *operand {
                Operand::Columns(view) => {
                    let width = self.widths.get(view.buffer).copied().unwrap_or(0);
                    if view.start + view.width > view.stride || view.stride > width {
                        return Some(format!("{view:?} lies outside a buffer of {width} columns"));
                    }
                }
                Operand::State(tensor) => {
                    let owner = plan.tensors().get(tensor).and_then(|tensor| tensor.layer);
                    if owner.is_none() || owner > layer {
                        return Some(format!("state tensor {tensor} belongs to a later layer"));
                    }
                }
            }
        }
        for (index, written) in access.writes.iter().enumerate() {
            let others = &access.writes[index + 1..];
            if others.iter().any(|other| other.overlaps(written)) {
                return Some(format!("{written:?} is written twice"));
            }
            let Operand::Columns(view) = written else {
                continue;
            };
            let in_buffer = |read: &Operand| matches!(read, Operand::Columns(read) if read.buffer == view.buffer);
            if !access.reads.contains(written) && access.reads.iter().any(in_buffer) {
                return Some(format!("{view:?} is written in a buffer that is read"));
            }
            let meets = |read: &&Operand| read.overlaps(written) && !access.writes.contains(read);
            if let Some(read) = access.reads.iter().find(meets) {
                return Some(format!(
                    "{read:?} is read and overlaps {view:?}, which is written"
                ));
            }
        }
        None
    }
}
