//! A session: one conversation's state, and the only hot loop.

mod batch;
mod lookup;
mod options;
mod saved;

use std::ops::Range;
use std::sync::Arc;

pub use batch::Batch;
use lookup::Lookup;
pub use options::{
    Canceller, ContextEnd, PhaseTime, SessionOptions, SessionPlan, StepForm, StepProgram,
};

use crate::cpu::{self, Pool, physical_cores};
use crate::cuda;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampler::{Sampler, SamplerParams, SamplerState};
use crate::state::{Arena, HEADER, LOG, LOGITS, SAMPLER, Size};

/// Tokens whose logits [`Session::feed_each`] computes in one pass over the output matrix.
const LOGIT_ROWS: usize = 16;

/// What computes, and where the state lies.
enum Engine {
    Cpu(cpu::Engine),
    /// The state is the device's; the session's arena mirrors position, random numbers and log, which come first.
    Cuda(cuda::Engine),
}

/// A state that [`Session::rewind`] can return to.
struct Mark {
    /// None: not taken yet.
    position: Option<u64>,
    /// On a device the state is kept there, and this mirrors its first slots.
    arena: Arena,
}

/// One conversation. Everything it needs is allocated when it is made.
pub struct Session {
    model: Arc<Model>,
    options: SessionOptions,
    pool: Arc<Pool>,
    engine: Engine,
    arena: Arena,
    marks: Vec<Mark>,
    sampler: Sampler,
    canceller: Canceller,
    /// Whether some attention looks back on the whole context.
    bounded: bool,
    lookup: Option<Lookup>,
}

impl Session {
    /// Allocates a session on `model`.
    pub fn new(model: Arc<Model>, mut options: SessionOptions) -> Result<Self> {
        options.chunk = options.chunk_size()?;
        let plan = Arc::new(model.plan(&options.state)?);
        // Before anything is touched: a state and marks that can never fit.
        let bytes = plan.bytes.saturating_mul(options.marks.saturating_add(1));
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            let what = format!("a session of {bytes} bytes");
            return Err(Error::memory(
                what,
                "choose a smaller context or fewer marks",
            ));
        }
        let pool = match &options.pool {
            Some(pool) => Arc::clone(pool),
            None => Arc::new(Pool::new(options.threads)?),
        };
        let (arena, engine) = match &options.device {
            None => {
                let engine = cpu::Engine::new(model.program(), Arc::clone(&pool), options.chunk)?;
                (Arena::new(plan)?, Engine::Cpu(engine))
            }
            Some(device) => {
                let mirror = Arc::new(plan.own_slots());
                let engine = cuda::Engine::new(&model, Arc::clone(device), plan, &options)?;
                (Arena::new(mirror)?, Engine::Cuda(engine))
            }
        };
        let mark = |_| {
            Ok(Mark {
                position: None,
                arena: arena.try_clone()?,
            })
        };
        let marks = (0..options.marks).map(mark).collect::<Result<_>>()?;
        let bounded = model
            .spec()
            .layers
            .iter()
            .flat_map(crate::LayerSpec::state)
            .any(|slot| slot.shape.contains(&Size::Context));
        let mut session = Session {
            engine,
            sampler: Sampler::new(options.sampler.clone(), model.spec().vocab)?,
            canceller: Canceller::default(),
            model,
            options,
            pool,
            arena,
            marks,
            bounded,
            lookup: None,
        };
        session.lookup = session.lookup_of()?;
        session.reset()?;
        Ok(session)
    }

    /// What a session on `model` would allocate. As [`Session::state_bytes`] and, on the CPU, [`Session::work_bytes`] say
    /// afterwards.
    pub fn plan(model: &Model, options: &SessionOptions) -> Result<SessionPlan> {
        let chunk = options.chunk_size()?;
        let state_bytes = model.plan(&options.state)?.bytes;
        let threads = match (&options.pool, options.threads) {
            (Some(pool), _) => pool.threads(),
            (None, 0) => physical_cores(),
            (None, threads) => threads,
        };
        let (lookup, states) = Lookup::plan(model, threads, options)?;
        let work = cpu::Engine::plan(model.program(), threads, chunk) + lookup;
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

    /// What the session was made with.
    pub fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Tokens read so far.
    pub fn position(&self) -> u64 {
        self.arena.slot::<u64>(HEADER)[0]
    }

    /// Bytes of the state. They never change.
    pub fn state_bytes(&self) -> usize {
        match &self.engine {
            Engine::Cpu(_) => self.arena.bytes().len(),
            Engine::Cuda(engine) => engine.plan().bytes,
        }
    }

    /// Bytes of working memory and marks besides the state. They never change either.
    pub fn work_bytes(&self) -> usize {
        let buffers = match &self.engine {
            Engine::Cpu(engine) => engine.bytes(),
            Engine::Cuda(engine) => engine.bytes(),
        };
        let lookup = self.lookup.as_ref();
        let states = self.marks.len() + usize::from(lookup.is_some());
        buffers + states * self.state_bytes() + lookup.map_or(0, Lookup::bytes)
    }

    /// Bytes of a device's memory that hold the weights, this session's state and its working memory; 0 on the CPU.
    pub fn device_bytes(&self) -> usize {
        match &self.engine {
            Engine::Cpu(_) => 0,
            Engine::Cuda(engine) => engine.device_bytes(),
        }
    }

    /// Bytes of weights that the device reads in the host's memory, where the file is mapped, and has no copy of; 0 on
    /// the CPU. See [`crate::Device::shared_bytes`].
    pub fn shared_bytes(&self) -> usize {
        self.options
            .device
            .as_ref()
            .map_or(0, |device| device.shared_bytes())
    }

    /// Logits after the last token, `[vocab]`; zeros before the first.
    /// From a device they are fetched when they are first asked for.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn logits(&self) -> Result<&[f32]> {
        match &self.engine {
            Engine::Cpu(_) => Ok(self.arena.slot(LOGITS)),
            Engine::Cuda(engine) => engine.logits(),
        }
    }

    /// The last tokens, oldest first, in two parts; as many as the log holds.
    pub fn recent(&self) -> (&[u32], &[u32]) {
        let log = self.arena.slot::<u32>(LOG);
        let read = self.position();
        if read <= log.len() as u64 {
            return (&log[..read as usize], &[]);
        }
        let (newer, older) = log.split_at((read % log.len() as u64) as usize);
        (older, newer)
    }

    /// The sampling parameters.
    pub fn sampler(&self) -> &SamplerParams {
        self.sampler.params()
    }

    /// Changes how tokens are chosen. A new seed restarts the random numbers.
    pub fn set_sampler(&mut self, params: SamplerParams) -> Result<()> {
        let reseed = params.seed != self.sampler.params().seed;
        self.sampler = Sampler::new(params, self.model.spec().vocab)?;
        if reseed {
            self.set_random(SamplerState::new(self.sampler.params().seed));
        }
        Ok(())
    }

    /// The state of the random numbers.
    pub fn random(&self) -> SamplerState {
        self.arena.slot::<SamplerState>(SAMPLER)[0]
    }

    /// Sets the state of the random numbers: a rewound session that keeps its random numbers says something else.
    pub fn set_random(&mut self, state: SamplerState) {
        self.arena.slot_mut::<SamplerState>(SAMPLER)[0] = state;
    }

    /// A handle that stops this session's calls.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Forgets everything that was read.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost; [`Session::position`] is then what it was.
    pub fn reset(&mut self) -> Result<()> {
        if let Engine::Cuda(engine) = &mut self.engine {
            engine.reset()?;
        }
        self.arena.reset();
        self.set_random(SamplerState::new(self.sampler.params().seed));
        self.forget_marks(0);
        Ok(())
    }

    /// Marks from `position` on belong to tokens that were taken back.
    fn forget_marks(&mut self, position: u64) {
        for mark in &mut self.marks {
            mark.position = mark.position.filter(|&p| p < position);
        }
    }

    /// Reads tokens. Afterwards [`Session::logits`] are those after the last one.
    ///
    /// # Errors
    /// [`Error::ContextFull`] or [`Error::Invalid`] before anything is read; [`Error::Cancelled`] at a whole token.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        self.read(
            tokens,
            |session, chunk| session.write_logits(chunk - 1),
            |_, _| Ok(()),
        )
    }

    /// As [`Session::feed`]; `progress(read)` is called after every chunk with the number of tokens read so far.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_with_progress(
        &mut self,
        tokens: &[u32],
        mut progress: impl FnMut(usize),
    ) -> Result<()> {
        self.read(
            tokens,
            |session, chunk| session.write_logits(chunk - 1),
            |_, (first, length)| {
                progress(first + length);
                Ok(())
            },
        )
    }

    /// Reads tokens and shows the logits after each one: `each(index, logits)`.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn feed_each(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
        let model = Arc::clone(&self.model);
        let vocab = model.spec().vocab;
        let together = LOGIT_ROWS.min(self.options.chunk).min(tokens.len());
        let mut logits = vec![0.0; together * vocab];
        self.read(
            tokens,
            |_, _| Ok(()),
            |session, (first, length)| {
                for start in (0..length).step_by(together) {
                    let rows = start..(start + together).min(length);
                    let logits = &mut logits[..rows.len() * vocab];
                    session.logits_of(rows, logits)?;
                    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
                        each(first + start + row, logits);
                    }
                    let last = &logits[logits.len() - vocab..];
                    if let Engine::Cpu(_) = session.engine {
                        session.arena.slot_mut(LOGITS).copy_from_slice(last);
                    }
                }
                Ok(())
            },
        )
    }

    /// The loop over chunks: `shown` after each, `last` once at the end of the reading.
    fn read(
        &mut self,
        tokens: &[u32],
        last: impl FnOnce(&mut Self, usize) -> Result<()>,
        mut shown: impl FnMut(&mut Self, (usize, usize)) -> Result<()>,
    ) -> Result<()> {
        self.check(tokens)?;
        let model = Arc::clone(&self.model);
        let (mut fed, mut chunk) = (0, 0);
        let mut cancelled = false;
        while fed < tokens.len() {
            cancelled = self.canceller.take();
            if cancelled {
                break;
            }
            chunk = (tokens.len() - fed).min(self.options.chunk);
            let piece = &tokens[fed..fed + chunk];
            let position = self.position();
            match &mut self.engine {
                Engine::Cpu(engine) => {
                    engine.run(model.program(), &mut self.arena, piece, position);
                }
                Engine::Cuda(engine) => engine.run(piece)?,
            }
            self.log(piece);
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

    /// Moves the position on by tokens that were read.
    fn log(&mut self, tokens: &[u32]) {
        let position = self.position();
        let log = self.arena.slot_mut::<u32>(LOG);
        for (i, &token) in tokens.iter().enumerate() {
            log[((position + i as u64) % log.len() as u64) as usize] = token;
        }
        self.arena.slot_mut::<u64>(HEADER)[0] = position + tokens.len() as u64;
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.model.spec().vocab;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(Error::invalid(
                format!("token {token}"),
                format!("the model knows tokens below {vocab}"),
            ));
        }
        let context = self.options.state.context;
        let refuse = self.bounded && self.options.context_end == ContextEnd::Refuse;
        if refuse && self.position() + tokens.len() as u64 > context as u64 {
            return Err(Error::ContextFull {
                context,
                position: self.position(),
                requested: tokens.len(),
            });
        }
        Ok(())
    }

    fn write_logits(&mut self, row: usize) -> Result<()> {
        match &mut self.engine {
            Engine::Cpu(engine) => {
                let logits = self.arena.slot_mut(LOGITS);
                engine.logits(self.model.program(), row..row + 1, logits);
                Ok(())
            }
            Engine::Cuda(engine) => engine.compute_logits(row),
        }
    }

    /// The logits `[rows, vocab]` after these tokens of the last chunk.
    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()> {
        match &mut self.engine {
            Engine::Cpu(engine) => {
                engine.logits(self.model.program(), rows, logits);
                Ok(())
            }
            Engine::Cuda(engine) => {
                let vocab = self.model.spec().vocab;
                for (row, logits) in rows.zip(logits.chunks_exact_mut(vocab)) {
                    engine.compute_logits(row)?;
                    logits.copy_from_slice(engine.logits()?);
                }
                Ok(())
            }
        }
    }

    /// Chooses a token by the last logits, without reading it.
    ///
    /// # Errors
    /// [`Error::Invalid`] before the first token, or if the logits are not finite.
    pub fn sample(&mut self) -> Result<u32> {
        self.choose(None)
    }

    /// Chooses a token by these logits `[vocab]` in place of the last ones, without reading it.
    ///
    /// # Errors
    /// As [`Session::sample`].
    pub fn sample_from(&mut self, logits: &[f32]) -> Result<u32> {
        self.choose(Some(logits))
    }

    /// Chooses a token by these logits or the last ones.
    fn choose(&mut self, logits: Option<&[f32]>) -> Result<u32> {
        if self.position() == 0 {
            return Err(Error::invalid("sample", "no token has been read yet"));
        }
        let mut state = self.arena.slot::<SamplerState>(SAMPLER)[0];
        let log = self.arena.slot::<u32>(LOG);
        let read = self.position();
        let split = if read <= log.len() as u64 {
            0
        } else {
            (read % log.len() as u64) as usize
        };
        let used = (read as usize).min(log.len());
        let recent = (&log[split..used], &log[..split]);
        let logits = match (logits, &self.engine) {
            (Some(logits), _) => logits,
            (None, Engine::Cpu(_)) => self.arena.slot(LOGITS),
            (None, Engine::Cuda(engine)) => engine.logits()?,
        };
        let token = self.sampler.sample(logits, recent, &mut state)?;
        self.arena.slot_mut::<SamplerState>(SAMPLER)[0] = state;
        Ok(token)
    }

    /// Chooses a token and reads it.
    ///
    /// # Errors
    /// As [`Session::sample`] and [`Session::feed`].
    pub fn step(&mut self) -> Result<u32> {
        let params = self.sampler.params();
        let (greedy, sampling) = (params.is_greedy(), cuda::Sampling::of(params));
        let chosen_there = self.position() > 0 && (greedy || sampling.is_some());
        if chosen_there && matches!(self.engine, Engine::Cuda(_)) {
            self.check(&[0])?;
        }
        let mut random = self.random();
        if chosen_there && let Engine::Cuda(engine) = &mut self.engine {
            if self.canceller.take() {
                return Err(Error::Cancelled { fed: 0 });
            }
            let token = match sampling.filter(|_| !greedy) {
                Some(sampling) => engine.sample(sampling, &mut random)?,
                None => engine.step()?,
            };
            self.set_random(random);
            self.log(&[token]);
            return Ok(token);
        }
        let token = self.sample()?;
        if let Err(error) = self.feed(&[token]) {
            // Nothing was read, so nothing was drawn.
            self.set_random(random);
            return Err(error);
        }
        Ok(token)
    }

    /// How a step runs on the session's GPU, and why so; none on the CPU.
    pub fn step_form(&self) -> Option<&StepForm> {
        match &self.engine {
            Engine::Cpu(_) => None,
            Engine::Cuda(engine) => Some(engine.form()),
        }
    }

    /// On a GPU whose steps are [`StepProgram::Persistent`]: chooses the most probable token, reads it, and tells what its
    /// phases took. None elsewhere; nothing is read then.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub fn time_step(&mut self) -> Result<Option<Vec<PhaseTime>>> {
        self.check(&[0])?;
        let Engine::Cuda(engine) = &mut self.engine else {
            return Ok(None);
        };
        let Some((token, phases)) = engine.time_step()? else {
            return Ok(None);
        };
        self.log(&[token]);
        Ok(Some(phases))
    }
}
