//! In a decode kernel, and in a batch, the product that makes a value applies the parts of `prepare` that need no other value, and the recurrence that reads
//! keys and queries normalizes them, or attention rotates them: every op less saves a synchronization.

use std::ops::Range;

use bytemuck::Zeroable;

use super::launch::{
    DeviceGate, DeviceHeadGroup, DeviceMap, MOST_GROUPS, Tasks, gate_kind, map_kind,
};
use crate::cuda::{Address, Deferred, Finish, Launches, Parameter, RotaryInputs, Rotation, Rows};

/// Most taps of a convolution that a product does: one for each of the lanes that share a row.
const MOST_TAPS: i32 = 4;

impl Tasks {
    /// The work that remains when the epilogue of the last appended product finishes the rows that
    /// it can.
    pub(super) fn without_finished(self, launches: &mut Launches) -> Self {
        let mut left = Tasks {
            groups: 0,
            gates: 0,
            ..self
        };
        let mut finished = Tasks::zeroed();
        let Some((call, product)) = launches.last_gemv() else {
            return self;
        };
        // A product has room for one set of tasks.
        if product.has_row_ops() {
            return self;
        }
        let sources: Vec<Rows> = self.sources().collect();
        for (index, group) in self.groups().iter().enumerate() {
            let own = group.leading_activations();
            let possible = (own > 0 || group.weight != 0)
                && group.gate.first == 0
                && group.taps <= MOST_TAPS
                && !sources.iter().any(|rows| overlap(*rows, group.columns));
            let mut rest = *group;
            if possible && product.finish(group.columns, index) {
                finished.group[index] = DeviceHeadGroup {
                    maps: own as i32,
                    ..*group
                };
                rest = group.behind(own);
            }
            if rest.maps > 0 || rest.weight != 0 {
                left.group[left.groups as usize] = rest;
                left.groups += 1;
            }
        }
        for (index, gate) in self.gates().iter().enumerate() {
            if gate.is_alone() && product.finish(gate.columns, MOST_GROUPS + index) {
                finished.gate[index] = *gate;
            } else {
                left.gate[left.gates as usize] = *gate;
                left.gates += 1;
            }
        }
        if product.has_row_ops() {
            call.parameters
                .push(Parameter::value("PrepareTasks", finished));
            launches.join_last();
        }
        left
    }

    /// The remaining work, if the next op may perform it.
    pub(super) fn deferred(&self) -> Option<Deferred> {
        if self.gates > 0 || self.groups().iter().any(|group| group.weight != 0) {
            return None;
        }
        let is_only =
            |group: &DeviceHeadGroup, kind| matches!(group.maps(), [map] if map.kind == kind);
        let unit = |group| is_only(group, map_kind::L2_NORM);
        let copied = |group| is_only(group, map_kind::COPY);
        let rotated = |group: &DeviceHeadGroup| {
            let [copy, rope] = group.maps() else {
                return false;
            };
            (copy.kind, rope.kind) == (map_kind::COPY, map_kind::ROPE)
        };
        match self.groups() {
            [q, k] if unit(q) && unit(k) => Some(Deferred::UnitHeads([q.columns, k.columns])),
            [q, k, v] if rotated(q) && rotated(k) && copied(v) && q.head_dim == k.head_dim => {
                Some(Deferred::Rotation(Rotation {
                    columns: [q, k, v].map(|group| group.columns),
                    head_dim: q.head_dim,
                    from: RotaryInputs {
                        columns: [q, k, v].map(|group| group.at[0].source),
                        frequencies: self.frequencies,
                        pairs: self.pairs,
                        magnitude: self.magnitude,
                    },
                }))
            }
            _ => None,
        }
    }

    /// These tasks as work that a product of a batch's slots may do, if all of it is on single values.
    pub(super) fn on_single_values(&self) -> Option<Finish> {
        let groups = self.groups();
        let alone = groups.iter().all(DeviceHeadGroup::is_alone)
            && self.gates().iter().all(DeviceGate::is_alone);
        let convolved = groups.iter().filter(|group| group.weight != 0);
        alone.then(|| Finish::Work {
            columns: self.written(),
            states: convolved.map(|group| group.past).collect(),
        })
    }

    /// Columns that are changed in place.
    pub(super) fn written(&self) -> Vec<Range<Address>> {
        let groups = self.groups().iter().map(|group| group.columns);
        let gates = self.gates().iter().map(|gate| gate.columns);
        groups.chain(gates).map(Rows::bytes).collect()
    }

    /// Columns that are only read.
    pub(super) fn read(&self) -> Vec<Range<Address>> {
        self.sources().map(Rows::bytes).collect()
    }

    /// Numbers the blocks: those of the heads, and all.
    pub(super) fn number(&mut self) -> [usize; 2] {
        let mut blocks = 0;
        for group in &mut self.group[..self.groups as usize] {
            group.first = blocks;
            blocks += group.columns.width / group.head_dim;
        }
        let heads = blocks;
        for gate in &mut self.gate[..self.gates as usize] {
            gate.first = blocks;
            blocks += (gate.columns.width as usize).div_ceil(gate.span as usize) as i32;
        }
        [heads, blocks].map(|blocks| blocks as usize)
    }

    fn groups(&self) -> &[DeviceHeadGroup] {
        &self.group[..self.groups as usize]
    }

    fn gates(&self) -> &[DeviceGate] {
        &self.gate[..self.gates as usize]
    }

    /// Columns that maps and convolutions read.
    fn sources(&self) -> impl Iterator<Item = Rows> {
        let maps = self.groups().iter().flat_map(|group| group.maps());
        let gates = self.groups().iter().map(|group| group.gate);
        let sources = maps.map(|map| map.source).chain(gates);
        sources.filter(|rows| rows.first != 0)
    }
}

impl DeviceHeadGroup {
    fn maps(&self) -> &[DeviceMap] {
        &self.at[..self.maps as usize]
    }

    /// Whether values are independent of one another.
    fn is_alone(&self) -> bool {
        self.gate.first == 0
            && self.taps <= MOST_TAPS
            && self.leading_activations() == self.maps as usize
    }

    fn leading_activations(&self) -> usize {
        let maps = self.maps().iter();
        maps.take_while(|map| map.kind == map_kind::ACTIVATION)
            .count()
    }

    /// The head group after the convolution and this many maps.
    fn behind(&self, maps: usize) -> Self {
        let mut rest = DeviceHeadGroup {
            weight: 0,
            taps: 0,
            maps: self.maps - maps as i32,
            ..*self
        };
        rest.at.rotate_left(maps);
        rest
    }
}

impl DeviceGate {
    /// Whether values are independent of one another.
    fn is_alone(&self) -> bool {
        self.kind != gate_kind::SOFTMAX && self.kind != gate_kind::RUNNING_SOFTMAX
    }
}

fn overlap(a: Rows, b: Rows) -> bool {
    let end = |rows: Rows| rows.first + rows.width as u64 * size_of::<f32>() as u64;
    a.first < end(b) && b.first < end(a)
}
