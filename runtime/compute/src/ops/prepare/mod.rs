//! Prepares projected values for the recurrence or attention: short convolutions, feature maps, head norms, rotary positions,
//! gates. Works in place, with one task per head.

mod conv;
mod cpu;
mod gate;
pub(crate) mod launch;
mod map;
mod rope;

pub use conv::Conv;
pub use gate::Gate;
pub use map::{Growth, HeadOp};
pub use rope::{Rope, RopeScaling};

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Prepares head groups, then gates.
pub struct Prepare {
    /// Head groups: columns of one buffer that are prepared head by head.
    pub groups: Vec<HeadGroup>,
    /// Rotary positions, if a head group has [`HeadOp::Rope`].
    pub rope: Option<Rope>,
    /// Columns that are mapped token by token.
    pub gates: Vec<(View, Gate)>,
}

/// Columns whose heads are all treated alike.
pub struct HeadGroup {
    /// The columns.
    pub view: View,
    /// Width of a head; divides the view's width.
    pub head_dim: usize,
    /// A causal convolution over time of each channel, before the maps.
    pub conv: Option<Conv>,
    /// The maps that follow, in order.
    pub maps: Vec<HeadOp>,
}

impl HeadGroup {
    /// Columns without heads, split into parts as wide as the largest divisor of their number up to 128, so that threads can
    /// share them.
    pub fn per_channel(view: View, conv: Option<Conv>, maps: Vec<HeadOp>) -> Self {
        let divides = |n: &usize| view.width.is_multiple_of(*n);
        HeadGroup {
            view,
            head_dim: (1..=128).rev().find(divides).unwrap_or(1),
            conv,
            maps,
        }
    }
}

impl HeadGroup {
    /// Columns that the head group reads in addition to its own: the gate of its convolution and the sources of its maps, each
    /// with its required width.
    fn sources(&self) -> impl Iterator<Item = (View, usize)> {
        let heads = self.view.width / self.head_dim;
        let gate = self.conv.as_ref().and_then(|conv| conv.gate);
        let maps = self.maps.iter().filter_map(move |map| {
            let (_, width) = map.source_columns(0, self.head_dim);
            Some((*map.source()?, heads * width))
        });
        gate.into_iter()
            .map(|gate| (gate, self.view.width))
            .chain(maps)
    }
}

impl Prepare {
    /// The state tensors that the op reads and writes.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> {
        let histories = self.groups.iter().filter_map(|group| group.conv.as_ref());
        let sums = self.gates.iter().filter_map(|(_, gate)| match gate {
            Gate::RunningSoftmax { state, .. } => Some(*state),
            _ => None,
        });
        histories.map(|conv| conv.state).chain(sums)
    }
}

impl Op for Prepare {
    fn access(&self) -> Access {
        let groups = || self.groups.iter().map(|group| group.view);
        let gates = || self.gates.iter().map(|(view, _)| *view);
        // A gate over the results of head groups runs after them and uses the same columns: only other gates need more.
        let own_gates = gates().filter(|gate| !groups().any(|group| group.contains(gate)));
        let in_gate = |group: &View| gates().any(|gate| gate != *group && gate.contains(group));
        let sources = self.groups.iter().flat_map(HeadGroup::sources);
        Access::default()
            .reads(sources.map(|(view, _)| view))
            .writes(self.rope.as_ref().map(|rope| rope.table))
            .updates(groups().filter(|group| !in_gate(group)).chain(own_gates))
            .state(self.tensors())
    }

    fn is_tokenwise(&self) -> bool {
        let mut maps = self.groups.iter().flat_map(|group| &group.maps);
        self.rope.is_none()
            && !maps.any(|map| matches!(map, HeadOp::Grow(_)))
            && self.tensors().next().is_none()
    }

    fn check(&self, rules: &mut Rules) {
        rules.in_one_buffer("head groups", self.groups.iter().map(|group| group.view));
        for group in &self.groups {
            rules.multiple("a head group", group.view, group.head_dim);
            if let Some(conv) = &group.conv {
                let taps = conv.weight.len() / group.view.width;
                rules.state(conv.state, &[Some(taps - 1), Some(group.view.width)]);
            }
            for (source, width) in group.sources() {
                rules.width("an additional input of a head group", source, width);
                let groups = self.groups.iter().map(|group| group.view);
                rules.unwritten("an additional input of a head group", source, groups);
            }
        }
        for (view, gate) in &self.gates {
            if let Gate::RunningSoftmax { state, .. } = gate {
                rules.state(*state, &[Some(2), Some(view.width)]);
            }
        }
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        self.tensors()
            .map(|tensor| Touched::whole(plan, tensor))
            .collect()
    }
}
