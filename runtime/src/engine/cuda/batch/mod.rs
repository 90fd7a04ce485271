//! Programs of several slots on a device with one pass over the weights: one token each of several sessions, or several tokens of one
//! session.
//!
//! A slot is one row of each activation buffer. Ops with matrices that treat every token alike run over all rows; every other op is
//! written once per slot, as for a step, and its kernels find a slot's parameters in a table. Slots of different sessions run in
//! parallel; slots of one session run in order. So every slot has the bits of a recorded step. A program is recorded for each number of
//! slots when a batch is created.

mod draft;
mod exact;
mod group;
mod kernel;
mod verifier;

use std::sync::Arc;

pub(super) use exact::DeviceExact;
pub(super) use group::DeviceGroup;
pub(super) use verifier::DeviceVerifier;

use super::CudaEngine;
use super::plan::{Part, SlotMemory};
use crate::cuda::{
    Address, Calls, Device, Launches, Memory, Program, Queue, Queued, Recording, Rooms, Sampling,
    SessionMemory, Slot,
};
use crate::error::Result;
use crate::loaded::Model;
use crate::operands::View;
use crate::ops::Op;
use crate::program;
use crate::state::LOGITS;

/// The contents of a batch's slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotKind {
    /// Sessions, each with its own state.
    Sessions,
    /// Tokens of one session.
    Tokens,
}

/// Slots that hold one token each.
trait TokenSlots: Send {
    /// Size of device memory in bytes, without states and weights.
    fn bytes(&self) -> usize;

    /// The largest number of slots in use.
    fn most(&self) -> usize;

    /// The queue on which the slots' programs run.
    fn queue(&self) -> &dyn Queue;

    /// The memory that the slots' programs share with the host.
    fn memory(&self) -> &BatchMemory;

    /// Feeds `tokens[i]` to slot i.
    fn read(&self, tokens: &[u32]) -> Result<()>;

    /// Waits until the tokens are read, if that can fail.
    ///
    /// # Errors
    /// [`Error::Device`] if a wait passed its deadline: the session is lost.
    fn settle(&self, _engine: &CudaEngine) -> Result<()> {
        Ok(())
    }

    /// Writes each slot's most probable token to `tokens`; a number beyond the vocabulary if the logits are not finite.
    fn choose(&self, tokens: &mut [u32]) -> Result<()>;

    /// Reads the first `count` tokens of the last reading again; the previous state must have been restored.
    fn commit(&self, count: usize) -> Result<()>;
}

/// The recordings for one number of slots.
struct Recorded {
    /// Chooses each slot's most probable token (the first among equals).
    choose: Box<dyn Recording>,
    /// Samples a token in each slot; only for sessions.
    sample: Option<Box<dyn Recording>>,
    /// Reads each slot's token.
    read: Box<dyn Recording>,
    /// Reads a prefix of the last tokens again from saved inputs, after the previous state was restored; only for tokens of one session.
    commit: Option<Box<dyn Recording>>,
}

/// The programs of a batch and their memory.
struct BatchPrograms {
    queue: Box<dyn Queue>,
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    own: BatchMemory,
    program: Program,
    /// The recordings for one slot, two slots, and so on.
    recorded: Vec<Recorded>,
    /// The sampling parameters of each slot that the device holds.
    sampling: Vec<Option<Sampling>>,
}

/// Memory that the calls use besides buffers, states and weights.
struct BatchMemory {
    ids: Memory,
    chosen: Memory,
    sampling: Memory,
    positions: Memory,
    logits: Memory,
    vocab: usize,
}

impl BatchMemory {
    /// Allocates memory for `most` slots.
    fn new(device: &Device, queue: &dyn Queue, most: usize, vocab: usize) -> Result<Self> {
        Ok(BatchMemory {
            ids: zeros(device, queue, most * size_of::<u32>())?,
            chosen: zeros(device, queue, most * size_of::<u32>())?,
            sampling: zeros(device, queue, most * size_of::<Sampling>())?,
            positions: zeros(device, queue, most * size_of::<u64>())?,
            logits: zeros(device, queue, most * vocab * size_of::<f32>())?,
            vocab,
        })
    }

    /// Device address of a slot's logits.
    fn logits(&self, slot: usize) -> Address {
        at::<f32>(&self.logits, slot * self.vocab)
    }

    /// Writes `tokens[i]` to slot i.
    fn write_ids(&self, queue: &dyn Queue, tokens: &[u32]) -> Result<()> {
        queue.write(self.ids.address(), bytemuck::cast_slice(tokens))
    }

    /// Reads the token that each slot has chosen.
    fn read_chosen(&self, queue: &dyn Queue, tokens: &mut [u32]) -> Result<()> {
        queue.read(self.chosen.address(), bytemuck::cast_slice_mut(tokens))
    }

    fn all(&self) -> [&Memory; 5] {
        [
            &self.ids,
            &self.chosen,
            &self.sampling,
            &self.positions,
            &self.logits,
        ]
    }
}

/// Allocates device memory filled with zeros.
fn zeros(device: &Device, queue: &dyn Queue, bytes: usize) -> Result<Memory> {
    let memory = Memory::new(device.driver(), bytes)?;
    queue.clear(memory.address(), bytes.max(1))?;
    Ok(memory)
}

/// Address of element `index` of an array of `T`.
fn at<T>(memory: &Memory, index: usize) -> Address {
    memory.address() + (index * size_of::<T>()) as u64
}

/// Writes parts for the slots of a batch.
struct Writer<'a> {
    program: &'a program::Program,
    memory: SessionMemory<'a>,
    own: &'a BatchMemory,
    scratch: Vec<Memory>,
    /// Working memory that ops share: of all rows, and of each slot.
    rooms: (Rooms, Vec<Rooms>),
    of: SlotKind,
}

impl Writer<'_> {
    /// The calls of a part: over all rows if each row gets the bits of a step, otherwise once per slot.
    fn part(&mut self, part: &Part) -> Result<Calls> {
        let (program, own, memory) = (self.program, self.own, self.memory);
        let in_order = self.of == SlotKind::Tokens;
        let state = memory.arena + memory.plan.tensors()[LOGITS].offset as u64;
        let slot_memory = |row: usize| SlotMemory {
            logits: own.logits(row),
            choice: if in_order { own.logits(row) } else { state },
            chosen: at::<u32>(&own.chosen, row),
            sampling: at::<Sampling>(&own.sampling, row),
            positions: own.positions.address(),
            slots: None,
        };
        let (rooms, each) = &mut self.rooms;
        let most = each.len();
        if part.is_over_rows(in_order) {
            let write = |launches: &mut Launches| part.write(launches, program, &slot_memory(0));
            return Calls::rows(&memory, &mut self.scratch, rooms, most, write);
        }
        let slots = each.iter_mut().enumerate().map(|(row, rooms)| {
            let memory = SessionMemory {
                ids: at::<u32>(&own.ids, row),
                ..memory
            };
            let slot = Slot {
                row,
                position: in_order.then(|| at::<u64>(&own.positions, row)),
                sharing: if in_order { 1 } else { most },
            };
            let write = |launches: &mut Launches| part.write(launches, program, &slot_memory(row));
            Calls::slot(&memory, &mut self.scratch, rooms, slot, write)
        });
        let slots = slots.collect::<Result<Vec<Vec<Queued>>>>()?;
        Ok(Calls::Each(slots))
    }

    /// Copies the input columns of an op to separate memory, for every row. Returns the calls that save and that restore them.
    fn save_inputs(&mut self, op: &dyn Op) -> Result<[Calls; 2]> {
        let views: Vec<View> = op.access().read_columns().copied().collect();
        let width = views.iter().map(|view| view.width).sum::<usize>();
        let bytes = self.rooms.1.len() * width * size_of::<f32>();
        let memory = Memory::new(self.memory.weights.driver(), bytes)?;
        let (views, saved) = (&views[..], memory.address());
        self.scratch.push(memory);
        let mut copy = |back| self.part(&Part::Columns { views, saved, back });
        Ok([copy(false)?, copy(true)?])
    }
}

impl BatchPrograms {
    /// Creates programs for up to `most` slots: sessions with states like that of `engine`, or tokens of its state.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost or its memory is full.
    fn new(engine: &CudaEngine, of: SlotKind, most: usize) -> Result<Self> {
        let (model, device): (&Arc<Model>, &Arc<Device>) = (engine.model(), engine.device());
        let driver = device.driver();
        let queue = Arc::clone(driver).queue()?;
        let program = model.program();
        let vocab = model.spec().vocab;
        let own = BatchMemory::new(device, &*queue, most, vocab)?;
        let buffers = (program.widths.iter())
            .map(|width| zeros(device, &*queue, width * most * size_of::<f32>()))
            .collect::<Result<Vec<_>>>()?;
        let owner: Arc<Model> = Arc::clone(model);
        let weights = device.weights(owner);
        let mut writer = Writer {
            program,
            memory: SessionMemory {
                plan: engine.layout(),
                arena: match of {
                    SlotKind::Sessions => Program::STATE,
                    SlotKind::Tokens => engine.state(),
                },
                ids: own.ids.address(),
                buffers: &buffers,
                weights: &weights,
                queue: &*queue,
                kv: engine.kv(),
            },
            own: &own,
            scratch: Vec::new(),
            rooms: (Rooms::new(), vec![Rooms::new(); most]),
            of,
        };
        let in_order = of == SlotKind::Tokens;
        let (mut read, mut commit) = (Vec::new(), Vec::new());
        if in_order {
            read.push(writer.part(&Part::Positions)?);
        }
        for (index, op) in program.ops.iter().enumerate() {
            let part = Part::Op(index, &**op);
            if in_order && op.access().changes_state() {
                let [there, back] = writer.save_inputs(&**op)?;
                read.push(there);
                commit.extend([back, writer.part(&part)?]);
            }
            read.push(writer.part(&part)?);
        }
        read.push(writer.part(&Part::Logits(&program.logits))?);
        if !in_order {
            read.push(writer.part(&Part::StoreLogits)?);
        }
        read.push(writer.part(&Part::Advance)?);
        if in_order {
            commit.push(writer.part(&Part::Advance)?);
        }
        let choose = writer.part(&Part::Choose)?;
        let last = if in_order {
            commit
        } else {
            vec![writer.part(&Part::Sample)?]
        };
        let scratch = writer.scratch;
        let program = Program::new(vec![vec![choose], read, last], most, device, &*queue)?;
        queue.finish()?;
        let record = |number: usize, slots: usize, side_by_side: bool| {
            queue.record(&program.launches(number, slots, side_by_side))
        };
        let recorded = (1..=most).map(|slots| {
            let last = record(2, slots, of == SlotKind::Sessions)?;
            let (sample, commit) = match of {
                SlotKind::Sessions => (Some(last), None),
                SlotKind::Tokens => (None, Some(last)),
            };
            Ok(Recorded {
                choose: record(0, slots, true)?,
                read: record(1, slots, of == SlotKind::Sessions)?,
                sample,
                commit,
            })
        });
        let recorded = recorded.collect::<Result<_>>()?;
        Ok(BatchPrograms {
            recorded,
            program,
            sampling: vec![None; most],
            queue,
            buffers,
            scratch,
            own,
        })
    }

    /// Assigns the state at address `state` to a slot.
    fn set_state(&mut self, slot: usize, state: Address) -> Result<()> {
        self.program.set_state(slot, state, &*self.queue)
    }

    /// Sets the sampling parameters of a slot.
    fn set_sampling(&mut self, slot: usize, sampling: Sampling) -> Result<()> {
        if self.sampling[slot] != Some(sampling) {
            let place = at::<Sampling>(&self.own.sampling, slot);
            self.queue.write(place, bytemuck::bytes_of(&sampling))?;
            self.sampling[slot] = Some(sampling);
        }
        Ok(())
    }

    /// Chooses (samples, if `sampled`) a token in each session's slot and reads it. A number beyond the vocabulary means that the logits of
    /// a session are not finite; its state is then invalid too.
    fn step(&self, tokens: &mut [u32], sampled: bool) -> Result<()> {
        let recorded = &self.recorded[tokens.len() - 1];
        match &recorded.sample {
            Some(sample) if sampled => sample.replay()?,
            _ => recorded.choose.replay()?,
        }
        recorded.read.replay()?;
        self.own.read_chosen(&*self.queue, tokens)
    }
}

impl TokenSlots for BatchPrograms {
    fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        let memories = memories.chain(self.own.all());
        memories.map(Memory::bytes).sum::<usize>() + self.program.bytes()
    }

    fn most(&self) -> usize {
        self.recorded.len()
    }

    fn queue(&self) -> &dyn Queue {
        &*self.queue
    }

    fn memory(&self) -> &BatchMemory {
        &self.own
    }

    fn read(&self, tokens: &[u32]) -> Result<()> {
        self.own.write_ids(&*self.queue, tokens)?;
        self.recorded[tokens.len() - 1].read.replay()
    }

    fn choose(&self, tokens: &mut [u32]) -> Result<()> {
        self.recorded[tokens.len() - 1].choose.replay()?;
        self.own.read_chosen(&*self.queue, tokens)
    }

    /// Runs only the ops with a state, on saved inputs.
    fn commit(&self, count: usize) -> Result<()> {
        let commit = self.recorded[count - 1].commit.as_ref();
        commit.map_or(Ok(()), |commit| commit.replay())
    }
}
