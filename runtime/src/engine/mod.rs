//! Where a session computes and keeps its state: one trait, implemented for the CPU and for GPUs.

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

use crate::cpu::Pool;
use crate::cuda::Device;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::op_time::OpTime;
use crate::sampler::SamplerParams;
use crate::state::{Arena, Kv, StatePlan};

/// A session's state and the code that runs a program over it.
pub(crate) trait Engine: Send {
    /// The part of the state in host memory: all of it on the CPU; for a device only the position, the sampler and the history, which
    /// come first in the layout.
    fn arena(&self) -> &Arena;

    /// Like [`Engine::arena`], but mutable. A device also has copies of these parts.
    fn arena_mut(&mut self) -> &mut Arena;

    /// The layout of the complete state.
    fn plan(&self) -> &Arc<StatePlan>;

    /// Size of working memory in bytes, without state and marks.
    fn work_bytes(&self) -> usize;

    /// Device memory in bytes of weights, state and working memory.
    fn device_bytes(&self) -> usize {
        0
    }

    /// Resets the state to that of an empty session.
    fn reset(&mut self) -> Result<()>;

    /// From now on calls `observer` with every matrix product.
    fn observe_products(&mut self, _observer: ProductObserver) -> Result<()> {
        Err(Error::invalid(
            "products",
            "can be observed only on the CPU",
        ))
    }

    /// Reads a chunk of tokens into the layers' state; the session advances position and history.
    fn read(&mut self, tokens: &[u32]) -> Result<()>;

    /// Like [`Engine::read`], but a single token computes no logits either. [`Engine::compute_logits`] may follow.
    fn read_layers(&mut self, tokens: &[u32]) -> Result<()> {
        self.read(tokens)
    }

    /// Copies the residual stream `[rows, hidden]` after these tokens of the last chunk, which [`Engine::read_layers`] read.
    fn residual(&self, rows: Range<usize>, stream: &mut [f32]) -> Result<()>;

    /// Makes the state's logits invalid: no token can be chosen from them.
    fn invalidate_logits(&mut self) -> Result<()>;

    /// Computes the logits after token `row` of the last chunk into the state.
    fn compute_logits(&mut self, row: usize) -> Result<()>;

    /// Computes the logits `[rows, vocab]` after these tokens of the last chunk; the state keeps those of the last row.
    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()>;

    /// The state's logits, `[vocab]`.
    fn logits(&self) -> Result<&[f32]>;

    /// Whether [`Engine::step`] can choose tokens with these parameters.
    fn can_choose(&self, _params: &SamplerParams) -> bool {
        false
    }

    /// The most probable token, if already known.
    fn next(&self) -> Option<u32> {
        None
    }

    /// Chooses a token from the state's logits and reads it. Called only if [`Engine::can_choose`] returns true.
    fn step(&mut self, _params: &SamplerParams) -> Result<u32> {
        Err(Error::invalid("step", "this engine cannot choose tokens"))
    }

    /// How a step runs on a device.
    fn form(&self) -> Option<&StepForm> {
        None
    }

    /// Chooses the most probable token, reads it and measures each op. Returns `None` on a GPU whose step is a recorded graph, where ops
    /// cannot be measured separately.
    fn time_step(&mut self) -> Result<Option<(u32, Vec<OpTime>)>> {
        Ok(None)
    }

    /// Creates a second engine with a copy of the state.
    fn fork(&self, setup: &Setup) -> Result<Box<dyn Engine>>;

    /// Copies the complete state to `state`, an arena of the same plan.
    fn download(&self, state: &mut [u8]) -> Result<()>;

    /// Replaces the complete state with `state`, an arena of the same plan.
    fn upload(&mut self, state: &[u8]) -> Result<()>;

    /// Begins to copy the current state with the rows of the tokens at these positions. Reading may continue meanwhile; the next copy
    /// may begin only after [`Engine::end_copy`].
    fn begin_copy(&mut self, positions: Range<u64>) -> Result<()>;

    /// Waits for the copy and returns it.
    fn end_copy(&mut self) -> Result<StateCopy>;

    /// Copies parts of the state to consecutive ranges of `bytes`, which they fill.
    fn copy_out(
        &mut self,
        parts: &mut dyn Iterator<Item = Range<usize>>,
        bytes: &mut [u8],
    ) -> Result<()>;

    /// Overwrites parts of the state with bytes of the same length.
    fn copy_in(&mut self, copies: &mut dyn Iterator<Item = (Range<usize>, &[u8])>) -> Result<()>;

    /// Fills parts of the state with zeros.
    fn clear(&mut self, parts: &mut dyn Iterator<Item = Range<usize>>) -> Result<()>;

    /// Copies position, sampler and history from [`Engine::arena`] to the device, if any.
    fn replace_own(&mut self) -> Result<()> {
        Ok(())
    }

    /// Copies the state to mark number `mark`.
    fn save_mark(&mut self, mark: usize) -> Result<()>;

    /// Copies mark number `mark` to the state.
    fn load_mark(&mut self, mark: usize) -> Result<()>;

    /// Allocates memory to step up to `most` states of this layout together.
    fn group(&self, most: usize) -> Result<Box<dyn Group>>;

    /// Allocates memory to verify up to `most` tokens in one pass, or fewer if the engine has no program for `most`. If `drafts`, also
    /// allocates memory for [`Verifier::draft`].
    fn verifier(&self, most: usize, drafts: bool) -> Result<Box<dyn Verifier>>;

    /// The engine as a device engine, for code that works on a state in device memory; `None` on the CPU.
    fn on_device(&mut self) -> Option<&mut cuda::CudaEngine> {
        None
    }
}

/// A copy of a state.
pub(crate) struct StateCopy {
    /// The rows that the tokens at the copied positions wrote.
    pub rows: Vec<u8>,
    /// The tensors that later tokens overwrite.
    pub present: Vec<u8>,
}

/// Returns an empty vector with capacity for `bytes`, or an out-of-memory error.
fn checkpoint_room(bytes: usize) -> Result<Vec<u8>> {
    let mut room = Vec::new();
    let asked = waterline_quant::ask_room(bytes).is_ok();
    if asked && room.try_reserve_exact(bytes).is_ok() {
        return Ok(room);
    }
    let advice = "reduce the size of the prefix store";
    Err(Error::memory("a checkpoint", advice))
}

/// The error of [`Engine::end_copy`] if no copy was begun.
fn no_copy() -> Error {
    Error::invalid("copy", "no copy was started")
}

/// An engine of a group, and its session's sampling parameters.
pub(crate) struct Member<'a> {
    pub engine: &'a mut dyn Engine,
    pub params: &'a SamplerParams,
}

/// A list of engines that step together.
pub(crate) trait Members {
    /// The number of engines.
    fn count(&self) -> usize;

    /// Returns member `index`.
    fn member(&mut self, index: usize) -> Member<'_>;
}

/// Steps the states of several engines of one kind, reading each matrix once. The sessions advance positions and histories.
pub(crate) trait Group: Send {
    /// Size of working memory in bytes, without that of the engines.
    fn bytes(&self) -> usize;

    /// Feeds `tokens[i]` to member i.
    fn read(&mut self, members: &mut dyn Members, tokens: &[u32]) -> Result<()>;

    /// Lets each member choose `tokens[i]` and read it; a number beyond the vocabulary if its logits are not finite. Returns false,
    /// without doing anything, if the sessions must choose.
    fn step(&mut self, _members: &mut dyn Members, _tokens: &mut [u32]) -> Result<bool> {
        Ok(false)
    }
}

/// Reads several draft tokens into the state of its engine, bit-identical to single steps, reading each matrix once. The correct prefix
/// is accepted.
pub(crate) trait Verifier: Send {
    /// The largest number of tokens per call.
    fn most(&self) -> usize;

    /// Size of working memory in bytes, without the one additional state.
    fn bytes(&self) -> usize;

    /// Appends up to `count` tokens to `tokens`, predicted by the model's MTP block. The last of `tokens` must be the only one that the
    /// state has not read. The state does not change.
    fn draft(&mut self, engine: &mut dyn Engine, tokens: &mut Vec<u32>, count: usize)
    -> Result<()>;

    /// Reads tokens. With `choose`, it may also compute the most probable token after each.
    fn read(&mut self, engine: &mut dyn Engine, tokens: &[u32], choose: bool) -> Result<()>;

    /// The most probable token after token `row`, if computed; a number beyond the vocabulary if the logits are not finite.
    fn chosen(&self, _row: usize) -> Option<u32> {
        None
    }

    /// The logits `[vocab]` after token `row` of the last reading.
    fn logits(&mut self, row: usize) -> Result<&[f32]>;

    /// Accepts a prefix of the last reading, which had at least two tokens: restores the state and reads the prefix again.
    fn commit(&mut self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()>;

    /// Ends a reading and stores the logits after token `row` in the state.
    fn end(&mut self, engine: &mut dyn Engine, row: usize) -> Result<()>;
}

/// The largest number of slots in a GPU batch whose tokens all have the bits of recorded steps. With more slots, tensor cores
/// multiply BF16 matrices and round their inputs.
pub(crate) fn most_exact_slots(model: &Model) -> usize {
    if model.has_bf16() { 8 } else { 16 }
}

/// Settings of an engine.
pub(crate) struct Setup {
    /// The device; `None` means the CPU.
    pub device: Option<Arc<Device>>,
    /// Thread pool of the CPU.
    pub pool: Arc<Pool>,
    /// Largest chunk in tokens.
    pub chunk: usize,
    /// Number of marks.
    pub marks: usize,
    /// Data type of cached keys and values.
    pub kv: Kv,
    /// How a step runs on a device.
    pub step: StepProgram,
    /// Makes chunks bit-identical to steps.
    pub exact: bool,
    /// Largest number of tokens between two checkpoints of a prompt; 0 if none are taken.
    pub grid: usize,
}

/// Allocates an engine with an empty state. This is the only place that selects the backend.
pub(crate) fn new(
    model: &Arc<Model>,
    plan: Arc<StatePlan>,
    setup: &Setup,
) -> Result<Box<dyn Engine>> {
    // Fails early if state and marks can never fit.
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
