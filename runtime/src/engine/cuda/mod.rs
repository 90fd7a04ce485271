//! The engine on a GPU: state and buffers in device memory, the program as kernels.

mod batch;
mod copies;
mod handover;
mod open;
mod plan;
mod programs;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batch::{DeviceExact, DeviceGroup, DeviceVerifier};
use copies::Copying;
use programs::Programs;

use super::{Engine, Group, Setup, StateCopy, StepForm, Verifier};
use crate::cpu::Pool;
use crate::cuda::{
    Address, ChunkMemory, Control, DecodeKernel, Device, HostLogits, KernelOpInfo, Memory, Queue,
    Sampling,
};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::op_time::OpTime;
use crate::operands::RESIDUAL;
use crate::sampler::{SamplerParams, SamplerState};
use crate::state::{Arena, Kv, LOGITS, StatePlan};

/// The state and the programs of a session on a device.
pub(crate) struct CudaEngine {
    queue: Box<dyn Queue>,
    device: Arc<Device>,
    model: Arc<Model>,
    arena: Memory,
    plan: Arc<StatePlan>,
    /// The host's part of the state: position, sampler and history.
    own: Arena,
    /// One-row buffers and working memory of a step.
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    /// Buffers and working memory of chunks, shared by all sessions of the model.
    chunks: Arc<Mutex<ChunkMemory>>,
    /// The residual stream of the last chunk, `[tokens, hidden]`.
    residual: Memory,
    /// Tokens of the chunk, u32.
    ids: Memory,
    /// States of the marks, and the host's part of each.
    marks: Vec<(Memory, Arena)>,
    /// Whether the state's logits are those after the last token.
    fresh: bool,
    hidden: usize,
    vocab: usize,
    /// The token chosen on the device, and the outcome of steps.
    control: Arc<Control>,
    /// Why the session is lost; empty while it is not.
    lost: OnceCell<String>,
    /// Sampling parameters, a [`Sampling`].
    sampling: Memory,
    /// The parameters and the random number state that the device holds; `None` if unknown.
    known: (Option<Sampling>, Option<SamplerState>),
    /// Whether the queue may still have work.
    busy: Cell<bool>,
    kv: Kv,
    host_logits: HostLogits,
    programs: Box<Programs>,
    form: StepForm,
    /// Reads prompts of exact sessions.
    exact: Option<Box<DeviceExact>>,
    pool: Arc<Pool>,
    /// The copy of the state that is in progress.
    copying: Copying,
}

impl CudaEngine {
    /// The program's ops that each op of the decode kernel computes, if a step is one kernel.
    pub fn kernel_ops(&self) -> Option<&[KernelOpInfo]> {
        self.programs.persistent.as_ref().map(DecodeKernel::ops)
    }

    /// The queue, unless the session is lost. No other queue is changing the state when this returns.
    fn queue(&self) -> Result<&dyn Queue> {
        self.check_lost()?;
        self.settle_exact()?;
        self.busy.set(true);
        Ok(&*self.queue)
    }

    /// Waits until the state contains all tokens of exact prompts, which another queue reads.
    fn settle_exact(&self) -> Result<()> {
        self.exact.as_ref().map_or(Ok(()), |exact| exact.settle())
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

    /// Locks the memory that sessions of the model share.
    fn lock_chunks(&self) -> MutexGuard<'_, ChunkMemory> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the device is idle, and returns the last chosen token.
    ///
    /// # Errors
    /// [`Error::Device`] if a step missed its deadline: the session's contents are then invalid, and every later call returns the same
    /// error.
    fn settle(&self) -> Result<u32> {
        let chosen = self.control.read(self.queue()?)?;
        if let (Err(failure), Some(persistent)) = (chosen, &self.programs.persistent) {
            self.lose(persistent.describe_failure(failure))?;
        }
        Ok(chosen.unwrap_or_default())
    }

    /// Copies a row of the last chunk's residual stream to the input of the logits.
    fn move_row(&self, row: usize) -> Result<()> {
        let bytes = self.hidden * size_of::<f32>();
        let from = self.residual.address() + (row * bytes) as u64;
        let to = self.buffers[RESIDUAL].address();
        self.queue()?.copy(from, to, bytes)
    }

    /// Reads a chunk of several tokens, whose ids are on the device. The shared memory is free again when this returns.
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
        // While the device computes the chunk, the host can receive a checkpoint.
        self.copying.take_over(&self.pool);
        self.queue.finish()
    }

    /// The token that the last step chose.
    fn chosen(&self) -> Result<u32> {
        let token = self.settle()?;
        if token as usize >= self.vocab {
            return Err(Error::not_finite());
        }
        Ok(token)
    }

    /// Device address of a state tensor.
    pub(super) fn tensor(&self, tensor: usize) -> Address {
        self.arena.address() + self.plan.tensors()[tensor].offset as u64
    }

    /// Invalidates cached values because the state is being replaced.
    pub(super) fn replaced(&mut self) {
        self.host_logits.forget();
        self.known.1 = None;
    }

    /// Chooses the most probable token on the device and reads it.
    ///
    /// # Errors
    /// [`Error::Logits`] if the logits are not finite; the state is then invalid too.
    fn choose(&mut self) -> Result<u32> {
        self.queue()?;
        self.host_logits.forget();
        self.fresh = true;
        self.programs.greedy.replay()?;
        self.chosen()
    }

    /// Samples a token on the device and reads it; the random numbers advance.
    ///
    /// # Errors
    /// See [`CudaEngine::choose`].
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

    /// Copies the state of another engine with the same plan.
    fn copy_from(&mut self, other: &CudaEngine) -> Result<()> {
        self.replaced();
        if other.programs.persistent.is_some() {
            other.settle()?;
        }
        other.queue()?.finish()?;
        let (from, to) = (other.arena.address(), self.arena.address());
        self.queue()?.copy(from, to, self.plan.bytes())?;
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
        let chunks = self.lock_chunks();
        memories.map(Memory::bytes).sum::<usize>()
            + chunks.bytes()
            + self.residual.bytes()
            + self.ids.bytes()
            + self.exact.as_ref().map_or(0, |exact| exact.bytes())
            + persistent.map_or(0, DecodeKernel::bytes)
    }

    fn device_bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(|(memory, _)| memory.bytes()).sum();
        self.device.weight_bytes() + self.arena.bytes() + marks + self.work_bytes()
    }

    fn reset(&mut self) -> Result<()> {
        self.replaced();
        self.queue()?
            .clear(self.arena.address(), self.plan.bytes())?;
        self.own.reset();
        Ok(())
    }

    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        if let Some(mut exact) = self.exact.take() {
            exact.holds_logits = false;
            let read = match tokens.len() {
                1 => None,
                _ => Some(exact.read(self, tokens)),
            };
            self.exact = Some(exact);
            if let Some(read) = read {
                return read;
            }
        }
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

    fn read_layers(&mut self, tokens: &[u32]) -> Result<()> {
        if self.exact.is_some() || tokens.len() > 1 {
            return self.read(tokens);
        }
        // The programs of a step compute logits; the programs of a chunk do not.
        self.host_logits.forget();
        self.queue()?
            .write(self.ids.address(), bytemuck::cast_slice(tokens))?;
        self.fresh = false;
        self.read_chunk(1)
    }

    fn residual(&self, rows: Range<usize>, stream: &mut [f32]) -> Result<()> {
        let from = match self.exact.as_ref().filter(|exact| exact.holds_logits) {
            Some(exact) => exact.residual(),
            None => self.residual.address(),
        };
        let from = from + (rows.start * self.hidden * size_of::<f32>()) as u64;
        self.queue()?.read(from, bytemuck::cast_slice_mut(stream))
    }

    fn invalidate_logits(&mut self) -> Result<()> {
        self.host_logits.forget();
        let nan = f32::NAN;
        self.queue()?
            .write(self.tensor(LOGITS), bytemuck::bytes_of(&nan))
    }

    fn compute_logits(&mut self, row: usize) -> Result<()> {
        self.host_logits.forget();
        if let Some(exact) = self.exact.as_ref().filter(|exact| exact.holds_logits) {
            return exact.end(self, row);
        }
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

    fn can_choose(&self, params: &SamplerParams) -> bool {
        params.is_greedy() || Sampling::new(params).is_some()
    }

    fn next(&self) -> Option<u32> {
        self.host_logits.next
    }

    fn step(&mut self, params: &SamplerParams) -> Result<u32> {
        match Sampling::new(params).filter(|_| !params.is_greedy()) {
            Some(sampling) => self.sample(sampling),
            None => self.choose(),
        }
    }

    fn form(&self) -> Option<&StepForm> {
        Some(&self.form)
    }

    fn time_step(&mut self) -> Result<Option<(u32, Vec<OpTime>)>> {
        let Some(persistent) = &self.programs.persistent else {
            return Ok(None);
        };
        self.queue()?;
        self.host_logits.forget();
        self.fresh = true;
        let times = persistent.time(&self.device, &*self.queue)?;
        Ok(Some((self.chosen()?, times)))
    }

    fn fork(&self, setup: &Setup) -> Result<Box<dyn Engine>> {
        let plan = Arc::clone(&self.plan);
        let mut fork = CudaEngine::new(&self.model, &self.device, plan, setup)?;
        fork.own.copy_from(&self.own);
        fork.copy_from(self)?;
        Ok(Box::new(fork))
    }

    fn download(&self, state: &mut [u8]) -> Result<()> {
        assert_eq!(state.len(), self.plan.bytes());
        if self.programs.persistent.is_some() {
            self.settle()?;
        }
        self.queue()?.read(self.arena.address(), state)?;
        let own = self.own.bytes();
        state[..own.len()].copy_from_slice(own);
        Ok(())
    }

    fn upload(&mut self, state: &[u8]) -> Result<()> {
        // The driver would copy any number of bytes that it is given.
        assert_eq!(state.len(), self.plan.bytes());
        self.replaced();
        self.queue()?.write(self.arena.address(), state)?;
        let own = self.own.bytes().len();
        self.own.bytes_mut().copy_from_slice(&state[..own]);
        Ok(())
    }

    fn begin_copy(&mut self, positions: Range<u64>) -> Result<()> {
        if self.programs.persistent.is_some() {
            self.settle()?;
        }
        self.begin(positions)
    }

    fn end_copy(&mut self) -> Result<StateCopy> {
        self.end()
    }

    fn copy_out(
        &mut self,
        parts: &mut dyn Iterator<Item = Range<usize>>,
        bytes: &mut [u8],
    ) -> Result<()> {
        if self.programs.persistent.is_some() {
            self.settle()?;
        }
        let mut rest = bytes;
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            self.queue()?
                .read(self.arena.address() + part.start as u64, to)?;
            rest = after;
        }
        Ok(())
    }

    fn copy_in(&mut self, copies: &mut dyn Iterator<Item = (Range<usize>, &[u8])>) -> Result<()> {
        self.replaced();
        let (queue, arena) = (self.queue()?, self.arena.address());
        let mut copies = copies.map(|(part, bytes)| (arena + part.start as u64, bytes));
        let written = copies.try_for_each(|(to, bytes)| {
            // SAFETY: the bytes stay borrowed until the queue has finished.
            unsafe { queue.begin_write(to, bytes) }
        });
        queue.finish().and(written)
    }

    fn clear(&mut self, parts: &mut dyn Iterator<Item = Range<usize>>) -> Result<()> {
        self.replaced();
        for part in parts {
            self.queue()?
                .clear(self.arena.address() + part.start as u64, part.len())?;
        }
        Ok(())
    }

    fn replace_own(&mut self) -> Result<()> {
        self.replaced();
        self.queue()?.write(self.arena.address(), self.own.bytes())
    }

    fn save_mark(&mut self, mark: usize) -> Result<()> {
        let (from, to) = (self.arena.address(), self.marks[mark].0.address());
        self.queue()?.copy(from, to, self.plan.bytes())?;
        self.marks[mark].1.copy_from(&self.own);
        Ok(())
    }

    fn load_mark(&mut self, mark: usize) -> Result<()> {
        self.replaced();
        let (from, to) = (self.marks[mark].0.address(), self.arena.address());
        self.queue()?.copy(from, to, self.plan.bytes())?;
        self.own.copy_from(&self.marks[mark].1);
        Ok(())
    }

    fn group(&self, most: usize) -> Result<Box<dyn Group>> {
        Ok(Box::new(DeviceGroup::new(self, most)?))
    }

    fn verifier(&self, most: usize, drafts: bool) -> Result<Box<dyn Verifier>> {
        Ok(Box::new(DeviceVerifier::new(self, most, drafts)?))
    }

    fn on_device(&mut self) -> Option<&mut CudaEngine> {
        Some(self)
    }
}
