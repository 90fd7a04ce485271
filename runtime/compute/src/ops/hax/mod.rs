//! Sparse attention in parallel with a state-space model (HAX, arXiv 2507.00449): one head, whose values are all
//! channels and whose query sees the union of a few small sources of earlier tokens.
//!
//! All sources store their tokens in rows of a common table of fixed size. The keys come first, token by token on one thread:
//! they decide which rows a token takes and which rows its query sees, with which weights. The values, which are wide, follow
//! that plan in columns on all threads. A query whose sources are empty gets zero.

mod cpu;
mod launch;

use super::hax_sources::Sources;
use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Sparse attention over a few sources of earlier tokens.
pub struct Hax {
    /// Keys `[width]`.
    pub k: View,
    /// Queries `[width]`.
    pub q: View,
    /// Values `[channels]`.
    pub v: View,
    /// The sources of keys.
    pub sources: Sources,
    /// The state tensor of the cached keys `[rows, width]`.
    pub keys: usize,
    /// The state tensor of the cached values `[rows, channels]`.
    pub values: usize,
    /// The state tensor of the position of each row's token plus one, `[rows]`; 0 marks an empty row.
    pub positions: usize,
    /// The state tensor of the mean key and the mean query so far, `[2, width]`.
    pub means: usize,
    /// The state tensor of the next row of each bin `[bins]`, if there are bins.
    pub cursors: Option<usize>,
    /// The state tensor of the scores of the selected keys, if keys are selected.
    pub scores: Option<usize>,
    /// Room for each token's plan, [`Sources::plan_width`].
    pub plan: View,
    /// Outputs `[channels]`.
    pub out: View,
}

impl Op for Hax {
    fn access(&self) -> Access {
        Access::default()
            .reads([self.k, self.q, self.v])
            .state([self.keys, self.values, self.positions, self.means])
            .state(self.cursors.into_iter().chain(self.scores))
            .writes([self.plan, self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let (rows, width) = (self.sources.rows(), self.k.width);
        rules.width("out", self.out, self.v.width);
        rules.width("plan", self.plan, self.sources.plan_width());
        rules.apart("plan and out", [self.plan, self.out]);
        rules.state(self.keys, &[Some(rows), Some(width)]);
        rules.state(self.values, &[Some(rows), Some(self.v.width)]);
        rules.state(self.positions, &[Some(rows)]);
        rules.state(self.means, &[Some(2), Some(width)]);
    }

    fn weight_bytes(&self) -> usize {
        self.sources.weight_bytes()
    }

    fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let (seen, taken) = self.sources.touched(position);
        let entries = |tensor, read, written| Touched::entries(plan, tensor, read, written);
        let mut all = vec![
            entries(self.keys, seen, taken),
            entries(self.values, seen, taken),
            // The positions of visible rows are read even while the rows are empty.
            entries(self.positions, self.sources.most(), taken),
            Touched::whole(plan, self.means),
        ];
        all.extend(self.cursors.map(|tensor| entries(tensor, 1, 1)));
        all.extend(self.scores.map(|tensor| {
            let full = position >= plan.tensors()[tensor].shape[0] as u64;
            entries(tensor, if full { usize::MAX } else { 0 }, 1)
        }));
        all
    }
}
