//! Opens a session's engine on a device: allocates its memory and compiles its programs.

use std::cell::{Cell, OnceCell};
use std::sync::{Arc, PoisonError};

use super::CudaEngine;
use super::batch::DeviceExact;
use super::copies::{Copying, checkpoint_bytes};
use super::plan::{Part, SlotMemory, Writer};
use super::programs::{Calls, Programs};
use crate::cpu::Pool;
use crate::cuda::{
    ChunkKey, Control, DecodeKernel, Device, HostLogits, Memory, Sampling, SessionMemory, Slot,
    Transfer,
};
use crate::engine::{Setup, StepForm, StepProgram};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::program::Schedule;
use crate::state::{Arena, LOGITS, StateOptions, StatePlan};

impl CudaEngine {
    /// Allocates memory for chunks of up to `options.chunk` tokens and compiles the programs that are not compiled yet.
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
        let arena = memory(plan.bytes())?;
        let ids = memory(chunk * size_of::<u32>())?;
        let control = Arc::new(Control::new(driver, &*queue)?);
        let sampling = memory(size_of::<Sampling>())?;
        let vocab = model.spec().vocab;
        let hidden = model.spec().hidden;
        let residual = memory(chunk * hidden * size_of::<f32>())?;
        let chunks = device.chunk_memory(ChunkKey {
            model: Arc::as_ptr(model).addr(),
            state: plan.bytes(),
            tokens: chunk,
            kv: options.kv,
        });
        let owner: Arc<Model> = Arc::clone(model);
        let weights = device.weights(owner);
        let mut scratch = Vec::new();
        let logits = arena.address() + plan.tensors()[LOGITS].offset as u64;
        let mut writer = Writer {
            program,
            memory: SessionMemory {
                plan: &plan,
                arena: arena.address(),
                ids: ids.address(),
                buffers: &buffers,
                weights: &weights,
                queue: &*queue,
                kv: options.kv,
            },
            scratch: &mut scratch,
            slot: Slot::ALONE,
            own: SlotMemory {
                logits,
                choice: logits,
                chosen: control.chosen_address(),
                sampling: sampling.address(),
                positions: 0,
                slots: None,
            },
        };
        let of_chunk = {
            let mut chunks = chunks.lock().unwrap_or_else(PoisonError::into_inner);
            if chunks.buffers.is_empty() {
                chunks.buffers = rows(chunk)?;
                queue.finish()?;
            }
            let bytes = checkpoint_bytes(&plan, options.grid);
            if chunks.transfer_bytes < bytes {
                chunks.transfer = Some(Transfer::new(driver, bytes)?);
                chunks.transfer_bytes = bytes;
            }
            writer.chunk(chunk, &mut chunks)?
        };
        let mut calls = Calls {
            chunk: of_chunk,
            logits: writer.token(&[Part::Logits(&program.logits)], false)?,
            sample: writer.token(&[Part::Sample], false)?,
            step: Vec::new(),
            choice: 0,
        };
        let persistent = match persistent_blocks(&device, options) {
            Err(reason) => Err(reason),
            Ok(blocks) => {
                let (step, choice) = writer.step(true)?;
                calls.choice = choice;
                let others = calls.always().collect::<Vec<_>>();
                // Compiling takes seconds, and the kernels are independent. An error of the first recurs where they are used.
                std::thread::scope(|scope| {
                    scope.spawn(|| device.kernels(&others));
                    DecodeKernel::new(&[&step], blocks, &device, &*queue, &control)
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
                (calls.step, calls.choice) = writer.step(false)?;
                (StepForm::recorded(reason), None)
            }
        };
        let programs = Programs::new(&calls, persistent, &device, &*queue)?;
        let own = Arena::new(Arc::new(plan.own_tensors()))?;
        let marks = (0..options.marks).map(|_| Ok((memory(plan.bytes())?, own.try_clone()?)));
        let mut engine = CudaEngine {
            copying: Copying::None,
            pool: Arc::clone(&options.pool),
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
            exact: None,
        };
        if options.exact {
            engine.exact = Some(Box::new(DeviceExact::new(&engine, chunk)?));
        }
        Ok(engine)
    }
}

/// Number of thread blocks if a step is one kernel, or the reason why it is a graph of kernels.
fn persistent_blocks(device: &Device, options: &Setup) -> std::result::Result<usize, String> {
    match options.step {
        StepProgram::Recorded => Err("selected by the session options".into()),
        _ if options.exact => Err("exact mode must reproduce the bits of recorded steps".into()),
        StepProgram::Automatic if device.driver().prefers_graph() => {
            Err("a graph is faster on this device".into())
        }
        _ => device.driver().resident_blocks(),
    }
}

impl Model {
    /// The order in which the ops may run, with a state of this size, and how the decode kernel of `device` enforces each dependency.
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
            exact: false,
            grid: 0,
        };
        let plan = Arc::new(self.plan(options)?);
        match CudaEngine::new(self, device, plan, &setup) {
            Ok(engine) => {
                schedule.set_gpu(format!("{}: {}", device.name(), engine.form));
                schedule.link(engine.kernel_ops().unwrap_or_default());
            }
            Err(Error::Device { device, reason }) => {
                schedule.set_gpu(format!("{device}: a graph of kernels: {reason}"));
            }
            Err(error) => return Err(error),
        }
        Ok(schedule)
    }
}
