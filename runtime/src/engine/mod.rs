//! Where a session computes and its state lies: one trait, implemented for the CPU and for a GPU.

mod cpu;
mod cuda;
mod draft;
mod host_batch;
mod slots;
mod step;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use cpu::plan_reading;
pub(crate) use host_batch::plan_verifier;
pub(crate) use step::StepForm;
pub use step::StepProgram;

use waterline_quant::ProductObserver;

use crate::bound::Model;
use crate::cpu::Pool;
use crate::cuda::{Device, OpTime};
use crate::error::{Error, Result};
use crate::sampler::SamplerParams;
use crate::state::{Arena, Kv, StatePlan};

/// A session's state, and what runs a program over it.
pub(crate) trait Engine: Send {
    /// The state as far as the host has it: all of it on the CPU; of a state on a device the position, the sampler and the
    /// history, which come first.
    fn arena(&self) -> &Arena;

    /// As [`Engine::arena`], mutable. A device has its own copy of the parts that a session changes
    /// there.
    fn arena_mut(&mut self) -> &mut Arena;

    /// The layout of the whole state.
    fn plan(&self) -> &Arc<StatePlan>;

    /// Bytes of working memory besides state and marks.
    fn work_bytes(&self) -> usize;

    /// Bytes of a device's memory that weights, state and working memory take.
    fn device_bytes(&self) -> usize {
        0
    }

    /// Empties the state.
    fn reset(&mut self) -> Result<()>;

    /// From now on `observer` sees each product.
    fn observe_products(&mut self, _observer: ProductObserver) -> Result<()> {
        Err(Error::invalid("products", "are observed on the CPU only"))
    }

    /// Reads a chunk of tokens into the layers' state; position and history are the session's to move on.
    fn read(&mut self, tokens: &[u32]) -> Result<()>;

    /// The state's logits become those after this token of the last chunk.
    fn compute_logits(&mut self, row: usize) -> Result<()>;

    /// Writes the logits `[rows, vocab]` after these tokens of the last chunk; the state's become the last ones.
    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// The state's logits, `[vocab]`.
    fn logits(&self) -> Result<&[f32]>;

    /// Whether [`Engine::step`] chooses tokens in this way.
    fn chooses(&self, _params: &SamplerParams) -> bool {
        false
    }

    /// The most probable token, if it is known already.
    fn next(&self) -> Option<u32> {
        None
    }

    /// Chooses a token by the state's logits and reads it. Called only where [`Engine::chooses`] is true.
    fn step(&mut self, _params: &SamplerParams) -> Result<u32> {
        Err(Error::invalid("step", "this engine chooses no tokens"))
    }

    /// How a step runs on a device.
    fn form(&self) -> Option<&StepForm> {
        None
    }

    /// Chooses the most probable token, reads it and measures its ops, where they can be told apart: not on a GPU whose step is a
    /// recorded graph.
    fn time_step(&mut self) -> Result<Option<(u32, Vec<OpTime>)>> {
        Ok(None)
    }

    /// A second engine with a copy of the state.
    fn fork(&self, setup: &Setup) -> Result<Box<dyn Engine>>;

    /// Writes the whole state to `state`, an arena of the same plan.
    fn download(&self, state: &mut [u8]) -> Result<()>;

    /// Replaces the whole state by `state`, an arena of the same plan.
    fn upload(&mut self, state: &[u8]) -> Result<()>;

    /// Begins to copy the state as it is now, with the rows of the tokens at these positions. Reading goes on meanwhile, and no other
    /// copy begins before [`Engine::end_copy`].
    fn begin_copy(&mut self, positions: Range<u64>) -> Result<()>;

    /// Ends the copy that was begun.
    fn end_copy(&mut self) -> Result<StateCopy>;

    /// Copies parts of the state, one after the other, to `bytes`, which they fill.
    fn copy_out(
        &mut self,
        parts: &mut dyn Iterator<Item = Range<usize>>,
        bytes: &mut [u8],
    ) -> Result<()>;

    /// Replaces parts of the state by bytes of the same length.
    fn copy_in(&mut self, copies: &mut dyn Iterator<Item = (Range<usize>, &[u8])>) -> Result<()>;

    /// Fills these parts of the state with zeros.
    fn clear(&mut self, parts: &mut dyn Iterator<Item = Range<usize>>) -> Result<()>;

    /// The state's position, sampler and history are those that the host has.
    fn replace_own(&mut self) -> Result<()> {
        Ok(())
    }

    /// Copies the state to mark number `mark`.
    fn save_mark(&mut self, mark: usize) -> Result<()>;

    /// Copies mark number `mark` to the state.
    fn load_mark(&mut self, mark: usize) -> Result<()>;

    /// Memory to step up to `most` states like this one together.
    fn group(&self, most: usize) -> Result<Box<dyn Group>>;

    /// Memory to verify up to `most` tokens in one pass, or fewer if the engine has no program for `most`, and if
    /// `drafts` for [`Verifier::draft`].
    fn verifier(&self, most: usize, drafts: bool) -> Result<Box<dyn Verifier>>;

    /// The engine on a device, if it is one: what works on its state there.
    fn on_device(&mut self) -> Option<&mut cuda::CudaEngine> {
        None
    }
}

/// A copy of a state.
pub(crate) struct StateCopy {
    /// The rows that the tokens at some positions have written.
    pub rows: Vec<u8>,
    /// The tensors that later tokens overwrite.
    pub present: Vec<u8>,
}

/// An empty vector that holds `bytes` without asking again, or the system's refusal.
fn checkpoint_room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    let asked = waterline_quant::ask_room(bytes).is_ok();
    if asked && room.try_reserve_exact(bytes).is_ok() {
        return Ok(room);
    }
    let advice = "give the prefix store fewer bytes";
    Err(Error::memory("a checkpoint", advice))
}

/// The error of [`Engine::end_copy`] without a copy.
fn no_copy() -> Error {
    Error::invalid("a copy", "none was begun")
}

/// An engine among others, and how its session chooses.
pub(crate) struct Member<'a> {
    pub engine: &'a mut dyn Engine,
    pub params: &'a SamplerParams,
}

/// Engines that step together.
pub(crate) trait Members {
    /// How many there are.
    fn count(&self) -> usize;

    /// Number `index` of them.
    fn member(&mut self, index: usize) -> Member<'_>;
}

/// Steps the states of several engines of one kind, reading each matrix once. Positions and histories are the sessions' to move on.
pub(crate) trait Group: Send {
    /// Bytes of working memory besides the engines' own.
    fn bytes(&self) -> usize;

    /// Member i reads `tokens[i]`.
    fn read(&mut self, members: &mut dyn Members, tokens: &[u32]) -> Result<()>;

    /// Member i chooses `tokens[i]` and reads it; false, and nothing is done, where the sessions have to choose.
    fn step(&mut self, _members: &mut dyn Members, _tokens: &mut [u32]) -> Result<bool> {
        Ok(false)
    }
}

/// Reads several tokens into the state of the engine that it was made for, each with the bits of a step, reading each matrix once.
/// The first ones that turn out right are accepted.
pub(crate) trait Verifier: Send {
    /// Most tokens at once.
    fn most(&self) -> usize;

    /// Bytes of working memory besides one state.
    fn bytes(&self) -> usize;

    /// Appends up to `count` tokens to `tokens`, predicted by the model's MTP block after the last one, which the state has not
    /// read. The state does not change.
    fn draft(&mut self, engine: &mut dyn Engine, tokens: &mut Vec<u32>, count: usize)
    -> Result<()>;

    /// Reads tokens; with `choose`, the most probable token after each may be chosen.
    fn read(&mut self, engine: &mut dyn Engine, tokens: &[u32], choose: bool) -> Result<()>;

    /// The most probable token after token `row`, if it was chosen; beyond the vocabulary if the logits are not finite.
    fn chosen(&self, _row: usize) -> Option<u32> {
        None
    }

    /// The logits `[vocab]` after token `row` of the last reading.
    fn logits(&mut self, row: usize) -> Result<&[f32]>;

    /// Accepts the first tokens of the last reading, which had at least two: restores the state and replays only the ops with
    /// a state from saved inputs. No weights are read.
    fn commit(&mut self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()>;

    /// Ends a reading: the state's logits become those after token `row`.
    fn end(&mut self, engine: &mut dyn Engine, row: usize) -> Result<()>;
}

/// Settings of an engine.
pub(crate) struct Setup {
    /// Where it runs; none means the CPU.
    pub device: Option<Arc<Device>>,
    /// Threads of the CPU.
    pub pool: Arc<Pool>,
    /// Most tokens of a chunk.
    pub chunk: usize,
    /// States to return to.
    pub marks: usize,
    /// Type of cached keys and values.
    pub kv: Kv,
    /// How a step runs on a device.
    pub step: StepProgram,
    /// Chunks have the bits of steps, too.
    pub exact: bool,
    /// Most tokens between the checkpoints of a prompt; 0 where none are taken.
    pub grid: usize,
}

/// Allocates an engine with an empty state. This is the one place that binds a session to a device.
pub(crate) fn new(
    model: &Arc<Model>,
    plan: Arc<StatePlan>,
    setup: &Setup,
) -> Result<Box<dyn Engine>> {
    // Before anything is touched: a state and marks that can never fit.
    let bytes = plan.bytes().saturating_mul(setup.marks.saturating_add(1));
    if waterline_quant::ask_room(bytes).is_err() {
        let what = format!("a session of {bytes} bytes");
        return Err(Error::memory(
            what,
            "choose a smaller context or fewer marks",
        ));
    }
    match &setup.device {
        None => Ok(Box::new(cpu::CpuEngine::new(model, plan, setup)?)),
        Some(device) => Ok(Box::new(cuda::CudaEngine::new(model, device, plan, setup)?)),
    }
}
