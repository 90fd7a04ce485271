//! In a persistent program, what can be done to a value alone is done by the product that makes it, and a norm of keys and queries
//! by the recurrence that reads them: each phase less saves the time that its blocks wait for each other.

use std::ops::Range;

use bytemuck::Zeroable;

use super::launch::{
    ACTIVATION, DeviceGate, DeviceLane, DeviceMap, L2_NORM, MOST_LANES, RUNNING_SOFTMAX, SOFTMAX,
    Tasks,
};
use crate::cuda::{Address, Launches, Parameter, Rows};

/// Most taps of a convolution that a product does: one for each of the lanes that share a row.
const MOST_TAPS: i32 = 4;

impl Tasks {
    /// What is left when the product that was appended last finishes the rows that it can.
    pub(super) fn without_finished(self, launches: &mut Launches) -> Self {
        let mut left = Tasks {
            lanes: 0,
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
        for (index, lane) in self.lanes().iter().enumerate() {
            let own = lane.leading_activations();
            let possible = (own > 0 || lane.weight != 0)
                && lane.gate.first == 0
                && lane.taps <= MOST_TAPS
                && !sources.iter().any(|rows| overlap(*rows, lane.columns));
            let mut rest = *lane;
            if possible && product.finish(lane.columns, index) {
                finished.lane[index] = DeviceLane {
                    maps: own as i32,
                    ..*lane
                };
                rest = lane.behind(own);
            }
            if rest.maps > 0 || rest.weight != 0 {
                left.lane[left.lanes as usize] = rest;
                left.lanes += 1;
            }
        }
        for (index, gate) in self.gates().iter().enumerate() {
            if gate.is_alone() && product.finish(gate.columns, MOST_LANES + index) {
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

    /// The columns, if all that there is to do is to give their heads the length of one.
    pub(super) fn unit_heads(&self) -> Option<Vec<Rows>> {
        let lanes = self.lanes();
        let unit =
            |lane: &DeviceLane| lane.weight == 0 && lane.maps == 1 && lane.at[0].kind == L2_NORM;
        let only = self.gates == 0 && lanes.iter().all(unit);
        only.then(|| lanes.iter().map(|lane| lane.columns).collect())
    }

    /// What it changes in place.
    pub(super) fn written(&self) -> Vec<Range<Address>> {
        let lanes = self.lanes().iter().map(|lane| lane.columns);
        let gates = self.gates().iter().map(|gate| gate.columns);
        lanes.chain(gates).map(Rows::bytes).collect()
    }

    /// What it reads besides.
    pub(super) fn read(&self) -> Vec<Range<Address>> {
        self.sources().map(Rows::bytes).collect()
    }

    /// Numbers the blocks: those of the heads, and all.
    pub(super) fn number(&mut self) -> [usize; 2] {
        let mut blocks = 0;
        for lane in &mut self.lane[..self.lanes as usize] {
            lane.first = blocks;
            blocks += lane.columns.width / lane.head_dim;
        }
        let heads = blocks;
        for gate in &mut self.gate[..self.gates as usize] {
            gate.first = blocks;
            blocks += (gate.columns.width as usize).div_ceil(gate.span as usize) as i32;
        }
        [heads, blocks].map(|blocks| blocks as usize)
    }

    fn lanes(&self) -> &[DeviceLane] {
        &self.lane[..self.lanes as usize]
    }

    fn gates(&self) -> &[DeviceGate] {
        &self.gate[..self.gates as usize]
    }

    /// Columns that maps and convolutions read.
    fn sources(&self) -> impl Iterator<Item = Rows> {
        let maps = self.lanes().iter().flat_map(|lane| lane.maps());
        let gates = self.lanes().iter().map(|lane| lane.gate);
        let sources = maps.map(|map| map.source).chain(gates);
        sources.filter(|rows| rows.first != 0)
    }
}

impl DeviceLane {
    fn maps(&self) -> &[DeviceMap] {
        &self.at[..self.maps as usize]
    }

    fn leading_activations(&self) -> usize {
        let maps = self.maps().iter();
        maps.take_while(|map| map.kind == ACTIVATION).count()
    }

    /// What is left behind the convolution and so many maps.
    fn behind(&self, maps: usize) -> Self {
        let mut rest = DeviceLane {
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
    /// Whether a value meets no other.
    fn is_alone(&self) -> bool {
        self.kind != SOFTMAX && self.kind != RUNNING_SOFTMAX
    }
}

fn overlap(a: Rows, b: Rows) -> bool {
    let end = |rows: Rows| rows.first + rows.width as u64 * size_of::<f32>() as u64;
    a.first < end(b) && b.first < end(a)
}
