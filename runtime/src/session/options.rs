//! Options of a session, and its memory plan.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::PrefixStore;
use crate::cpu::Pool;
use crate::cuda::Device;
use crate::engine::{StepProgram, most_exact_slots};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::sampler::SamplerParams;
use crate::state::StateOptions;

/// The largest allowed chunk, in tokens.
const LARGEST_CHUNK: usize = 1 << 16;
/// Positions between checkpoints of a long prompt on a CPU, unless the store sets another distance. On a GPU the distance is the chunk
/// length: reading pieces of 256 tokens runs at a quarter of the full speed, even without checkpoints.
const GRID: usize = 256;

/// First tokens that attention needs even if they carry no meaning (StreamingLLM, arXiv 2309.17453).
const SINKS: usize = 4;

/// Behaviour when the context of full attention is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextEnd {
    /// Calls fail with [`crate::Error::ContextFull`] and read nothing.
    #[default]
    Refuse,
    /// Attention keeps the first [`SessionOptions::keep`] tokens and drops the oldest others. Recurrent layers are unaffected.
    Shift,
    /// The session restarts from the first [`SessionOptions::keep`] tokens and the most recent ones, enough to fill half of the
    /// remaining context. It reads them again, and positions count from there. Tokens in between are forgotten, by recurrent layers too.
    /// The session's history is at least as long as its context.
    Compact,
}

/// User options of a session.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Options of the state.
    pub state: StateOptions,
    /// Behaviour at the end of the context.
    pub context_end: ContextEnd,
    /// Number of first tokens that stay when the context is full, less than half of it; in a conversation, its instructions stay too.
    /// Attention over blocks of its context ([`Model::keeps_first_tokens`]) keeps no first tokens when it shifts.
    pub keep: usize,
    /// Largest number of tokens read at once, at most 65536; 0 selects the default of the device: 256 on the CPU, 2048 on a GPU.
    pub chunk: usize,
    /// Number of threads, including the caller's; 0 means one per physical core. Ignored if `pool` is given.
    pub threads: usize,
    /// A thread pool to share with other sessions.
    pub pool: Option<Arc<Pool>>,
    /// Number of marks kept for [`crate::Session::rewind`]; each takes as much memory as the state.
    pub marks: usize,
    /// Longest draft, up to 64 tokens, by prompt lookup: a generation drafts the tokens that followed an earlier occurrence of the last
    /// ones; 0 disables drafts. The generated tokens do not change; memory for one more state is needed. On a GPU a draft has at most 15
    /// tokens. With more than 3, tokens read with a draft have the bits of recorded steps, so results are identical to those without drafts
    /// only if `step` is [`StepProgram::Recorded`]. Drafting pauses for a while when few drafts are accepted. A generation dropped before its
    /// end may have read up to this many tokens more than it has returned.
    pub lookup: usize,
    /// Longest draft, up to 64 tokens, by the model's MTP block; 0 disables it. Works like `lookup` and excludes it; the model must have
    /// been opened with [`crate::OpenOptions::mtp`].
    pub mtp: usize,
    /// Makes the bits of a token depend only on the tokens before it and the kind of device: not on chunks, splits, forks, restores,
    /// batches, drafts or threads. Prompts are read more slowly; a GPU reads at most 16 tokens at once, and its steps are recorded.
    pub exact: bool,
    /// The store of checkpoints for [`crate::Session::read_history`].
    pub store: Option<Arc<PrefixStore>>,
    /// Sessions share the store's checkpoints only with sessions of the same owner; 0 by default. See [`crate::Session::set_owner`].
    pub owner: u64,
    /// Sampling parameters; [`Model::sampler`] has those that the model's files recommend.
    pub sampler: SamplerParams,
    /// The device to run on; `None` means the CPU.
    pub device: Option<Arc<Device>>,
    /// How a step runs on the device.
    pub step: StepProgram,
}

impl SessionOptions {
    /// State options of a session on `model`. A context that is compacted is read again from the history, so the history must hold it.
    pub(super) fn state(&self, model: &Model) -> StateOptions {
        let mut state = self.state;
        if self.context_end == ContextEnd::Compact && model.reads_context() {
            state.history = state.history.max(state.context);
        }
        state
    }

    /// The largest number of tokens read at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the chunk option is too large.
    pub(super) fn chunk_size(&self, model: &Model) -> Result<usize> {
        let chunk = self.longest_chunk()?;
        Ok(match (self.exact, &self.device) {
            // Tokens that a later layer caches are not there yet for the token after them.
            (true, _) if model.spec().shares_keys() => 1,
            (true, Some(_)) => chunk.min(most_exact_slots(model)),
            _ => chunk,
        })
    }

    /// Tokens between two checkpoints of a long prompt.
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
                    "found {chunk} tokens, expected at most {LARGEST_CHUNK}, or 0 for the device's default"
                ),
            )),
        }
    }
}

/// Memory sizes of a session in bytes. They never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionPlan {
    /// Size of the state.
    pub state_bytes: usize,
    /// Size of working memory on the CPU and of the marks.
    pub work_bytes: usize,
    /// Number of compute threads.
    pub threads: usize,
    /// Largest number of tokens read at once.
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
            owner: 0,
            sampler: SamplerParams::default(),
            device: None,
            step: StepProgram::default(),
        }
    }
}
