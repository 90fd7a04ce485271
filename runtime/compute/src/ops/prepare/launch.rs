//! Launches of the kernels in `prepare.cu`.

use bytemuck::Zeroable;

use super::{Conv, Gate, HeadGroup, HeadOp, Prepare};
use crate::cuda::{
    Call, GateKind, Grid, Launches, MOST_GATES, MOST_GROUPS, MOST_MAPS, MapKind, Node, Parameter,
    PrepareGate, PrepareGroup, PrepareMap, PrepareTasks, ROW_OPS,
};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

/// Tokens per thread block in a chunk.
const TILE: usize = 32;
const THREADS: usize = 128;
/// Columns of a gate per thread block.
const SPAN: usize = 128;

impl DeviceOp for Prepare {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (mut groups, mut gates) = (&self.groups[..], &self.gates[..]);
        // Gates that read the results of groups run after them; otherwise both run at once.
        let meet = gates.iter().any(|(gate, _)| {
            groups.iter().any(|group| {
                let view = group.view;
                gate.buffer == view.buffer
                    && gate.start < view.start + view.width
                    && view.start < gate.start + gate.width
            })
        });
        while !groups.is_empty() || !gates.is_empty() {
            let (some, rest) = groups.split_at(groups.len().min(MOST_GROUPS));
            let most = if meet && !some.is_empty() {
                0
            } else {
                MOST_GATES
            };
            let (gates_now, gates_left) = gates.split_at(gates.len().min(most));
            self.launch_some(some, gates_now, launches)?;
            (groups, gates) = (rest, gates_left);
        }
        Ok(())
    }
}

impl Prepare {
    fn launch_some(
        &self,
        groups: &[HeadGroup],
        gates: &[(View, Gate)],
        launches: &mut Launches,
    ) -> Result<()> {
        let mut tasks = PrepareTasks {
            groups: groups.len() as i32,
            gates: gates.len() as i32,
            ..PrepareTasks::zeroed()
        };
        if let Some(rope) = &self.rope {
            tasks.frequencies = launches.vector_address(&rope.frequencies)?;
            tasks.pairs = rope.frequencies.len() as i32;
            tasks.magnitude = rope.magnitude;
        }
        for (place, group) in tasks.group.iter_mut().zip(groups) {
            *place = group.on_device(launches)?;
        }
        for (place, (view, gate)) in tasks.gate.iter_mut().zip(gates) {
            *place = gate.on_device(*view, launches)?;
        }
        let [heads, blocks] = tasks.number();
        if blocks == 0 {
            return Ok(());
        }

        let step = launches.tokens == 1;
        let widest = groups.iter().map(|group| group.head_dim).max().unwrap_or(0);
        let past = |group: &HeadGroup| group.conv.as_ref().map_or(0, |conv| group.past(conv));
        let past = groups.iter().map(past).max().unwrap_or(0);
        if past > 0 && !step {
            launches.push(Call {
                source: ROW_OPS,
                kernel: format!("keep_inputs<{TILE}>"),
                grid: Grid::EachTile(heads, TILE),
                threads: THREADS,
                shared: 0,
                parameters: vec![Parameter::value(tasks), Parameter::tokens()],
            });
        }
        let rows = match (step, past) {
            (true, _) => 2,
            (false, 0) => 2 * THREADS / 32,
            (false, _) => THREADS / 32 + TILE,
        };
        let call = Call {
            source: ROW_OPS,
            kernel: format!("prepare<{}>", if step { 0 } else { TILE }),
            grid: Grid::EachTile(blocks, if step { 1 } else { TILE }),
            threads: THREADS,
            shared: rows * widest * size_of::<f32>(),
            parameters: vec![launches.position(), Parameter::tokens()],
        };
        let queued = launches.push_node(call, Node::Map(Box::new(tasks)));
        queued.block_local = true;
        Ok(())
    }
}

impl HeadGroup {
    /// Number of past inputs that the convolution keeps.
    fn past(&self, conv: &Conv) -> usize {
        conv.weight.len() / self.view.width - 1
    }

    fn on_device(&self, launches: &mut Launches) -> Result<PrepareGroup> {
        let mut group = PrepareGroup {
            columns: launches.rows(self.view),
            head_dim: self.head_dim as i32,
            maps: self.maps.len() as i32,
            ..PrepareGroup::zeroed()
        };
        if let Some(conv) = &self.conv {
            let past = self.past(conv);
            assert!(
                past <= TILE,
                "a convolution reaches at most {TILE} tokens back"
            );
            group.taps = past as i32 + 1;
            group.weight = launches.vector_address(&conv.weight)?;
            group.bias = launches.optional_address(conv.bias.as_ref())?;
            group.past = launches.state_address(conv.state);
            if let Some(gate) = conv.gate {
                group.gate = launches.rows(gate);
            }
            if launches.tokens > 1 {
                let tiles = launches.tokens.div_ceil(TILE);
                let bytes = tiles * past * self.view.width * size_of::<f32>();
                group.before = launches.scratch_address(bytes)?;
            }
        }
        assert!(self.maps.len() <= MOST_MAPS, "at most {MOST_MAPS} maps");
        for (place, map) in group.at.iter_mut().zip(&self.maps) {
            *place = map.on_device(launches)?;
        }
        Ok(group)
    }
}

impl HeadOp {
    fn on_device(&self, launches: &Launches) -> Result<PrepareMap> {
        let kind = |kind: MapKind| PrepareMap {
            kind: kind as i32,
            ..PrepareMap::zeroed()
        };
        Ok(match self {
            HeadOp::Activation(function) => PrepareMap {
                function: *function as i32,
                ..kind(MapKind::Activation)
            },
            HeadOp::L2Norm => kind(MapKind::L2Norm),
            HeadOp::SumNorm => kind(MapKind::SumNorm),
            HeadOp::Softmax => kind(MapKind::Softmax),
            HeadOp::Linear(matrix) => PrepareMap {
                weight: launches.vector_address(matrix)?,
                ..kind(MapKind::Linear)
            },
            HeadOp::Add(view) => PrepareMap {
                source: launches.rows(*view),
                ..kind(MapKind::Add)
            },
            HeadOp::Copy(view) => PrepareMap {
                source: launches.rows(*view),
                ..kind(MapKind::Copy)
            },
            HeadOp::Rms(norm) => PrepareMap {
                weight: launches.vector_address(&norm.weight)?,
                bias: launches.optional_address(norm.bias.as_ref())?,
                eps: norm.eps,
                function: norm.centred.into(),
                ..kind(MapKind::Norm)
            },
            HeadOp::WriteStrength => kind(MapKind::WriteStrength),
            HeadOp::Rope => kind(MapKind::Rope),
            HeadOp::Grow(growth) => PrepareMap {
                eps: growth.rate,
                period: growth.period.max(1),
                ..kind(MapKind::Grow)
            },
            HeadOp::Largest(count) => PrepareMap {
                function: i32::try_from(*count).expect("a count within a head"),
                ..kind(MapKind::Largest)
            },
            HeadOp::Where(view) => PrepareMap {
                source: launches.rows(*view),
                ..kind(MapKind::Where)
            },
            HeadOp::Multiply(view) => PrepareMap {
                source: launches.rows(*view),
                ..kind(MapKind::Multiply)
            },
            HeadOp::Gate(view, function) => PrepareMap {
                source: launches.rows(*view),
                function: *function as i32,
                ..kind(MapKind::Gate)
            },
            HeadOp::Scale(factor) => PrepareMap {
                eps: *factor,
                ..kind(MapKind::Scale)
            },
            HeadOp::Weigh(view) => PrepareMap {
                source: launches.rows(*view),
                ..kind(MapKind::Weigh)
            },
        })
    }
}

impl Gate {
    fn on_device(&self, view: View, launches: &Launches) -> Result<PrepareGate> {
        let mut gate = PrepareGate {
            columns: launches.rows(view),
            span: SPAN as i32,
            ..PrepareGate::zeroed()
        };
        match self {
            Gate::Decay { rate, bias } => {
                gate.kind = GateKind::Decay as i32;
                gate.rate = launches.vector_address(rate)?;
                gate.bias = launches.vector_address(bias)?;
            }
            Gate::BoundedDecay { rate, bias, bound } => {
                gate.kind = GateKind::BoundedDecay as i32;
                gate.rate = launches.vector_address(rate)?;
                gate.bias = launches.vector_address(bias)?;
                gate.low = *bound;
            }
            Gate::LogSigmoid { scale, min } => {
                gate.kind = GateKind::LogSigmoid as i32;
                (gate.scale, gate.low) = (*scale, *min);
            }
            Gate::LowerBound(bounds) => {
                gate.kind = GateKind::LowerBound as i32;
                gate.bias = launches.vector_address(bounds)?;
            }
            Gate::Exponential => gate.kind = GateKind::Exponential as i32,
            Gate::Sigmoid { scale } => {
                gate.kind = GateKind::Sigmoid as i32;
                gate.scale = *scale;
            }
            Gate::Step { bias, min, max } => {
                gate.kind = GateKind::Step as i32;
                gate.bias = launches.vector_address(bias)?;
                (gate.low, gate.high) = (*min, *max);
            }
            Gate::Softmax => {
                gate.kind = GateKind::Softmax as i32;
                gate.span = view.width as i32;
            }
            Gate::Forget { scale } => {
                gate.kind = GateKind::Forget as i32;
                gate.scale = *scale;
            }
            Gate::RunningSoftmax { clamp, state } => {
                gate.kind = GateKind::RunningSoftmax as i32;
                [gate.low, gate.high] = *clamp;
                gate.state = launches.state_address(*state);
            }
            Gate::Constant(constants) => {
                gate.kind = GateKind::Constant as i32;
                gate.bias = launches.vector_address(constants)?;
            }
        }
        Ok(gate)
    }
}
