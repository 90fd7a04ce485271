//! Tokens of one session in the decode kernel: weights are read once for all of them, and each gets the bits of a step.

use std::sync::Arc;

use super::super::plan::{SlotMemory, Writer};
use super::{BatchMemory, CudaEngine, TokenSlots, at, zeros};
use crate::cuda::{Control, DecodeKernel, Memory, Queue, Queued, Recording, SessionMemory, Slot};
use crate::error::Result;

/// The most tokens. Their inputs and partial sums take shared memory and registers: from about six tokens on, a recorded pass is faster.
const MOST: usize = 4;

/// A decode kernel with slots for several tokens, and its memory.
pub(super) struct KernelSlots {
    queue: Box<dyn Queue>,
    kernel: DecodeKernel,
    /// The launches for one token, two tokens, and so on.
    runs: Vec<Box<dyn Recording>>,
    control: Arc<Control>,
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    own: BatchMemory,
    /// For each slot, the chosen token once more.
    next: Memory,
}

impl KernelSlots {
    /// Creates slots for up to `most` tokens of the state of `engine`; `None` if its steps are not one kernel, for more than four tokens, or
    /// if the device has too little shared memory.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost or its memory is full.
    pub fn new(engine: &CudaEngine, most: usize) -> Result<Option<Self>> {
        let Some(blocks) = engine.kernel_blocks().filter(|_| most <= MOST) else {
            return Ok(None);
        };
        let (model, device) = (engine.model(), engine.device());
        let queue = Arc::clone(device.driver()).queue()?;
        let program = model.program();
        let vocab = model.spec().vocab;
        let own = BatchMemory::new(device, &*queue, most, vocab)?;
        let next = zeros(device, &*queue, most * size_of::<u32>())?;
        let buffers = (program.widths.iter())
            .map(|width| zeros(device, &*queue, width * most * size_of::<f32>()))
            .collect::<Result<Vec<_>>>()?;
        let weights = device.weights(model.clone());
        let mut scratch = Vec::new();
        let mut writer = Writer {
            program,
            memory: SessionMemory {
                plan: engine.layout(),
                arena: engine.state(),
                ids: own.ids.address(),
                buffers: &buffers,
                weights: &weights,
                queue: &*queue,
                kv: engine.kv(),
            },
            scratch: &mut scratch,
            slot: Slot::ALONE,
            own: SlotMemory {
                logits: 0,
                choice: 0,
                chosen: 0,
                sampling: 0,
                positions: own.positions.address(),
                slots: None,
            },
        };
        let slots = (0..most).map(|row| {
            writer.slot = Slot {
                row,
                position: Some(at::<u64>(&own.positions, row)),
                ..Slot::ALONE
            };
            writer.memory.ids = at::<u32>(&own.ids, row);
            writer.own = SlotMemory {
                logits: own.logits(row),
                choice: own.logits(row),
                chosen: at::<u32>(&own.chosen, row),
                slots: Some(row + 1),
                ..writer.own
            };
            writer.read_slot(at::<u32>(&next, row))
        });
        let slots = slots.collect::<Result<Vec<Vec<Queued>>>>()?;
        let slots: Vec<&[Queued]> = slots.iter().map(Vec::as_slice).collect();
        let control = Arc::new(Control::new(device.driver(), &*queue)?);
        let Ok(kernel) = DecodeKernel::new(&slots, blocks, device, &*queue, &control)? else {
            return Ok(None);
        };
        queue.finish()?;
        let runs = (1..=most).map(|tokens| queue.record(&[kernel.launch_slots(tokens)]));
        Ok(Some(KernelSlots {
            runs: runs.collect::<Result<_>>()?,
            queue,
            kernel,
            control,
            buffers,
            scratch,
            own,
            next,
        }))
    }
}

impl TokenSlots for KernelSlots {
    fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        let memories = memories.chain(self.own.all()).chain([&self.next]);
        memories.map(Memory::bytes).sum::<usize>() + self.kernel.bytes()
    }

    fn most(&self) -> usize {
        self.runs.len()
    }

    fn queue(&self) -> &dyn Queue {
        &*self.queue
    }

    fn memory(&self) -> &BatchMemory {
        &self.own
    }

    fn read(&self, tokens: &[u32]) -> Result<()> {
        self.own.write_ids(&*self.queue, tokens)?;
        self.runs[tokens.len() - 1].replay()
    }

    fn settle(&self, engine: &CudaEngine) -> Result<()> {
        match self.control.read(&*self.queue)? {
            Ok(_) => Ok(()),
            Err(failure) => engine.lose(self.kernel.describe_failure(failure)),
        }
    }

    fn choose(&self, tokens: &mut [u32]) -> Result<()> {
        self.own.read_chosen(&*self.queue, tokens)
    }

    fn commit(&self, count: usize) -> Result<()> {
        self.runs[count - 1].replay()
    }
}
