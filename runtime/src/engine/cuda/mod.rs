//! The engine on a GPU: state, buffers, and the program as kernels.

mod columns;
mod lent;
mod programs;

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use columns::{DeviceAhead, DeviceGroup};
use programs::{Calls, Programs};

use super::{Ahead, Engine, Group, Setup, StepForm, StepProgram};
use crate::cpu::Pool;
use crate::cuda::{
    Address, ChunkKey, ChunkMemory, Control, DecodeKernel, Device, HostLogits, KernelOpInfo,
    Launches, Memory, PhaseTime, Queue, Queued, Sampling, SessionMemory, Source,
};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::operands::{RESIDUAL, View};
use crate::program::Schedule;
use crate::sampler::{SamplerParams, SamplerState};
use crate::state::{Arena, Kv, LOGITS, StateOptions, StatePlan};

/// The state and the programs of a session on a device.
pub(crate) struct CudaEngine {
    queue: Box<dyn Queue>,
    device: Arc<Device>,
    model: Arc<Model>,
    arena: Memory,
    plan: Arc<StatePlan>,
    /// What the host has of the state: position, sampler and history.
    own: Arena,
    /// Buffers of a step, one row each, and its working memory.
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    /// Those of chunks, which sessions of the model share.
    chunks: Arc<Mutex<ChunkMemory>>,
    /// The residual stream of the last chunk, `[tokens, hidden]`.
    residual: Memory,
    /// Tokens of the chunk, u32.
    ids: Memory,
    /// States to return to, and what the host has of each.
    marks: Vec<(Memory, Arena)>,
    /// Whether the state's logits are those after the last token.
    fresh: bool,
    hidden: usize,
    vocab: usize,
    /// The token that the state's logits chose, and how steps ended.
    control: Arc<Control>,
    /// Why the session is lost, once it is.
    lost: OnceCell<String>,
    /// How tokens are sampled, a [`Sampling`].
    sampling: Memory,
    /// The parameters and the random state that the device holds, where the host has a copy.
    known: (Option<Sampling>, Option<SamplerState>),
    /// Whether something may be left to do on the queue.
    busy: Cell<bool>,
    kv: Kv,
    host_logits: HostLogits,
    programs: Box<Programs>,
    form: StepForm,
}

impl CudaEngine {
    /// Allocates for chunks of up to `chunk` tokens and compiles what is not compiled yet.
    pub fn new(
        model: &Arc<Model>,
        device: &Arc<Device>,
        plan: Arc<StatePlan>,
        options: &Setup,
    ) -> Result<Self> {
        let device = Arc::clone(device);
        let chunk = options.chunk;
        let driver = device.driver();
        let queue = Arc::clone(driver).queue()?;
        let program = model.program();
        let memory = |bytes: usize| {
            let memory = Memory::new(driver, bytes)?;
            queue.clear(memory.address(), bytes.max(1))?;
            Ok(memory)
        };
        let rows = |rows: usize| {
            let widths = program.widths.iter();
            let buffers = widths.map(|width| memory(width * rows * size_of::<f32>()));
            buffers.collect::<Result<Vec<_>>>()
        };
        let buffers = rows(1)?;
        let arena = memory(plan.bytes)?;
        let ids = memory(chunk * size_of::<u32>())?;
        let control = Arc::new(Control::new(driver, &*queue)?);
        let sampling = memory(size_of::<Sampling>())?;
        let vocab = model.spec().vocab;
        let hidden = model.spec().hidden;
        let owner: Arc<Model> = Arc::clone(model);
        let chunks = device.chunk_memory(ChunkKey {
            model: Arc::as_ptr(model).addr(),
            state: plan.bytes,
            tokens: chunk,
            kv: options.kv,
        });
        let residual = memory(chunk * hidden * size_of::<f32>())?;
        let weights = device.weights(owner);
        let session = SessionMemory {
            plan: &plan,
            arena: arena.address(),
            ids: ids.address(),
            buffers: &buffers,
            weights: &weights,
            queue: &*queue,
            kv: options.kv,
        };
        let mut scratch = Vec::new();
        let mut lowered =
            |tokens: usize, persistent: bool, write: &dyn Fn(&mut Launches) -> Result<()>| {
                let mut launches = Launches::new(&session, &mut scratch, tokens, persistent);
                write(&mut launches)?;
                Ok::<_, Error>(launches.into_calls())
            };
        let ops = |launches: &mut Launches| {
            for (index, op) in program.ops.iter().enumerate() {
                launches.begin(index, &op.access());
                op.launch(launches)?;
            }
            launches.end();
            launches.advance();
            Ok(())
        };
        let logits = |launches: &mut Launches| {
            let residual = View::whole(RESIDUAL, hidden);
            launches.begin(program.ops.len(), &program.logits.access());
            let logits = launches.state_rows(LOGITS, vocab);
            program.logits.launch(launches, residual, logits)
        };
        let choice = |launches: &mut Launches| {
            let logits = launches.state_address(LOGITS);
            launches.choose(vocab, logits, control.chosen_address())
        };
        let sample = |launches: &mut Launches| {
            launches.sample(vocab, sampling.address(), control.chosen_address())
        };
        let of_chunk = || -> Result<Vec<Queued>> {
            let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
            let ChunkMemory { buffers, scratch } = &mut *chunks;
            if buffers.is_empty() {
                *buffers = rows(chunk)?;
                queue.finish()?;
            }
            let session = SessionMemory { buffers, ..session };
            let mut launches = Launches::new(&session, scratch, chunk, false);
            launches.untaken = 0;
            ops(&mut launches)?;
            Ok(launches.into_calls())
        };
        let mut calls = Calls {
            chunk: of_chunk()?,
            logits: lowered(1, false, &logits)?,
            sample: lowered(1, false, &sample)?,
            step: Vec::new(),
            choice: 0,
        };
        let mut step = |persistent: bool| {
            let mut step = lowered(1, persistent, &choice)?;
            let choice = step.len();
            step.extend(lowered(1, persistent, &ops)?);
            step.extend(lowered(1, persistent, &logits)?);
            Ok::<_, Error>((step, choice))
        };
        let least = driver.tuning().least_weight_bytes;
        let blocks = match options.step {
            StepProgram::Recorded => Err("it was chosen".into()),
            StepProgram::Automatic if options.ahead => {
                Err("tokens that are read ahead have the bits of recorded steps".into())
            }
            StepProgram::Automatic if program.weight_bytes() < least => Err(format!(
                "one kernel is faster from {least} bytes of matrices on, and the model has {}",
                program.weight_bytes()
            )),
            _ => driver.resident_blocks(),
        };
        let persistent = match blocks {
            Err(reason) => Err(reason),
            Ok(blocks) => {
                let (phases, choice) = step(true)?;
                let phases: Vec<&Queued> = phases.iter().collect();
                let others = Source::of(&calls.always().collect::<Vec<_>>());
                calls.choice = choice;
                // Compiling takes seconds, and the two units are independent. An error comes again where it belongs.
                std::thread::scope(|scope| {
                    scope.spawn(|| device.kernels(&others));
                    DecodeKernel::new(&phases, blocks, &device, &*queue, &control)
                })?
            }
        };
        let (form, persistent) = match persistent {
            Ok(persistent) => (
                StepForm::persistent(persistent.describe()),
                Some(persistent),
            ),
            Err(reason) if options.step == StepProgram::Persistent => {
                return Err(Error::Device {
                    device: device.name().into(),
                    reason: format!("a step cannot run as one kernel: {reason}"),
                });
            }
            Err(reason) => {
                (calls.step, calls.choice) = step(false)?;
                (StepForm::recorded(reason), None)
            }
        };
        let programs = Programs::new(&calls, persistent, &device, &*queue)?;
        let own = Arena::new(Arc::new(plan.own_tensors()))?;
        let marks = (0..options.marks).map(|_| Ok((memory(plan.bytes)?, own.try_clone()?)));
        Ok(CudaEngine {
            model: Arc::clone(model),
            marks: marks.collect::<Result<Vec<_>>>()?,
            own,
            host_logits: HostLogits::new(vocab),
            fresh: false,
            arena,
            ids,
            buffers,
            scratch,
            chunks,
            residual,
            hidden,
            vocab,
            control,
            lost: OnceCell::new(),
            sampling,
            known: (None, None),
            busy: Cell::new(true),
            kv: options.kv,
            programs: Box::new(programs),
            form,
            plan,
            device,
            queue,
        })
    }

    /// What the phases of a step have to do with ops, if it is one kernel.
    pub fn kernel_ops(&self) -> Option<&[KernelOpInfo]> {
        self.programs.persistent.as_ref().map(DecodeKernel::ops)
    }

    /// The queue of a session that is not lost.
    fn queue(&self) -> Result<&dyn Queue> {
        self.check_lost()?;
        self.busy.set(true);
        Ok(&*self.queue)
    }

    fn check_lost(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::Device {
                device: self.device.name().into(),
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Waits until the device is idle, and returns the token that was chosen last.
    ///
    /// # Errors
    /// [`Error::Device`] if a step passed its deadline: what the session holds is worth nothing then, and every later call has
    /// the same error.
    fn settle(&self) -> Result<u32> {
        let chosen = self.control.read(self.queue()?)?;
        if let (Err(failure), Some(persistent)) = (chosen, &self.programs.persistent) {
            let _ = self.lost.set(persistent.describe_failure(failure));
            self.queue()?;
        }
        Ok(chosen.unwrap_or_default())
    }

    /// A row of the last chunk's residual stream becomes that which logits are made of.
    fn move_row(&self, row: usize) -> Result<()> {
        let bytes = self.hidden * size_of::<f32>();
        let from = self.residual.address() + (row * bytes) as u64;
        let to = self.buffers[RESIDUAL].address();
        self.queue()?.copy(from, to, bytes)
    }

    /// Reads a chunk of several tokens, whose ids are on the device. The memory of chunks is free again when this returns.
    fn read_chunk(&mut self, tokens: usize) -> Result<()> {
        let chunks = Arc::clone(&self.chunks);
        let chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
        for template in &mut self.programs.chunk {
            template.fit(tokens);
            self.queue.launch(&template.launch)?;
        }
        let bytes = tokens * self.hidden * size_of::<f32>();
        let residual = chunks.buffers[RESIDUAL].address();
        self.queue.copy(residual, self.residual.address(), bytes)?;
        self.queue.finish()
    }

    /// The token that the last step chose.
    fn chosen(&self) -> Result<u32> {
        let token = self.settle()?;
        if token as usize >= self.vocab {
            return Err(Error::invalid(
                "logits",
                "found NaN or infinity, expected finite numbers (the weights or the state are damaged)",
            ));
        }
        Ok(token)
    }

    /// Where a tensor of the state lies.
    pub(super) fn tensor(&self, tensor: usize) -> Address {
        self.arena.address() + self.plan.tensors[tensor].offset as u64
    }

    /// Another state takes the place of this one.
    pub(super) fn replaced(&mut self) {
        self.host_logits.forget();
        self.known.1 = None;
    }

    /// Chooses the first of the largest logits on the device and reads that token.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the logits are not finite; the state is then one of a damaged model.
    fn choose(&mut self) -> Result<u32> {
        self.queue()?;
        self.host_logits.forget();
        self.fresh = true;
        self.programs.greedy.replay()?;
        self.chosen()
    }

    /// The same with a token that is sampled; the random numbers move on.
    ///
    /// # Errors
    /// As [`CudaEngine::choose`].
    fn sample(&mut self, sampling: Sampling) -> Result<u32> {
        self.queue()?;
        self.host_logits.forget();
        self.fresh = true;
        if self.known.0.take() != Some(sampling) {
            let bytes = bytemuck::bytes_of(&sampling);
            self.queue()?.write(self.sampling.address(), bytes)?;
        }
        let random = self.write_random()?;
        self.programs.sample.replay()?;
        let token = self.chosen()?;
        self.known.0 = Some(sampling);
        self.moved_on(random, sampling);
        Ok(token)
    }

    /// Takes over another session's state, which has the same plan.
    fn copy_from(&mut self, other: &CudaEngine) -> Result<()> {
        self.replaced();
        if other.programs.persistent.is_some() {
            other.settle()?;
        }
        other.queue()?.finish()?;
        let (from, to) = (other.arena.address(), self.arena.address());
        self.queue()?.copy(from, to, self.plan.bytes)?;
        self.queue()?.finish()
    }
}

impl Engine for CudaEngine {
    fn arena(&self) -> &Arena {
        &self.own
    }

    fn arena_mut(&mut self) -> &mut Arena {
        &mut self.own
    }

    fn plan(&self) -> &Arc<StatePlan> {
        &self.plan
    }

    fn work_bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        let persistent = self.programs.persistent.as_ref();
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        memories.map(Memory::bytes).sum::<usize>()
            + chunks.bytes()
            + self.residual.bytes()
            + self.ids.bytes()
            + persistent.map_or(0, DecodeKernel::bytes)
    }

    fn device_bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(|(memory, _)| memory.bytes()).sum();
        self.device.weight_bytes() + self.arena.bytes() + marks + self.work_bytes()
    }

    fn reset(&mut self) -> Result<()> {
        self.replaced();
        self.queue()?.clear(self.arena.address(), self.plan.bytes)?;
        self.own.reset();
        Ok(())
    }

    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        self.host_logits.forget();
        self.queue()?
            .write(self.ids.address(), bytemuck::cast_slice(tokens))?;
        if let [_] = tokens {
            self.fresh = true;
            return self.programs.step.replay();
        }
        self.fresh = false;
        self.read_chunk(tokens.len())
    }

    fn compute_logits(&mut self, row: usize) -> Result<()> {
        self.host_logits.forget();
        if !self.fresh {
            self.move_row(row)?;
            for template in &self.programs.logits {
                self.queue()?.launch(&template.launch)?;
            }
        }
        match self.programs.persistent {
            Some(_) => self.settle().map(|_| ()),
            None => self.queue()?.finish(),
        }
    }

    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()> {
        for (row, logits) in rows.zip(logits.chunks_exact_mut(self.vocab)) {
            self.compute_logits(row)?;
            logits.copy_from_slice(self.logits()?);
        }
        Ok(())
    }

    fn logits(&self) -> Result<&[f32]> {
        self.host_logits.get(|logits| {
            self.queue()?
                .read(self.tensor(LOGITS), bytemuck::cast_slice_mut(logits))
        })
    }

    fn chooses(&self, params: &SamplerParams) -> bool {
        params.is_greedy() || Sampling::of(params).is_some()
    }

    fn next(&self) -> Option<u32> {
        self.host_logits.next
    }

    fn step(&mut self, params: &SamplerParams) -> Result<u32> {
        match Sampling::of(params).filter(|_| !params.is_greedy()) {
            Some(sampling) => self.sample(sampling),
            None => self.choose(),
        }
    }

    fn form(&self) -> Option<&StepForm> {
        Some(&self.form)
    }

    fn time_step(&mut self) -> Result<Option<(u32, Vec<PhaseTime>)>> {
        let Some(persistent) = &self.programs.persistent else {
            return Ok(None);
        };
        self.queue()?;
        self.host_logits.forget();
        self.fresh = true;
        let phases = persistent.time(&self.device, &*self.queue)?;
        Ok(Some((self.chosen()?, phases)))
    }

    fn fork(&self, setup: &Setup) -> Result<Box<dyn Engine>> {
        let plan = Arc::clone(&self.plan);
        let mut fork = CudaEngine::new(&self.model, &self.device, plan, setup)?;
        fork.own.copy_from(&self.own);
        fork.copy_from(self)?;
        Ok(Box::new(fork))
    }

    fn download(&self, arena: &mut Arena) -> Result<()> {
        if self.programs.persistent.is_some() {
            self.settle()?;
        }
        self.queue()?
            .read(self.arena.address(), arena.bytes_mut())?;
        let own = self.own.bytes();
        arena.bytes_mut()[..own.len()].copy_from_slice(own);
        Ok(())
    }

    fn upload(&mut self, arena: &Arena) -> Result<()> {
        self.replaced();
        self.queue()?.write(self.arena.address(), arena.bytes())?;
        let own = self.own.bytes().len();
        self.own.bytes_mut().copy_from_slice(&arena.bytes()[..own]);
        Ok(())
    }

    fn save_mark(&mut self, mark: usize) -> Result<()> {
        let (from, to) = (self.arena.address(), self.marks[mark].0.address());
        self.queue()?.copy(from, to, self.plan.bytes)?;
        self.marks[mark].1.copy_from(&self.own);
        Ok(())
    }

    fn load_mark(&mut self, mark: usize) -> Result<()> {
        self.replaced();
        let (from, to) = (self.marks[mark].0.address(), self.arena.address());
        self.queue()?.copy(from, to, self.plan.bytes)?;
        self.own.copy_from(&self.marks[mark].1);
        Ok(())
    }

    fn group(&self, most: usize) -> Result<Box<dyn Group>> {
        Ok(Box::new(DeviceGroup::new(self, most)?))
    }

    fn ahead(&self, most: usize) -> Result<Box<dyn Ahead>> {
        Ok(Box::new(DeviceAhead::new(self, most)?))
    }

    fn on_device(&mut self) -> Option<&mut CudaEngine> {
        Some(self)
    }
}

impl Model {
    /// As [`Model::schedule`], and how the decode kernel of `device` keeps each dependency.
    ///
    /// # Errors
    /// [`Error::Device`] if the device cannot hold a session.
    pub fn schedule_on(
        self: &Arc<Self>,
        options: &StateOptions,
        device: &Arc<Device>,
    ) -> Result<Schedule> {
        let mut schedule = self.schedule(options)?;
        let setup = Setup {
            device: None,
            pool: Arc::new(Pool::new(1)?),
            chunk: 1,
            marks: 0,
            kv: options.kv,
            step: StepProgram::Persistent,
            ahead: false,
        };
        let plan = Arc::new(self.plan(options)?);
        match CudaEngine::new(self, device, plan, &setup) {
            Ok(engine) => {
                schedule.gpu = Some(format!("{}: {}", device.name(), engine.form));
                schedule.link(engine.kernel_ops().unwrap_or_default());
            }
            Err(Error::Device { device, reason }) => {
                schedule.gpu = Some(format!("{device}: a graph of kernels: {reason}"));
            }
            Err(error) => return Err(error),
        }
        Ok(schedule)
    }
}
