//! The fused operations that programs are made of. Each takes one or more tokens; a step is a chunk of one.

mod activation;
mod attend;
mod attend_blocks;
mod capped_set;
mod embed;
mod emit;
mod logits;
mod mlp;
mod norm;
mod partitions;
mod prepare;
mod project;
mod recur;
mod recur_chunk;
#[cfg(test)]
mod rig;
mod route;
mod score;
mod slots;
mod softmax;

pub use activation::Activation;
pub use attend::{Attend, Eviction};
pub use attend_blocks::AttendBlocks;
pub use embed::Embed;
pub use emit::{Emit, Finish};
pub use logits::Logits;
pub use mlp::Mlp;
pub use norm::Norm;
pub use partitions::Partitions;
pub use prepare::{Conv, Gate, Lane, Map, Prepare, Rope, RopeScaling};
pub use project::{Linear, Project};
pub use recur::{Decay, HeadGates, Key, Recur, Write};
pub use route::Route;
pub use score::{RouterLayer, Score, ScoreMap};
pub use slots::Slots;

use crate::cpu::Frame;

/// One fused operation.
pub enum Stage {
    /// Rows of the embedding into the residual stream.
    Embed(Embed),
    /// Norm, then matrices with a common input.
    Project(Project),
    /// Short convolutions, feature maps, head norms, rotary positions and gates, in place.
    Prepare(Prepare),
    /// A linear recurrence on matrix states.
    Recur(Recur),
    /// A linear recurrence in partitions, of which each token uses a few.
    Partitions(Partitions),
    /// The choice of partitions.
    Route(Route),
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
            Stage::Recur(stage) => stage.run(frame),
            Stage::Partitions(stage) => stage.run(frame),
            Stage::Route(stage) => stage.run(frame),
            Stage::Slots(stage) => stage.run(frame),
            Stage::Score(stage) => stage.run(frame),
            Stage::Attend(stage) => stage.run(frame),
            Stage::AttendBlocks(stage) => stage.run(frame),
            Stage::Emit(stage) => stage.run(frame),
            Stage::Mlp(stage) => stage.run(frame),
        }
    }

    /// Floats of scratch memory that one worker needs for chunks of up to `chunk` tokens.
    pub(crate) fn scratch(&self, chunk: usize) -> usize {
        match self {
            Stage::Prepare(stage) => stage.scratch(chunk),
            Stage::Recur(stage) => stage.scratch(chunk),
            Stage::Partitions(stage) => stage.scratch(chunk),
            Stage::Slots(stage) => stage.scratch(chunk),
            Stage::Score(stage) => stage.scratch(chunk),
            Stage::Attend(stage) => stage.scratch(),
            Stage::AttendBlocks(stage) => stage.scratch(),
            _ => 0,
        }
    }

    /// Bytes of weights that one token touches.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Stage::Embed(stage) => stage.matrix.bytes().len() / stage.matrix.rows(),
            Stage::Project(stage) => stage.linears.iter().map(|l| l.matrix.bytes().len()).sum(),
            Stage::Score(stage) => stage.weight_bytes(),
            Stage::Emit(stage) => stage.matrix.bytes().len(),
            Stage::Mlp(stage) => {
                stage.gate.bytes().len() + stage.up.bytes().len() + stage.down.bytes().len()
            }
            Stage::Prepare(_) | Stage::Recur(_) | Stage::Slots(_) => 0,
            Stage::Partitions(_) | Stage::Route(_) => 0,
            Stage::Attend(_) | Stage::AttendBlocks(_) => 0,
        }
    }
}
