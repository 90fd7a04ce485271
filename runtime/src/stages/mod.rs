//! The fused operations that programs are made of. Each takes one or more tokens; a step is a chunk of one.

mod activation;
mod attend;
mod attend_blocks;
mod capped_set;
mod conv_chosen;
mod embed;
mod emit;
mod hax;
mod hax_sources;
mod logits;
mod mlp;
mod norm;
mod partitions;
mod prepare;
mod project;
mod recur;
mod recur_chunk;
#[cfg(test)]
mod recur_tests;
mod replace;
#[cfg(test)]
pub(crate) mod rig;
mod route;
mod scan;
mod score;
mod slots;
mod softmax;
mod token_shift;

pub use activation::Activation;
pub use attend::{Attend, Eviction, Policy, ScoreSlots};
pub use attend_blocks::AttendBlocks;
pub use conv_chosen::{ChosenLane, ConvChosen};
pub use embed::Embed;
pub use emit::{Emit, Finish};
pub use hax::Hax;
pub use hax_sources::{Hash, Pattern, Scorer, Sources};
pub use logits::Logits;
pub use mlp::Mlp;
pub use norm::Norm;
pub use partitions::Partitions;
pub(crate) use prepare::launch::SOURCE as PREPARE_SOURCE;
pub use prepare::{Conv, Gate, Lane, Map, Prepare, Rope, RopeScaling};
pub use project::{Linear, Project};
pub use recur::{Decay, HeadGates, Key, Recur, Write};
pub use replace::{FirstValues, Replace};
pub use route::Route;
pub use scan::Scan;
pub use score::{RouterLayer, Score, ScoreMap};
pub use slots::Slots;
pub use token_shift::TokenShift;

use crate::cpu::Frame;
use crate::cuda::Launches;
use crate::error::Result;
use crate::state::{StatePlan, Touched};

/// One fused operation.
pub enum Stage {
    /// Rows of the embedding into the residual stream.
    Embed(Embed),
    /// Norm, then matrices with a common input.
    Project(Project),
    /// Short convolutions, feature maps, head norms, rotary positions and gates, in place.
    Prepare(Prepare),
    /// Norm, then mixes of each token with the one before.
    TokenShift(TokenShift),
    /// Keys that remove a part of a state, and what is written instead.
    Replace(Replace),
    /// A linear recurrence on matrix states.
    Recur(Recur),
    /// A linear recurrence in partitions, of which each token uses a few.
    Partitions(Partitions),
    /// The choice of partitions.
    Route(Route),
    /// Short convolutions over the tokens that chose a partition.
    ConvChosen(ConvChosen),
    /// A recurrence on a vector of states of each channel.
    Scan(Scan),
    /// Sparse attention beside a state-space model.
    Hax(Hax),
    /// Attention over a fixed number of slots.
    Slots(Slots),
    /// Scores of the retention router.
    Score(Score),
    /// Softmax attention over cached keys.
    Attend(Attend),
    /// Softmax attention over block means, chosen blocks and a window.
    AttendBlocks(AttendBlocks),
    /// Head norm, output gate, output matrix, sum into the residual stream.
    Emit(Emit),
    /// Norm, gated feed-forward network, sum into the residual stream.
    Mlp(Mlp),
}

impl Stage {
    /// Runs the stage on the CPU over the frame's tokens.
    pub(crate) fn run(&self, frame: &mut Frame) {
        match self {
            Stage::Embed(stage) => stage.run(frame),
            Stage::Project(stage) => stage.run(frame),
            Stage::Prepare(stage) => stage.run(frame),
            Stage::TokenShift(stage) => stage.run(frame),
            Stage::Replace(stage) => stage.run(frame),
            Stage::Recur(stage) => stage.run(frame),
            Stage::Partitions(stage) => stage.run(frame),
            Stage::Route(stage) => stage.run(frame),
            Stage::ConvChosen(stage) => stage.run(frame),
            Stage::Scan(stage) => stage.run(frame),
            Stage::Hax(stage) => stage.run(frame),
            Stage::Slots(stage) => stage.run(frame),
            Stage::Score(stage) => stage.run(frame),
            Stage::Attend(stage) => stage.run(frame),
            Stage::AttendBlocks(stage) => stage.run(frame),
            Stage::Emit(stage) => stage.run(frame),
            Stage::Mlp(stage) => stage.run(frame),
        }
    }

    /// Writes the stage's kernels for a device.
    pub(crate) fn launch(&self, launches: &mut Launches) -> Result<()> {
        match self {
            Stage::Embed(stage) => stage.launch(launches),
            Stage::Project(stage) => stage.launch(launches),
            Stage::Prepare(stage) => stage.launch(launches),
            Stage::TokenShift(stage) => stage.launch(launches),
            Stage::Replace(stage) => stage.launch(launches),
            Stage::Recur(stage) => stage.launch(launches),
            Stage::Partitions(stage) => stage.launch(launches),
            Stage::Route(stage) => stage.launch(launches),
            Stage::Scan(stage) => stage.launch(launches),
            Stage::ConvChosen(stage) => stage.launch(launches),
            Stage::Hax(stage) => stage.launch(launches),
            Stage::Slots(stage) => stage.launch(launches),
            Stage::Score(stage) => stage.launch(launches),
            Stage::Attend(stage) => stage.launch(launches),
            Stage::AttendBlocks(stage) => stage.launch(launches),
            Stage::Emit(stage) => stage.launch(launches),
            Stage::Mlp(stage) => stage.launch(launches),
        }
    }

    /// Floats of scratch memory that one worker needs for chunks of up to `chunk` tokens.
    pub(crate) fn scratch(&self, chunk: usize) -> usize {
        match self {
            Stage::Prepare(stage) => stage.scratch(chunk),
            Stage::TokenShift(stage) => stage.scratch(),
            Stage::Recur(stage) => stage.scratch(chunk),
            Stage::Partitions(stage) => stage.scratch(chunk),
            Stage::Hax(stage) => stage.scratch(),
            Stage::Slots(stage) => stage.scratch(chunk),
            Stage::Score(stage) => stage.scratch(chunk),
            Stage::Attend(stage) => stage.scratch(),
            Stage::AttendBlocks(stage) => stage.scratch(),
            _ => 0,
        }
    }

    /// Floats of memory that all workers see.
    pub(crate) fn common(&self, threads: usize) -> usize {
        match self {
            Stage::AttendBlocks(stage) => stage.common(threads),
            _ => 0,
        }
    }

    /// Bytes of weights that one token touches.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Stage::Embed(stage) => stage.matrix.bytes().len() / stage.matrix.rows(),
            Stage::Project(stage) => stage.weight_bytes(),
            Stage::Hax(stage) => stage.sources.weight_bytes(),
            Stage::Score(stage) => stage.weight_bytes(),
            Stage::Emit(stage) => stage.matrix.bytes().len(),
            Stage::Mlp(stage) => {
                stage.gate.bytes().len() + stage.up.bytes().len() + stage.down.bytes().len()
            }
            Stage::Prepare(_) | Stage::Recur(_) | Stage::Scan(_) | Stage::Slots(_) => 0,
            Stage::TokenShift(_) | Stage::Replace(_) => 0,
            Stage::Partitions(_) | Stage::Route(_) | Stage::ConvChosen(_) => 0,
            Stage::Attend(_) | Stage::AttendBlocks(_) => 0,
        }
    }

    /// What reading the token at `position` touches of the slots of `plan`.
    pub fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let whole = |slot: usize| Touched::whole(plan, slot);
        match self {
            Stage::Prepare(stage) => stage.slots().map(whole).collect(),
            Stage::TokenShift(stage) => vec![whole(stage.slot)],
            Stage::Recur(stage) => vec![whole(stage.slot)],
            Stage::Partitions(stage) => {
                let chosen = stage.touched();
                vec![Touched::entries(plan, stage.recur.slot, chosen, chosen)]
            }
            Stage::ConvChosen(stage) => {
                let chosen = stage.route.width / 2;
                let slots = stage.lanes.iter().map(|lane| lane.conv.slot);
                let touched = |slot| Touched::entries(plan, slot, chosen, chosen);
                slots.map(touched).collect()
            }
            Stage::Scan(stage) => vec![whole(stage.slot)],
            Stage::Hax(stage) => stage.touched(plan, position),
            Stage::Slots(stage) => vec![whole(stage.keys), whole(stage.values)],
            Stage::Score(stage) => stage.layers.iter().map(|layer| whole(layer.slot)).collect(),
            Stage::Attend(stage) => stage.touched(plan, position),
            Stage::AttendBlocks(stage) => stage.touched(plan, position),
            Stage::Embed(_) | Stage::Project(_) | Stage::Replace(_) | Stage::Route(_) => Vec::new(),
            Stage::Emit(_) | Stage::Mlp(_) => Vec::new(),
        }
    }

    /// Bytes of the state that reading the token at `position` touches, those read and those written.
    pub fn state_bytes(&self, plan: &StatePlan, position: u64) -> usize {
        self.touched(plan, position)
            .iter()
            .map(Touched::bytes)
            .sum()
    }
}
