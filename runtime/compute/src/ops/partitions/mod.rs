//! A recurrence over a state in partitions. Each token writes and reads only the partitions that a router chose for it. The
//! others do not change, not even by decay.
//!
//! Each partition is an independent recurrence over the chunk's tokens that chose it. The chunk's length decides how these
//! tokens are gathered:
//!
//! - tokens: one token after another, each over its partitions
//! - masked: all tokens for every partition; tokens that did not choose it neither write nor read its state
//! - grouped: for every partition only the tokens that chose it
//!
//! A GPU also groups the tokens of a chunk, unless there are few for each partition (`matrix_form`).

mod cpu;
mod launch;
mod matrix_form;

use super::recur::{Finish, Recur};
use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// A recurrence in partitions.
pub struct Partitions {
    /// The recurrence in one partition, with as many states as heads. Its state tensor is `[partitions, heads, dk, dv]`.
    pub recur: Recur,
    /// Number of partitions of the state.
    pub partitions: usize,
    /// Output of [`super::Route`]: partition numbers and their weights, `[2, chosen]`.
    pub route: View,
    /// Number of chosen partitions, from the first on, that are written.
    pub writers: usize,
    /// Number of chosen partitions, from the first on, that are read.
    pub readers: usize,
    /// Whether a partition's weight multiplies the query.
    pub weigh_queries: bool,
    /// Whether a partition's weight multiplies the key.
    pub weigh_keys: bool,
    /// Whether query and key are normalized to unit length after weighting, `x / sqrt(sum x^2 + 1e-6)`.
    pub unit_length: bool,
    /// Whether the inputs hold separate columns for each partition, one partition after another.
    pub own_columns: bool,
    /// Whether the result is added to the output's previous contents.
    pub add: bool,
}

impl Partitions {
    /// Number of partitions that a token writes or reads.
    pub(super) fn chosen(&self) -> usize {
        self.writers.max(self.readers)
    }
}

impl Op for Partitions {
    fn access(&self) -> Access {
        let access = Access::default()
            .reads(self.recur.columns())
            .reads([self.route])
            .state([self.recur.state]);
        if self.add {
            access.updates([self.recur.out])
        } else {
            access.writes([self.recur.out])
        }
    }

    fn check(&self, rules: &mut Rules) {
        let Recur { heads, dk, dv, .. } = self.recur;
        rules.width("out", self.recur.out, heads * dv);
        let shape = [self.partitions, heads, dk, dv].map(Some);
        rules.state(self.recur.state, &shape);
        let Finish { skip, gate } = &self.recur.finish;
        let finishes = usize::from(skip.is_some()) + usize::from(gate.is_some());
        rules.equal("number of changes to outputs", finishes, 0);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        let chosen = self.chosen();
        vec![Touched::entries(plan, self.recur.state, chosen, chosen)]
    }
}
