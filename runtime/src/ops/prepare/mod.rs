//! What happens to projected values before they meet the state: short convolutions, feature maps, head norms,
//! rotary positions, gates. In place, one task a head.

mod conv;
mod finish;
mod gate;
pub(crate) mod launch;
mod map;
mod rope;

pub use conv::Conv;
pub use gate::Gate;
pub use map::Map;
pub use rope::{Rope, RopeScaling};

use super::{Access, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::program::View;
use crate::state::{StatePlan, Touched};
use crate::validate::Rules;

/// Lanes, then gates.
pub struct Prepare {
    /// Columns of one buffer that are prepared head by head.
    pub lanes: Vec<Lane>,
    /// Positions, where a lane has [`Map::Rope`].
    pub rope: Option<Rope>,
    /// Columns that are mapped token by token.
    pub gates: Vec<(View, Gate)>,
}

/// Columns with the same treatment of each head.
pub struct Lane {
    /// The columns.
    pub view: View,
    /// Width of a head; divides the view's width.
    pub head_dim: usize,
    /// A causal convolution over time of each channel, before the maps.
    pub conv: Option<Conv>,
    /// What follows, in order.
    pub maps: Vec<Map>,
}

impl Lane {
    /// Columns without heads: parts as wide as a divisor of their number up to 128, so that threads can share them.
    pub fn of_channels(view: View, conv: Option<Conv>, maps: Vec<Map>) -> Self {
        let divides = |n: &usize| view.width.is_multiple_of(*n);
        Lane {
            view,
            head_dim: (1..=128).rev().find(divides).unwrap_or(1),
            conv,
            maps,
        }
    }
}

impl Lane {
    /// Columns that the lane reads besides its own: those of its convolution's gate and of its maps.
    fn sources(&self) -> impl Iterator<Item = View> {
        let gate = self.conv.as_ref().and_then(|conv| conv.gate);
        let maps = self.maps.iter().filter_map(|map| map.source().copied());
        gate.into_iter().chain(maps)
    }
}

impl Prepare {
    /// The slots that are read and written.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> {
        let histories = self.lanes.iter().filter_map(|lane| lane.conv.as_ref());
        let sums = self.gates.iter().filter_map(|(_, gate)| match gate {
            Gate::RunningSoftmax { slot, .. } => Some(*slot),
            _ => None,
        });
        histories.map(|conv| conv.slot).chain(sums)
    }

    fn run_lanes(&self, frame: &mut Frame, values: &mut [f32]) {
        let View { buffer, stride, .. } = self.lanes[0].view;
        let values = Shared::new(values);
        // Columns that a lane reads besides its own.
        let columns = |view: &View, t: usize, column: usize, dim: usize| {
            let start = t * view.stride + view.start + column;
            match view.buffer == buffer {
                // SAFETY: no lane changes columns that another one reads (`check`: beside).
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
            .lanes
            .iter()
            .map(|lane| lane.view.width / lane.head_dim)
            .sum();
        frame.pool.each(heads, |worker, task| {
            let mut scratch = frame.scratch[worker].lock().expect("scratch");
            let (lane, head) = self.lane_of(task);
            let column = head * lane.head_dim;
            simd::vectorize(
                #[inline(always)]
                || {
                    let tokens = frame.tokens.len();
                    let head = |t: usize| {
                        let start = t * stride + lane.view.start + column;
                        // SAFETY: each task has its own head's columns of the values.
                        unsafe { values.part(start..start + lane.head_dim) }
                    };
                    if let Some(conv) = &lane.conv {
                        if let Some(gate) = &conv.gate {
                            for t in 0..tokens {
                                simd::multiply(columns(gate, t, column, lane.head_dim), head(t));
                            }
                        }
                        // SAFETY: each task has its own head's columns of the values and of the history.
                        unsafe {
                            lane.convolve(
                                conv,
                                &values,
                                stride,
                                column,
                                tokens,
                                &state,
                                &mut scratch,
                            )
                        };
                    }
                    for t in 0..tokens {
                        let angles = angles
                            .map_or(&[][..], |(table, angles)| &table[t * angles..][..angles]);
                        for map in &lane.maps {
                            let source = map
                                .source()
                                .map_or(&[][..], |view| columns(view, t, column, lane.head_dim));
                            map.apply(angles, source, head(t), &mut scratch);
                        }
                    }
                },
            );
        });
    }

    /// The lane that the task belongs to, and its head within the lane.
    fn lane_of(&self, mut task: usize) -> (&Lane, usize) {
        for lane in &self.lanes {
            let heads = lane.view.width / lane.head_dim;
            if task < heads {
                return (lane, task);
            }
            task -= heads;
        }
        unreachable!("tasks are counted over the lanes")
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
        if let Some(first) = self.lanes.first() {
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
                Gate::RunningSoftmax { slot, .. } => {
                    let state = frame.arena.slot_mut(*slot);
                    (0..tokens).for_each(|t| gate.apply(columns(t), state));
                }
                _ => frame.each_token(|t| gate.apply(columns(t), &mut [])),
            }
            frame.buffers.put(view.buffer, values);
        }
    }

    fn access(&self) -> Access {
        let lanes = || self.lanes.iter().map(|lane| lane.view);
        let gates = || self.gates.iter().map(|(view, _)| *view);
        // A gate of what lanes leave comes after them: of the two, the wider columns hold both.
        let own_gates = gates().filter(|gate| !lanes().any(|lane| lane.contains(gate)));
        let in_gate = |lane: &View| gates().any(|gate| gate != *lane && gate.contains(lane));
        Access::default()
            .reads(self.lanes.iter().flat_map(Lane::sources))
            .writes(self.rope.as_ref().map(|rope| rope.table))
            .updates(lanes().filter(|lane| !in_gate(lane)).chain(own_gates))
            .state(self.slots())
    }

    fn is_tokenwise(&self) -> bool {
        self.rope.is_none() && self.slots().next().is_none()
    }

    fn check(&self, rules: &mut Rules) {
        rules.together("lanes", self.lanes.iter().map(|lane| lane.view));
        for lane in &self.lanes {
            rules.multiple("a lane", lane.view, lane.head_dim);
            if let Some(conv) = &lane.conv {
                let taps = conv.weight.len() / lane.view.width;
                rules.state(conv.slot, &[Some(taps - 1), Some(lane.view.width)]);
            }
            for source in lane.sources() {
                rules.width("what a lane reads besides", source, lane.view.width);
                let lanes = self.lanes.iter().map(|lane| lane.view);
                rules.beside("what a lane reads besides", source, lanes);
            }
        }
        for (view, gate) in &self.gates {
            if let Gate::RunningSoftmax { slot, .. } = gate {
                rules.state(*slot, &[Some(2), Some(view.width)]);
            }
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        // The convolution's history, or the input of a linear map.
        let room = |lane: &Lane| {
            let past = lane
                .conv
                .as_ref()
                .map_or(0, |conv| conv.weight.len() / lane.view.width - 1);
            past.max(1) * lane.head_dim
        };
        self.lanes.iter().map(room).max().unwrap_or(0)
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        self.slots()
            .map(|slot| Touched::whole(plan, slot))
            .collect()
    }
}
