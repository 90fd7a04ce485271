//! Access to the state for programs on other queues, which read tokens into it.

use std::sync::Arc;

use super::CudaEngine;
use crate::cuda::{Address, DecodeKernel, Device, Sampling};
use crate::error::Result;
use crate::loaded::Model;
use crate::sampler::SamplerState;
use crate::state::{Kv, SAMPLER, StatePlan};

impl CudaEngine {
    /// The model.
    pub(super) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The layout of the state.
    pub(super) fn layout(&self) -> &StatePlan {
        &self.plan
    }

    /// Data type of cached keys and values.
    pub(super) fn kv(&self) -> Kv {
        self.kv
    }

    /// Device address of the state.
    pub(super) fn state(&self) -> Address {
        self.arena.address()
    }

    /// The thread blocks of the decode kernel, if a step is one kernel.
    pub(super) fn kernel_blocks(&self) -> Option<usize> {
        self.programs.persistent.as_ref().map(DecodeKernel::blocks)
    }

    /// Makes this call and every later one fail for this reason.
    pub(super) fn lose(&self, reason: String) -> Result<()> {
        let _ = self.lost.set(reason);
        self.check_lost()
    }

    /// Sets the most probable token of the state's logits, if known.
    pub(super) fn set_next(&mut self, next: Option<u32>) {
        self.host_logits.next = next;
    }

    /// Hands the state over to a program on another queue, which reads tokens into it and samples one if `sampling` is set. Waits until
    /// this engine's queue is idle. Returns the state's address.
    pub(super) fn leave(&mut self, sampling: Option<Sampling>) -> Result<Address> {
        self.check_lost()?;
        if let Some(sampling) = sampling {
            let random = self.write_random()?;
            self.moved_on(random, sampling);
        }
        self.settle_exact()?;
        if self.busy.get() {
            match self.programs.persistent {
                Some(_) => self.settle().map(|_| ())?,
                None => self.queue()?.finish()?,
            }
            self.busy.set(false);
        }
        self.host_logits.forget();
        self.fresh = true;
        Ok(self.arena.address())
    }

    /// Writes the random number state to the device, unless the device has it already.
    pub(super) fn write_random(&mut self) -> Result<SamplerState> {
        let random = self.own.tensor::<SamplerState>(SAMPLER)[0];
        if self.known.1.take() != Some(random) {
            let bytes = bytemuck::bytes_of(&random);
            self.queue()?.write(self.tensor(SAMPLER), bytes)?;
        }
        Ok(random)
    }

    /// Records that the device has drawn the random numbers of `sampling`.
    pub(super) fn moved_on(&mut self, mut random: SamplerState, sampling: Sampling) {
        random.draws = random.draws.wrapping_add(sampling.draws.into());
        self.known.1 = Some(random);
        self.own.tensor_mut::<SamplerState>(SAMPLER)[0] = random;
    }
}
