//! A session: one conversation's state, tokens and sampler. It feeds tokens to its engine chunk by chunk.

mod batch;
mod chat;
mod checkpoints;
pub(crate) mod choice;
mod document;
mod embedding;
mod full;
mod generate;
mod history;
mod log_softmax;
mod lookup;
mod note;
mod options;
mod pause;
mod prefix_store;
mod reading;
mod receipt;
mod saved;
mod speculation;
mod thought;

use std::sync::Arc;

pub use batch::Batch;
pub use chat::Chat;
pub use document::{Description, Rows, SEGMENT, StateFile, StateRecord, StateWriter, TensorEntry};
pub use embedding::{EmbedOptions, Pooler};
use full::Full;
pub use generate::{Finish, Generate, GenerateOptions, Generation, LogitsHook, Piece};
pub use history::HistoryRead;
#[doc(hidden)]
pub use log_softmax::LogSoftmax;
pub use options::{ContextEnd, SessionOptions, SessionPlan};
pub use prefix_store::{PrefixStore, PrefixStoreOptions, PrefixStoreStats};
#[doc(hidden)]
pub use prefix_store::{checkpoint_id, seal_checkpoint};
use reading::Reading;
pub use reading::grid_of;
pub use receipt::{Difference, Receipt, ReceiptSession};
use saved::{Mark, check_numbers};
use speculation::Speculation;
pub use thought::ThoughtOptions;

use waterline_quant::ProductObserver;

use crate::cancel::Canceller;
use crate::cpu::{Pool, physical_cores, room};
use crate::engine::{self, Engine, Setup, plan_reading};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::op_time::OpTime;
use crate::sampler::{Sampler, SamplerParams, SamplerState, most_probable};
use crate::state::{Arena, HEADER, HISTORY, SAMPLER, StateDtype};

/// Number of tokens whose logits [`Session::feed_each`] computes in one pass over the output matrix.
const LOGIT_ROWS: usize = 16;

/// Engine settings for these options.
fn setup(options: &SessionOptions, pool: &Arc<Pool>) -> Setup {
    Setup {
        device: options.device.clone(),
        pool: Arc::clone(pool),
        chunk: options.chunk,
        marks: options.marks,
        kv: options.state.kv,
        step: options.step,
        exact: options.exact,
        grid: options.store.as_ref().map_or(0, |_| options.grid()),
    }
}

/// The most recent tokens of a state, oldest first, as two slices of the ring.
fn recent(arena: &Arena) -> (&[u32], &[u32]) {
    let history = arena.tensor::<u32>(HISTORY);
    let read = arena.tensor::<u64>(HEADER)[0];
    if read <= history.len() as u64 {
        return (&history[..read as usize], &[]);
    }
    let (newer, older) = history.split_at((read % history.len() as u64) as usize);
    (older, newer)
}

/// One conversation. All its memory is allocated when it is created.
pub struct Session {
    model: Arc<Model>,
    options: SessionOptions,
    pool: Arc<Pool>,
    engine: Box<dyn Engine>,
    /// The marks that [`Session::rewind`] can return to; `None` for a slot that is not in use yet.
    marks: Vec<Option<Mark>>,
    /// Hashes of the tokens read so far and of the chunk boundaries.
    reading: Reading,
    sampler: Sampler,
    canceller: Canceller,
    /// Whether some attention layer reads the whole context.
    bounded: bool,
    speculation: Option<Speculation>,
    full: Full,
}

impl Session {
    /// Allocates a session for `model`.
    pub fn new(model: Arc<Model>, mut options: SessionOptions) -> Result<Self> {
        options.chunk = options.chunk_size(&model)?;
        options.state = options.state(&model);
        Speculation::check(&model, &options)?;
        let pool = match &options.pool {
            Some(pool) => Arc::clone(pool),
            None => Arc::new(Pool::new(options.threads)?),
        };
        let plan = Arc::new(model.plan(&options.state)?);
        let engine = engine::new(&model, plan, &setup(&options, &pool))?;
        let mut session = Self::with_engine(model, options, pool, engine)?;
        session.reset()?;
        Ok(session)
    }

    /// Builds a session around `engine`, whose state it takes over.
    fn with_engine(
        model: Arc<Model>,
        options: SessionOptions,
        pool: Arc<Pool>,
        engine: Box<dyn Engine>,
    ) -> Result<Self> {
        Ok(Session {
            speculation: Speculation::new(&model, &*engine, &options)?,
            full: Full::new(&model, &options)?,
            marks: vec![None; options.marks],
            reading: Reading::new(),
            engine,
            sampler: Sampler::new(options.sampler.clone(), model.spec().vocab)?,
            canceller: Canceller::default(),
            bounded: model.reads_context(),
            model,
            options,
            pool,
        })
    }

    /// The memory that a session on `model` would allocate. [`Session::state_bytes`] and, on the CPU, [`Session::work_bytes`] return the
    /// same numbers for a real session.
    pub fn plan(model: &Model, options: &SessionOptions) -> Result<SessionPlan> {
        let chunk = options.chunk_size(model)?;
        let state_bytes = model.plan(&options.state(model))?.bytes();
        let threads = match (&options.pool, options.threads) {
            (Some(pool), _) => pool.threads(),
            (None, 0) => physical_cores(),
            (None, threads) => threads,
        };
        let (ahead, states) = Speculation::plan(model, threads, options)?;
        let work = plan_reading(model.program(), threads, chunk, options.exact)
            + ahead
            + Full::plan(model, options)?;
        Ok(SessionPlan {
            state_bytes,
            work_bytes: work.saturating_add(state_bytes.saturating_mul(options.marks + states)),
            threads,
            chunk,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The session's options.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// The number of compute threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The number of tokens read so far.
    pub fn position(&self) -> u64 {
        self.engine.arena().tensor::<u64>(HEADER)[0]
    }

    /// Size of the state in bytes. It never changes.
    pub fn state_bytes(&self) -> usize {
        self.engine.plan().bytes()
    }

    /// Size of working memory and marks in bytes, without the state. It never changes.
    pub fn work_bytes(&self) -> usize {
        let buffers = self.engine.work_bytes();
        let ahead = self.speculation.as_ref();
        let states = self.marks.len() + usize::from(ahead.is_some());
        let others = self.full.bytes() + ahead.map_or(0, Speculation::bytes);
        buffers + states * self.state_bytes() + others
    }

    /// Device memory in bytes for the weights, this session's state and its working memory; 0 on the CPU.
    pub fn device_bytes(&self) -> usize {
        self.engine.device_bytes()
    }

    /// Logits after the last token, `[vocab]`; zeros before the first token. On a device, the first call after each token copies them to
    /// the host.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn logits(&self) -> Result<&[f32]> {
        self.engine.logits()
    }

    /// Fails if no token can be chosen from the logits: one of them is NaN or positive infinity, or all are negative infinity. A single
    /// logit of negative infinity is valid and means that its token is never chosen.
    ///
    /// # Errors
    /// [`Error::Logits`], and the errors of [`Session::logits`].
    pub fn check_logits(&self) -> Result<()> {
        most_probable(self.logits()?).map(|_| ())
    }

    /// The most recent tokens, as many as the history holds, oldest first, in two slices.
    pub fn recent(&self) -> (&[u32], &[u32]) {
        recent(self.engine.arena())
    }

    /// The sampling parameters.
    pub fn sampler(&self) -> &SamplerParams {
        self.sampler.params()
    }

    /// Replaces the sampling parameters. A new seed restarts the random numbers.
    pub fn set_sampler(&mut self, params: SamplerParams) -> Result<()> {
        let reseed = params.seed != self.sampler.params().seed;
        self.sampler = Sampler::new(params, self.model.spec().vocab)?;
        if reseed {
            self.set_random(SamplerState::new(self.sampler.params().seed));
        }
        Ok(())
    }

    /// The number of random numbers drawn since the seed was set.
    pub fn draws(&self) -> u64 {
        self.random().draws
    }

    /// Sets the number of random numbers drawn. A rewound session that keeps its count chooses other tokens than before.
    pub fn set_draws(&mut self, draws: u64) {
        let seed = self.random().seed;
        self.set_random(SamplerState { seed, draws });
    }

    fn random(&self) -> SamplerState {
        self.engine.arena().tensor::<SamplerState>(SAMPLER)[0]
    }

    fn set_random(&mut self, state: SamplerState) {
        self.engine.arena_mut().tensor_mut::<SamplerState>(SAMPLER)[0] = state;
    }

    /// A handle that cancels this session's calls.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// From now on calls `observer` with every matrix product and its inputs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the session is on a GPU.
    #[doc(hidden)]
    pub fn observe_products(&mut self, observer: ProductObserver) -> Result<()> {
        self.engine.observe_products(observer)
    }

    /// Forgets everything read so far.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost; [`Session::position`] is then unchanged.
    pub fn reset(&mut self) -> Result<()> {
        self.engine.reset()?;
        self.set_random(SamplerState::new(self.sampler.params().seed));
        self.forget_marks(0);
        self.reading = Reading::new();
        Ok(())
    }

    /// Changes [`SessionOptions::owner`]. A session of another owner forgets everything read so far.
    ///
    /// # Errors
    /// The errors of [`Session::reset`].
    pub fn set_owner(&mut self, owner: u64) -> Result<()> {
        if owner != self.options.owner {
            self.reset()?;
            self.options.owner = owner;
        }
        Ok(())
    }

    /// Drops marks at `position` and later, whose tokens were taken back.
    fn forget_marks(&mut self, position: u64) {
        for mark in &mut self.marks {
            *mark = mark.filter(|mark| mark.position < position);
        }
    }

    /// Reads tokens. Afterwards [`Session::logits`] returns the logits after the last one.
    ///
    /// # Errors
    /// [`Error::ContextFull`] or [`Error::Invalid`] before anything is read; [`Error::Cancelled`] between two chunks: chunks already
    /// read stay read.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        self.read(
            tokens,
            |_| usize::MAX,
            |session, chunk| session.engine.compute_logits(chunk - 1),
            |_, _| Ok(()),
        )
    }

    /// Like [`Session::feed`], but calls `progress(read)` after every chunk with the number of tokens read so far.
    ///
    /// # Errors
    /// See [`Session::feed`].
    pub fn feed_with_progress(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize),
    ) -> Result<()> {
        self.read(
            tokens,
            |_| usize::MAX,
            |session, chunk| session.engine.compute_logits(chunk - 1),
            |_, (first, length)| {
                progress(first + length);
                Ok(())
            },
        )
    }

    /// Reads tokens and calls `each(index, logits)` with the logits after each one.
    ///
    /// # Errors
    /// See [`Session::feed`].
    pub fn feed_each(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
        let model = Arc::clone(&self.model);
        let vocab = model.spec().vocab;
        let together = LOGIT_ROWS.min(self.options.chunk).min(tokens.len());
        let mut logits = room(together * vocab)?;
        self.read(
            tokens,
            |_| usize::MAX,
            |_, _| Ok(()),
            |session, (first, length)| {
                for start in (0..length).step_by(together) {
                    let rows = start..(start + together).min(length);
                    let logits = &mut logits[..rows.len() * vocab];
                    session.engine.logits_of(rows, logits)?;
                    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
                        each(first + start + row, logits);
                    }
                }
                Ok(())
            },
        )
    }

    /// Reads tokens chunk by chunk. `cut(read)` bounds the length of the next chunk. `shown` runs after each chunk with its first token
    /// and its length; `last` runs once after the last chunk with that chunk's length, even if reading was cancelled.
    fn read(
        &mut self,
        tokens: &[u32],
        cut: impl Fn(usize) -> usize,
        last: impl FnOnce(&mut Self, usize) -> Result<()>,
        shown: impl FnMut(&mut Self, (usize, usize)) -> Result<()>,
    ) -> Result<()> {
        let read = |session: &mut Self, chunk: &[u32]| session.engine.read(chunk);
        self.read_by(read, tokens, cut, last, shown)
    }

    /// Like [`Session::read`]; `read` reads a chunk.
    fn read_by(
        &mut self,
        read: impl Fn(&mut Self, &[u32]) -> Result<()>,
        tokens: &[u32],
        cut: impl Fn(usize) -> usize,
        last: impl FnOnce(&mut Self, usize) -> Result<()>,
        mut shown: impl FnMut(&mut Self, (usize, usize)) -> Result<()>,
    ) -> Result<()> {
        self.check(tokens)?;
        let (mut fed, mut chunk) = (0, 0);
        let mut cancelled = false;
        while fed < tokens.len() {
            cancelled = self.canceller.take();
            if cancelled {
                break;
            }
            self.make_room()?;
            let most = self.options.chunk.min(self.room());
            chunk = (tokens.len() - fed).min(most).min(cut(fed));
            let piece = &tokens[fed..fed + chunk];
            read(self, piece)?;
            self.advance(piece);
            shown(self, (fed, chunk))?;
            fed += chunk;
        }
        if fed > 0 {
            last(self, chunk)?;
        }
        if cancelled {
            Err(Error::Cancelled { fed })
        } else {
            Ok(())
        }
    }

    /// Advances the position, the history and the hashes past the tokens of one chunk.
    fn advance(&mut self, tokens: &[u32]) {
        let position = self.position();
        let history = self.engine.arena_mut().tensor_mut::<u32>(HISTORY);
        for (i, &token) in tokens.iter().enumerate() {
            history[((position + i as u64) % history.len() as u64) as usize] = token;
        }
        self.engine.arena_mut().tensor_mut::<u64>(HEADER)[0] = position + tokens.len() as u64;
        let end = position + tokens.len() as u64;
        self.reading
            .advance(tokens, Some(end).filter(|_| !self.options.exact));
    }

    /// Chooses a token from the last logits, without reading it.
    ///
    /// # Errors
    /// [`Error::Invalid`] before the first token; [`Error::Logits`] if the logits are not finite.
    pub fn sample(&mut self) -> Result<u32> {
        self.choose(None)
    }

    /// Chooses a token from these logits `[vocab]` instead of the last ones, without reading it.
    ///
    /// # Errors
    /// See [`Session::sample`].
    pub fn sample_from(&mut self, logits: &[f32]) -> Result<u32> {
        self.choose(Some(logits))
    }

    /// Chooses a token from `logits`, or from the last logits.
    fn choose(&mut self, logits: Option<&[f32]>) -> Result<u32> {
        if self.position() == 0 {
            return Err(Error::invalid("sample", "no token has been read yet"));
        }
        let mut state = self.random();
        let recent = recent(self.engine.arena());
        let logits = match logits {
            Some(logits) => logits,
            None => self.engine.logits()?,
        };
        let token = self.sampler.sample(logits, recent, &mut state);
        let token = token.map_err(|error| self.about_cache(error))?;
        self.engine.arena_mut().tensor_mut::<SamplerState>(SAMPLER)[0] = state;
        Ok(token)
    }

    /// Adds the likely cause to a logits error if keys and values are stored in 16 bits.
    fn about_cache(&self, mut error: Error) -> Error {
        let kept = self.engine.arena().plan().tensors();
        let is_f16 = kept.iter().any(|tensor| tensor.dtype == StateDtype::F16);
        if let Error::Logits { reason } = &mut error
            && is_f16
        {
            reason
                .push_str("; an f16 cache cannot hold keys and values beyond 65504: use --kv f32");
        }
        error
    }

    /// Chooses a token and reads it.
    ///
    /// # Errors
    /// See [`Session::sample`] and [`Session::feed`].
    pub fn step(&mut self) -> Result<u32> {
        if self.position() > 0 && self.engine.can_choose(self.sampler.params()) {
            self.check(&[0])?;
            if self.canceller.take() {
                return Err(Error::Cancelled { fed: 0 });
            }
            self.make_room()?;
            let token = self.engine.step(self.sampler.params());
            let token = token.map_err(|error| self.about_cache(error))?;
            self.advance(&[token]);
            return Ok(token);
        }
        self.make_room()?;
        let random = self.random();
        let token = self.sample()?;
        if let Err(error) = self.feed(&[token]) {
            // Nothing was read, so the drawn random number is given back.
            self.set_random(random);
            return Err(error);
        }
        Ok(token)
    }

    /// How a step runs on the session's GPU, and why, as part of a sentence; `None` on the CPU.
    pub fn step_form(&self) -> Option<String> {
        self.engine.form().map(ToString::to_string)
    }

    /// Chooses the most probable token, reads it, and measures the time of each op in that step. Returns `None`, and reads nothing, on a
    /// GPU whose steps are [`crate::StepProgram::Recorded`].
    ///
    /// # Errors
    /// See [`Session::step`].
    pub fn time_step(&mut self) -> Result<Option<Vec<OpTime>>> {
        self.check(&[0])?;
        self.make_room()?;
        let Some((token, times)) = self.engine.time_step()? else {
            return Ok(None);
        };
        self.advance(&[token]);
        Ok(Some(times))
    }
}
