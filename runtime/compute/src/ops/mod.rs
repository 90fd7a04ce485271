//! The fused operations that programs are made of. Each takes one or more tokens; a step is a chunk of one.

mod attend;
mod attend_blocks;
mod capped_set;
mod conv_chosen;
mod embed;
mod emit;
pub(crate) mod experts;
mod frame;
mod hax;
mod hax_sources;
mod head_linear;
mod logits;
mod mlp;
mod normalize;
mod partitions;
mod prepare;
mod project;
mod recur;
mod replace;
mod rg_lru;
#[cfg(test)]
pub(crate) mod rig;
mod route;
mod rules;
mod scan;
mod score;
mod slots;
mod softmax;
mod token_shift;
pub(crate) mod trapezoid;

pub use attend::{Attend, Eviction, Policy, ScoreTensors};
pub use attend_blocks::AttendBlocks;
pub use conv_chosen::{ChosenGroup, ConvChosen};
pub use embed::Embed;
pub use emit::Emit;
pub use experts::{Expert, ExpertBiases, Experts, SharedExpert};
pub use hax::Hax;
pub use hax_sources::{Hash, Pattern, Scorer, Sources};
pub use head_linear::HeadLinear;
pub use logits::Logits;
pub use mlp::Mlp;
pub use normalize::Normalize;
pub use partitions::Partitions;
pub use prepare::{Conv, Gate, Growth, HeadGroup, HeadOp, Prepare, Rope, RopeScaling};
pub use project::{Linear, Project};
pub use recur::{Decay, Finish, HeadGates, Key, Recur, Write};
pub use replace::{FirstValues, Replace};
pub use rg_lru::{HeadMatrices, RgLru};
pub use route::{Groups, Route, Router, Scoring};
pub(crate) use rules::Rules;
pub use scan::Scan;
pub use score::{RouterLayer, Score, ScoreMap};
pub use slots::Slots;
pub use token_shift::TokenShift;
pub use trapezoid::{Trapezoid, TrapezoidOutputs, TrapezoidState};

use crate::cpu::Frame;
use crate::cuda::Launches;
use crate::error::Result;
use crate::operands::{Access, Operand};
use crate::state::{StatePlan, Touched};

/// How an op runs on a device.
pub trait DeviceOp {
    /// Appends the op's kernel calls to `launches`.
    fn launch(&self, launches: &mut Launches) -> Result<()>;

    /// Whether a step of the op uses all SMs, so that ops that run concurrently divide them.
    fn fills_device(&self) -> bool {
        false
    }

    /// Whether the op's kernels for several tokens are bit-identical to single-token steps.
    fn runs_as_steps(&self) -> bool {
        false
    }
}

/// How an op runs on a CPU.
pub trait CpuOp {
    /// Runs the op over the frame's tokens.
    fn run(&self, frame: &mut Frame);

    /// Whether a chunk of tokens on one state is bit-identical to single steps when the frame is in step order.
    fn reads_chunks_as_steps(&self) -> bool {
        false
    }

    /// Floats of scratch memory that one worker needs for chunks of up to `chunk` tokens.
    fn scratch(&self, _chunk: usize) -> usize {
        0
    }

    /// Floats of memory that all `threads` workers share.
    fn common(&self, _threads: usize) -> usize {
        0
    }
}

/// One fused operation of a [`crate::program::Program`], on both backends.
pub trait Op: CpuOp + DeviceOp + Send + Sync {
    /// All columns and state tensors that the op reads and writes, on any device.
    fn access(&self) -> Access;

    /// Whether each token is treated alike, independent of earlier tokens and of its position.
    fn is_tokenwise(&self) -> bool {
        let state = |operand: &Operand| matches!(operand, Operand::State(_));
        !self.access().reads.iter().any(state)
    }

    /// Whether the op makes a discrete choice (routing), so that a tiny difference in its input may change its output completely.
    fn is_discrete(&self) -> bool {
        false
    }

    /// Checks the op's requirements on its operands, beyond the rules for all ops, which are already checked.
    fn check(&self, _rules: &mut Rules) {}

    /// The op's name, for display.
    fn name(&self) -> &'static str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// Bytes of weights that one token reads.
    fn weight_bytes(&self) -> usize {
        0
    }

    /// The parts of the state tensors of `plan` that the token at `position` reads and writes.
    fn touched(&self, _plan: &StatePlan, _position: u64) -> Vec<Touched> {
        Vec::new()
    }
}
