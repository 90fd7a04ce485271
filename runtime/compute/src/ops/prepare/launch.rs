//! Launches of the kernels in `prepare.cu`.

use bytemuck::{Pod, Zeroable};
use waterline_kernels::{File, file};

use super::{Conv, Gate, HeadGroup, HeadOp, Prepare};
use crate::cuda::{Address, Call, Grid, Launches, Parameter, Rows};
use crate::error::Result;
use crate::operands::View;
use crate::ops::DeviceOp;

const SOURCE: &[File] = &[file("ops/prepare/prepare.cu")];

/// Kinds of head ops, `MAP_…` in prepare.cu.
pub(super) mod map_kind {
    pub const ACTIVATION: i32 = 0;
    pub const L2_NORM: i32 = 1;
    pub const SUM_NORM: i32 = 2;
    pub const SOFTMAX: i32 = 3;
    pub const LINEAR: i32 = 4;
    pub const ADD: i32 = 5;
    pub const COPY: i32 = 6;
    pub const NORM: i32 = 7;
    pub const ROPE: i32 = 8;
    pub const LARGEST: i32 = 9;
    pub const WHERE: i32 = 10;
    pub const MULTIPLY: i32 = 11;
    pub const GATE: i32 = 12;
    pub const WEIGH: i32 = 13;
    pub const WRITE_STRENGTH: i32 = 14;
}

/// Kinds of gates, `GATE_…` in prepare.cu.
pub(super) mod gate_kind {
    pub const DECAY: i32 = 0;
    pub const BOUNDED_DECAY: i32 = 1;
    pub const LOG_SIGMOID: i32 = 2;
    pub const LOWER_BOUND: i32 = 3;
    pub const SIGMOID: i32 = 4;
    pub const STEP: i32 = 5;
    pub const SOFTMAX: i32 = 6;
    pub const FORGET: i32 = 7;
    pub const RUNNING_SOFTMAX: i32 = 8;
    pub const CONSTANT: i32 = 9;
    pub const EXPONENTIAL: i32 = 10;
}

pub(super) const MOST_MAPS: usize = 6;
pub(super) const MOST_GROUPS: usize = 6;
pub(super) const MOST_GATES: usize = 6;

/// Tokens of a block where there are many.
const TILE: usize = 32;
const THREADS: usize = 128;
/// Columns of a gate that a block takes.
const SPAN: usize = 128;

/// `PrepareMap` in prepare.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct DeviceMap {
    pub source: Rows,
    pub weight: Address,
    pub bias: Address,
    pub eps: f32,
    pub kind: i32,
    pub function: i32,
    pub pad: i32,
}

/// `HeadGroup` in prepare.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct DeviceHeadGroup {
    pub columns: Rows,
    pub gate: Rows,
    pub weight: Address,
    pub bias: Address,
    pub past: Address,
    pub before: Address,
    pub taps: i32,
    pub head_dim: i32,
    pub first: i32,
    pub maps: i32,
    pub at: [DeviceMap; MOST_MAPS],
}

/// `PrepareGate` in prepare.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct DeviceGate {
    pub columns: Rows,
    pub rate: Address,
    pub bias: Address,
    pub state: Address,
    pub scale: f32,
    pub low: f32,
    pub high: f32,
    pub kind: i32,
    pub first: i32,
    pub span: i32,
}

/// `PrepareTasks` in prepare.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Tasks {
    pub groups: i32,
    pub gates: i32,
    pub frequencies: Address,
    pub pairs: i32,
    pub magnitude: f32,
    pub group: [DeviceHeadGroup; MOST_GROUPS],
    pub gate: [DeviceGate; MOST_GATES],
}

impl DeviceOp for Prepare {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let (mut groups, mut gates) = (&self.groups[..], &self.gates[..]);
        // Gates that read the results of groups wait for them; otherwise both run at once.
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
        let mut tasks = Tasks {
            groups: groups.len() as i32,
            gates: gates.len() as i32,
            ..Tasks::zeroed()
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
        if launches.persistent() {
            tasks = tasks.without_finished(launches);
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
                source: SOURCE,
                kernel: format!("keep_inputs<{TILE}>"),
                grid: Grid::EachTile(heads, TILE),
                threads: THREADS,
                shared: 0,
                parameters: vec![Parameter::value("PrepareTasks", tasks), Parameter::tokens()],
            });
        }
        let rows = match (step, past) {
            (true, _) => 2,
            (false, 0) => 2 * THREADS / 32,
            (false, _) => THREADS / 32 + TILE,
        };
        let call = Call {
            source: SOURCE,
            kernel: format!("prepare<{}>", if step { 0 } else { TILE }),
            grid: Grid::EachTile(blocks, if step { 1 } else { TILE }),
            threads: THREADS,
            shared: rows * widest * size_of::<f32>(),
            parameters: vec![
                Parameter::value("PrepareTasks", tasks),
                launches.position(),
                Parameter::tokens(),
            ],
        };
        launches.push_prefetching(call);
        launches.narrow_accesses(&tasks.read(), &tasks.written());
        launches.is_block_local();
        if step && let Some(work) = tasks.on_single_values() {
            launches.may_finish(work);
        }
        launches.deferred = tasks.deferred().filter(|_| launches.read_once);
        Ok(())
    }
}

impl HeadGroup {
    /// Inputs that the convolution keeps.
    fn past(&self, conv: &Conv) -> usize {
        conv.weight.len() / self.view.width - 1
    }

    fn on_device(&self, launches: &mut Launches) -> Result<DeviceHeadGroup> {
        let mut group = DeviceHeadGroup {
            columns: launches.rows(self.view),
            head_dim: self.head_dim as i32,
            maps: self.maps.len() as i32,
            ..DeviceHeadGroup::zeroed()
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
    fn on_device(&self, launches: &Launches) -> Result<DeviceMap> {
        let kind = |kind| DeviceMap {
            kind,
            ..DeviceMap::zeroed()
        };
        Ok(match self {
            HeadOp::Activation(function) => DeviceMap {
                function: *function as i32,
                ..kind(map_kind::ACTIVATION)
            },
            HeadOp::L2Norm => kind(map_kind::L2_NORM),
            HeadOp::SumNorm => kind(map_kind::SUM_NORM),
            HeadOp::Softmax => kind(map_kind::SOFTMAX),
            HeadOp::Linear(matrix) => DeviceMap {
                weight: launches.vector_address(matrix)?,
                ..kind(map_kind::LINEAR)
            },
            HeadOp::Add(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::ADD)
            },
            HeadOp::Copy(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::COPY)
            },
            HeadOp::Rms(norm) => DeviceMap {
                weight: launches.vector_address(&norm.weight)?,
                bias: launches.optional_address(norm.bias.as_ref())?,
                eps: norm.eps,
                function: norm.centred.into(),
                ..kind(map_kind::NORM)
            },
            HeadOp::WriteStrength => kind(map_kind::WRITE_STRENGTH),
            HeadOp::Rope => kind(map_kind::ROPE),
            HeadOp::Largest(count) => DeviceMap {
                function: i32::try_from(*count).expect("a count within a head"),
                ..kind(map_kind::LARGEST)
            },
            HeadOp::Where(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::WHERE)
            },
            HeadOp::Multiply(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::MULTIPLY)
            },
            HeadOp::Gate(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::GATE)
            },
            HeadOp::Weigh(view) => DeviceMap {
                source: launches.rows(*view),
                ..kind(map_kind::WEIGH)
            },
        })
    }
}

impl Gate {
    fn on_device(&self, view: View, launches: &Launches) -> Result<DeviceGate> {
        let mut gate = DeviceGate {
            columns: launches.rows(view),
            span: SPAN as i32,
            ..DeviceGate::zeroed()
        };
        match self {
            Gate::Decay { rate, bias } => {
                gate.kind = gate_kind::DECAY;
                gate.rate = launches.vector_address(rate)?;
                gate.bias = launches.vector_address(bias)?;
            }
            Gate::BoundedDecay { rate, bias, bound } => {
                gate.kind = gate_kind::BOUNDED_DECAY;
                gate.rate = launches.vector_address(rate)?;
                gate.bias = launches.vector_address(bias)?;
                gate.low = *bound;
            }
            Gate::LogSigmoid { scale, min } => {
                gate.kind = gate_kind::LOG_SIGMOID;
                (gate.scale, gate.low) = (*scale, *min);
            }
            Gate::LowerBound(bounds) => {
                gate.kind = gate_kind::LOWER_BOUND;
                gate.bias = launches.vector_address(bounds)?;
            }
            Gate::Exponential => gate.kind = gate_kind::EXPONENTIAL,
            Gate::Sigmoid { scale } => {
                gate.kind = gate_kind::SIGMOID;
                gate.scale = *scale;
            }
            Gate::Step { bias, min, max } => {
                gate.kind = gate_kind::STEP;
                gate.bias = launches.vector_address(bias)?;
                (gate.low, gate.high) = (*min, *max);
            }
            Gate::Softmax => {
                gate.kind = gate_kind::SOFTMAX;
                gate.span = view.width as i32;
            }
            Gate::Forget { scale } => {
                gate.kind = gate_kind::FORGET;
                gate.scale = *scale;
            }
            Gate::RunningSoftmax { clamp, state } => {
                gate.kind = gate_kind::RUNNING_SOFTMAX;
                [gate.low, gate.high] = *clamp;
                gate.state = launches.state_address(*state);
            }
            Gate::Constant(constants) => {
                gate.kind = gate_kind::CONSTANT;
                gate.bias = launches.vector_address(constants)?;
            }
        }
        Ok(gate)
    }
}
