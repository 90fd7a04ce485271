//! Drafts by a model's MTP block on a device: a recorded one-slot program that feeds itself.

use super::{BatchMemory, SlotKind, Writer, at};
use crate::cuda::{Address, Memory, Program, Queue, Recording, Rooms, SessionMemory};
use crate::engine::cuda::CudaEngine;
use crate::engine::cuda::plan::Part;
use crate::error::Result;
use crate::model::Draft;

/// The block's program and its memory.
pub(super) struct DeviceDraft {
    /// Reads the token in the slot, chooses the next one, and replaces token and hidden state with its results.
    step: Box<dyn Recording>,
    program: Program,
    own: BatchMemory,
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    /// Address and size in bytes of the previous token's hidden state.
    before: (Address, usize),
    /// Byte offsets in the state: of the last token's hidden state, and of the first of the block's tensors.
    last: usize,
    first: usize,
}

impl DeviceDraft {
    /// Prepares drafts of up to `most` tokens on `queue`. The block's state tensors are those of the state at `copy`.
    ///
    /// # Errors
    /// [`crate::Error::Device`] if the device was lost or its memory is full.
    pub fn new(
        engine: &CudaEngine,
        draft: &Draft,
        copy: Address,
        most: usize,
        queue: &dyn Queue,
    ) -> Result<Self> {
        let (device, driver) = (engine.device(), engine.device().driver());
        let matrix = &draft.program.logits.matrix;
        let (vocab, hidden) = (matrix.rows(), matrix.cols());
        let own = BatchMemory::new(device, queue, most, vocab)?;
        let widths = draft.program.widths.iter();
        let buffers = widths.map(|width| Memory::new(driver, width * size_of::<f32>()));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let weights = device.weights(engine.model().clone());
        let mut writer = Writer {
            program: &draft.program,
            memory: SessionMemory {
                plan: engine.layout(),
                arena: copy,
                ids: own.ids.address(),
                buffers: &buffers,
                weights: &weights,
                queue,
                kv: engine.kv(),
            },
            own: &own,
            scratch: Vec::new(),
            rooms: (Rooms::new(), vec![Rooms::new(); 1]),
            of: SlotKind::Tokens,
        };
        let head = &draft.program.logits;
        let ops = draft.program.ops.iter().enumerate();
        let parts = ops.map(|(index, op)| Part::Op(index, &**op));
        let parts = parts.chain([
            Part::Logits(head),
            Part::Choose,
            Part::Hidden(&head.norm, draft.before),
        ]);
        let calls = parts.map(|part| writer.part(&part));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let scratch = writer.scratch;
        let program = Program::new(vec![calls], 1, device, queue)?;
        queue.finish()?;
        let first_column = draft.before.start * size_of::<f32>();
        let before = buffers[draft.before.buffer].address() + first_column as u64;
        let offset = |tensor: usize| engine.layout().tensors()[tensor].offset;
        Ok(DeviceDraft {
            step: queue.record(&program.launches(0, 1, false))?,
            program,
            before: (before, hidden * size_of::<f32>()),
            last: offset(draft.last),
            first: offset(draft.first_tensor),
            own,
            buffers,
            scratch,
        })
    }

    /// Size of device memory in bytes.
    pub fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        let memories = memories.chain(self.own.all());
        memories.map(Memory::bytes).sum::<usize>() + self.program.bytes()
    }

    /// Drafts `tokens` after `token`, which the state has not read; the state has this address and size and has read `position` tokens.
    /// The block reads them into the copy.
    pub fn run(
        &self,
        queue: &dyn Queue,
        (state, copy, bytes): (Address, Address, usize),
        (token, position): (u32, u64),
        tokens: &mut [u32],
    ) -> Result<()> {
        let place = self.first as u64;
        queue.copy(state + place, copy + place, bytes - self.first)?;
        queue.copy(state + self.last as u64, self.before.0, self.before.1)?;
        queue.write(self.own.ids.address(), bytemuck::bytes_of(&token))?;
        let chosen = &self.own.chosen;
        // Each step writes its choice to the first element; later elements collect the draft.
        for i in 0..tokens.len() {
            let before = position + i as u64;
            queue.write(self.own.positions.address(), bytemuck::bytes_of(&before))?;
            self.step.replay()?;
            let of_list = at::<u32>(chosen, i + 1);
            queue.copy(chosen.address(), of_list, size_of::<u32>())?;
        }
        queue.read(at::<u32>(chosen, 1), bytemuck::cast_slice_mut(tokens))
    }
}
