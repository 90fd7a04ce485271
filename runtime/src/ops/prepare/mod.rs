//! What happens to projected values before they meet the state: short convolutions, feature maps, head norms,
//! rotary positions, gates. In place, one task a head.

mod conv;
mod finish;
mod gate;
pub(crate) mod launch;
mod map;
mod rope;

pub use conv::Conv;
use conv::HeadColumns;
pub use gate::Gate;
pub use map::HeadOp;
pub use rope::{Rope, RopeScaling};

use super::{Access, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// Head groups, then gates.
pub struct Prepare {
    /// Columns of one buffer that are prepared head by head.
    pub groups: Vec<HeadGroup>,
    /// Positions, where a head group has [`HeadOp::Rope`].
    pub rope: Option<Rope>,
    /// Columns that are mapped token by token.
    pub gates: Vec<(View, Gate)>,
}

/// Columns with the same treatment of each head.
pub struct HeadGroup {
    /// The columns.
    pub view: View,
    /// Width of a head; divides the view's width.
    pub head_dim: usize,
    /// A causal convolution over time of each channel, before the maps.
    pub conv: Option<Conv>,
    /// What follows, in order.
    pub maps: Vec<HeadOp>,
}

impl HeadGroup {
    /// Columns without heads: parts as wide as a divisor of their number up to 128, so that threads can share them.
    pub fn of_channels(view: View, conv: Option<Conv>, maps: Vec<HeadOp>) -> Self {
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
    /// Columns that the head group reads besides its own: those of its convolution's gate and of its maps.
    fn sources(&self) -> impl Iterator<Item = View> {
        let gate = self.conv.as_ref().and_then(|conv| conv.gate);
        let maps = self.maps.iter().filter_map(|map| map.source().copied());
        gate.into_iter().chain(maps)
    }
}

impl Prepare {
    /// The state tensors that are read and written.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = usize> {
        let histories = self.groups.iter().filter_map(|group| group.conv.as_ref());
        let sums = self.gates.iter().filter_map(|(_, gate)| match gate {
            Gate::RunningSoftmax { state, .. } => Some(*state),
            _ => None,
        });
        histories.map(|conv| conv.state).chain(sums)
    }

    fn run_lanes(&self, frame: &mut Frame, values: &mut [f32]) {
        let View { buffer, stride, .. } = self.groups[0].view;
        let values = Shared::new(values);
        // Columns that a head group reads besides its own.
        let columns = |view: &View, t: usize, column: usize, dim: usize| {
            let start = t * view.stride + view.start + column;
            match view.buffer == buffer {
                // SAFETY: no head group changes columns that another one reads (rule: beside).
                true => unsafe { values.read(start..start + dim) },
                false => &frame.buffers.get(view.buffer)[start..start + dim],
            }
        };
        let state = frame.arena.shared();
        let angles = self
            .rope
            .as_ref()
            .map(|rope| (frame.buffers.get(rope.table.buffer), rope.table.width));
        let heads = self
            .groups
            .iter()
            .map(|group| group.view.width / group.head_dim)
            .sum();
        frame.pool.each(heads, |worker, task| {
            let mut scratch = frame.scratch[worker].lock().expect("scratch");
            let (group, head) = self.group_of(task);
            let column = head * group.head_dim;
            simd::vectorize(
                #[inline(always)]
                || {
                    let tokens = frame.tokens.len();
                    let head = |t: usize| {
                        let start = t * stride + group.view.start + column;
                        // SAFETY: each task has its own head's columns of the values (rules: widths, disjoint writes).
                        unsafe { values.part(start..start + group.head_dim) }
                    };
                    if let Some(conv) = &group.conv {
                        if let Some(gate) = &conv.gate {
                            for t in 0..tokens {
                                simd::multiply(columns(gate, t, column, group.head_dim), head(t));
                            }
                        }
                        let head = HeadColumns {
                            values: &values,
                            stride,
                            column,
                            tokens,
                        };
                        // SAFETY: each task has its own head's columns of the values and of the history (rules: widths, disjoint writes).
                        unsafe { group.convolve(conv, &head, &state, &mut scratch) };
                    }
                    for t in 0..tokens {
                        let angles = angles
                            .map_or(&[][..], |(table, angles)| &table[t * angles..][..angles]);
                        for map in &group.maps {
                            let source = map
                                .source()
                                .map_or(&[][..], |view| columns(view, t, column, group.head_dim));
                            map.apply(angles, source, head(t), &mut scratch);
                        }
                    }
                },
            );
        });
    }

    /// The head group that the task belongs to, and its head within the head group.
    fn group_of(&self, mut task: usize) -> (&HeadGroup, usize) {
        for group in &self.groups {
            let heads = group.view.width / group.head_dim;
            if task < heads {
                return (group, task);
            }
            task -= heads;
        }
        unreachable!("tasks are counted over the head groups")
    }
}

impl Op for Prepare {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        if let Some(rope) = &self.rope {
            let angles = rope.table.width;
            let table = frame.buffers.get_mut(rope.table.buffer);
            for t in 0..tokens {
                rope.fill(
                    frame.position + t as u64,
                    &mut table[t * angles..][..angles],
                );
            }
        }
        if let Some(first) = self.groups.first() {
            let mut values = frame.buffers.take(first.view.buffer);
            self.run_lanes(frame, &mut values);
            frame.buffers.put(first.view.buffer, values);
        }
        for (view, gate) in &self.gates {
            let mut values = frame.buffers.take(view.buffer);
            let rows = Shared::new(&mut values);
            let columns = |t: usize| {
                let first = t * view.stride + view.start;
                // SAFETY: each token's gates are computed once.
                unsafe { rows.part(first..first + view.width) }
            };
            match gate {
                Gate::RunningSoftmax { state, .. } => {
                    let state = frame.arena.tensor_mut(*state);
                    (0..tokens).for_each(|t| gate.apply(columns(t), state));
                }
                _ => frame.each_token(|t| gate.apply(columns(t), &mut [])),
            }
            frame.buffers.put(view.buffer, values);
        }
    }

    fn access(&self) -> Access {
        let groups = || self.groups.iter().map(|group| group.view);
        let gates = || self.gates.iter().map(|(view, _)| *view);
        // A gate of what head groups leave comes after them: of the two, the wider columns hold both.
        let own_gates = gates().filter(|gate| !groups().any(|group| group.contains(gate)));
        let in_gate = |group: &View| gates().any(|gate| gate != *group && gate.contains(group));
        Access::default()
            .reads(self.groups.iter().flat_map(HeadGroup::sources))
            .writes(self.rope.as_ref().map(|rope| rope.table))
            .updates(groups().filter(|group| !in_gate(group)).chain(own_gates))
            .state(self.tensors())
    }

    fn is_tokenwise(&self) -> bool {
        self.rope.is_none() && self.tensors().next().is_none()
    }

    fn check(&self, rules: &mut Rules) {
        rules.together("head groups", self.groups.iter().map(|group| group.view));
        for group in &self.groups {
            rules.multiple("a head group", group.view, group.head_dim);
            if let Some(conv) = &group.conv {
                let taps = conv.weight.len() / group.view.width;
                rules.state(conv.state, &[Some(taps - 1), Some(group.view.width)]);
            }
            for source in group.sources() {
                rules.width("what a head group reads besides", source, group.view.width);
                let groups = self.groups.iter().map(|group| group.view);
                rules.beside("what a head group reads besides", source, groups);
            }
        }
        for (view, gate) in &self.gates {
            if let Gate::RunningSoftmax { state, .. } = gate {
                rules.state(*state, &[Some(2), Some(view.width)]);
            }
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        // The convolution's history, or the input of a linear map.
        let room = |group: &HeadGroup| {
            let past = group
                .conv
                .as_ref()
                .map_or(0, |conv| conv.weight.len() / group.view.width - 1);
            past.max(1) * group.head_dim
        };
        self.groups.iter().map(room).max().unwrap_or(0)
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        self.tensors()
            .map(|tensor| Touched::whole(plan, tensor))
            .collect()
    }
}
