//! Options of a session, and its plan.

use std::sync::Arc;

use super::PrefixStore;
use crate::bound::Model;
use crate::cpu::Pool;
use crate::cuda::Device;
use crate::engine::StepProgram;
use crate::error::{Error, Result};
use crate::sampler::SamplerParams;
use crate::state::StateOptions;

/// Most tokens that are read at once.
const LARGEST_CHUNK: usize = 1 << 16;
/// Positions between checkpoints of a long prompt on a CPU, unless a store says otherwise. On a GPU they are as far apart as chunks are long:
/// it reads pieces of 256 tokens at a quarter of its speed, without any checkpoints.
const GRID: usize = 256;

/// First tokens that attention needs even where they say nothing (StreamingLLM, arXiv 2309.17453).
const SINKS: usize = 4;

/// Behaviour when full attention's context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContextEnd {
    /// [`crate::Error::ContextFull`], and nothing is read.
    #[default]
    Refuse,
    /// Attention forgets the oldest tokens but the first [`SessionOptions::keep`]; recurrent layers go on as before. Nothing is read again.
    Shift,
    /// The session becomes one that has read the first [`SessionOptions::keep`] tokens and the last ones, as many as fill half of the rest
    /// of the context: they are read again, and positions count from there. What lay between them is forgotten, by recurrent layers too.
    /// The session's history holds at least its context.
    Compact,
}

/// User options of a session.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The state.
    pub state: StateOptions,
    /// At the end of the context.
    pub context_end: ContextEnd,
    /// First tokens that stay when a context is full, fewer than half of it; of a conversation its instructions do, too. Attention over
    /// blocks of its context ([`Model::keeps_first_tokens`]) keeps none when it shifts.
    pub keep: usize,
    /// Most tokens that are read at once, at most 65536; 0 means what suits the device: 256 on the CPU, 2048 on a GPU.
    pub chunk: usize,
    /// Threads, the caller's included; 0 means one for each physical core. Not used if `pool` is given.
    pub threads: usize,
    /// Threads to share with other sessions.
    pub pool: Option<Arc<Pool>>,
    /// How many marks are kept for [`crate::Session::rewind`]; each is as large as the state.
    pub marks: usize,
    /// Most tokens that a generation drafts by looking up what followed the last tokens before, up to 64; 0 means none. The
    /// tokens are the same without, and memory for one more state is needed. On a GPU at most 15 are drafted; tokens that are read with
    /// a draft have the bits of recorded steps, so that all are the same only where `step` is [`StepProgram::Recorded`]. While few drafts
    /// are accepted there are none for a while.
    /// A generation that is left before its end may have read that many tokens more than it has shown.
    pub lookup: usize,
    /// Most tokens that a generation drafts by the model's MTP block, up to 64; 0 means none. As `lookup`, in its place,
    /// for models that were opened with [`crate::OpenOptions::mtp`].
    pub mtp: usize,
    /// The bits of a token depend on nothing but the tokens before it and the kind of device: not on chunks, splits, forks,
    /// restores, batches, drafts or threads. Prompts are read more slowly; on a GPU at most 16 tokens are read at once, and
    /// steps are recorded.
    pub exact: bool,
    /// Where checkpoints are kept, for [`crate::Session::read_history`].
    pub store: Option<Arc<PrefixStore>>,
    /// How tokens are chosen.
    pub sampler: SamplerParams,
    /// Where it runs; none means the CPU.
    pub device: Option<Arc<Device>>,
    /// How a step runs there.
    pub step: StepProgram,
}

impl SessionOptions {
    /// The state of a session on `model`: a context that is compacted is read again from the history.
    pub(super) fn state(&self, model: &Model) -> StateOptions {
        let mut state = self.state;
        if self.context_end == ContextEnd::Compact && model.reads_context() {
            state.history = state.history.max(state.context);
        }
        state
    }

    /// The most tokens that are read at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are too many.
    pub(super) fn chunk_size(&self, model: &Model) -> Result<usize> {
        let chunk = self.longest_chunk()?;
        Ok(match (self.exact, &self.device) {
            (true, Some(_)) => chunk.min(model.most_exact_slots()),
            _ => chunk,
        })
    }

    /// Tokens between the checkpoints of a long prompt.
    pub(super) fn grid(&self) -> usize {
        match self.store.as_ref().map_or(0, |store| store.grid()) {
            0 if self.device.is_some() => self.chunk.max(GRID),
            0 => GRID,
            grid => grid,
        }
    }

    fn longest_chunk(&self) -> Result<usize> {
        match (self.chunk, &self.device) {
            (0, None) => Ok(256),
            (0, Some(_)) => Ok(2048),
            (chunk @ ..=LARGEST_CHUNK, _) => Ok(chunk),
            (chunk, _) => Err(Error::invalid(
                "chunk",
                format!(
                    "found {chunk} tokens, expected at most {LARGEST_CHUNK}, or 0 for what suits the device"
                ),
            )),
        }
    }
}

/// The memory of a session, in bytes. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionPlan {
    /// The state.
    pub state_bytes: usize,
    /// Working memory on the CPU, and marks.
    pub work_bytes: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Most tokens that are read at once.
    pub chunk: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            state: StateOptions::default(),
            context_end: ContextEnd::Refuse,
            keep: SINKS,
            chunk: 0,
            threads: 0,
            pool: None,
            marks: 0,
            lookup: 0,
            mtp: 0,
            exact: false,
            store: None,
            sampler: SamplerParams::default(),
            device: None,
            step: StepProgram::default(),
        }
    }
}
