//! The kernels that a session launches for a chunk, for logits, and for a step.

use crate::cuda::{
    Address, ChunkMemory, DecodeKernel, Device, Grid, Launch, Launches, Memory, Parameter, Queue,
    Queued, Recording, Rows, SessionMemory, Slot, merge,
};
use crate::error::Result;
use crate::operands::{RESIDUAL, View};
use crate::program::Program;

/// A launch that is adjusted to the number of tokens.
pub(super) struct Template {
    pub launch: Launch,
    grid: Grid,
    /// Indices of the arguments that hold the number of tokens.
    tokens: Vec<usize>,
}

impl Template {
    pub fn fit(&mut self, tokens: usize) {
        self.launch.grid = self.grid.blocks(tokens);
        self.launch.cluster = self.grid.cluster(tokens) as u32;
        for &argument in &self.tokens {
            self.launch.arguments[argument].0[0] = tokens as u64;
        }
    }
}

/// The programs of a session.
pub(super) struct Programs {
    /// Reads a chunk.
    pub chunk: Vec<Template>,
    /// Computes the logits of row 0 of the residual stream into the state.
    pub logits: Vec<Template>,
    /// Reads one token from the ids into the state and computes its logits.
    pub step: Box<dyn Recording>,
    /// Chooses the most probable token (the first among equals) and reads it.
    pub greedy: Box<dyn Recording>,
    /// Samples a token and reads it.
    pub sample: Box<dyn Recording>,
    /// The kernel of all three recordings, if a step is one kernel.
    pub persistent: Option<DecodeKernel>,
}

/// The calls of a session's programs.
pub(super) struct Calls {
    pub chunk: Vec<Queued>,
    /// Computes the logits of one token.
    pub logits: Vec<Queued>,
    /// Samples a token.
    pub sample: Vec<Queued>,
    /// Chooses the most probable token, then runs a step with its logits.
    pub step: Vec<Queued>,
    /// The number of calls at the beginning of `step` that choose the token.
    pub choice: usize,
}

impl Calls {
    /// Calls that are always separate kernels, whatever the form of a step.
    pub fn always(&self) -> impl Iterator<Item = &Queued> {
        let parts = [&self.chunk, &self.logits, &self.sample];
        parts.into_iter().flatten()
    }
}

/// Writes the calls of a session's programs.
pub(super) struct ProgramWriter<'a> {
    pub program: &'a Program,
    pub memory: SessionMemory<'a>,
    pub scratch: &'a mut Vec<Memory>,
    /// The slot that the calls are for.
    pub slot: Slot,
    /// Addresses for the logits and the chosen token.
    pub logits: Address,
    pub chosen: Address,
    /// Address of the sampling parameters.
    pub sampling: Address,
    pub hidden: usize,
    pub vocab: usize,
}

impl ProgramWriter<'_> {
    /// Collects the calls for one token.
    fn write(
        &mut self,
        persistent: bool,
        write: impl FnOnce(&mut Launches) -> Result<()>,
    ) -> Result<Vec<Queued>> {
        let mut launches = Launches::new(&self.memory, self.scratch, 1, persistent);
        launches.slot = self.slot;
        write(&mut launches)?;
        if !persistent {
            return Ok(launches.into_calls());
        }
        let layers = self.program.ops.len();
        Ok(merge(launches.into_nodes(), |op| {
            op < layers && self.program.is_read_once(op)
        }))
    }

    /// The calls of all ops except the logits, for one token.
    fn layers(&mut self, persistent: bool) -> Result<Vec<Queued>> {
        let program = self.program;
        self.write(persistent, |launches| write_layers(program, launches))
    }

    /// The calls of all ops except the logits for chunks of `tokens` tokens, in the memory that chunks share (it may hold workspaces
    /// already).
    pub fn chunk(&self, tokens: usize, chunks: &mut ChunkMemory) -> Result<Vec<Queued>> {
        let memory = SessionMemory {
            buffers: &chunks.buffers,
            ..self.memory
        };
        let mut launches = Launches::reusing(&memory, &mut chunks.scratch, tokens);
        write_layers(self.program, &mut launches)?;
        Ok(launches.into_calls())
    }

    /// The calls that compute the logits of one token.
    pub fn logits(&mut self, persistent: bool) -> Result<Vec<Queued>> {
        let (program, hidden, vocab) = (self.program, self.hidden, self.vocab);
        let first = self.logits;
        self.write(persistent, |launches| {
            let residual = View::whole(RESIDUAL, hidden);
            launches.begin(program.ops.len(), &program.logits.access());
            launches.also_writes(first..first + (vocab * size_of::<f32>()) as Address);
            let logits = Rows {
                first,
                stride: vocab as i32,
                width: vocab as i32,
            };
            program.logits.launch(launches, residual, logits)
        })
    }

    /// The calls that sample a token.
    pub fn sample(&mut self) -> Result<Vec<Queued>> {
        let (vocab, sampling, chosen) = (self.vocab, self.sampling, self.chosen);
        self.write(false, |launches| launches.sample(vocab, sampling, chosen))
    }

    /// The calls that choose the most probable token, followed by a step with its logits. Also returns how many calls choose.
    pub fn step(&mut self, persistent: bool) -> Result<(Vec<Queued>, usize)> {
        let mut step = self.choice(persistent)?;
        let choice = step.len();
        step.extend(self.layers(persistent)?);
        step.extend(self.logits(persistent)?);
        Ok((step, choice))
    }

    /// The calls that choose the most probable token and write it to the ids.
    fn choice(&mut self, persistent: bool) -> Result<Vec<Queued>> {
        let (vocab, logits, chosen) = (self.vocab, self.logits, self.chosen);
        self.write(persistent, |launches| {
            launches.choose(vocab, logits, chosen)
        })
    }

    /// The calls of a slot in the decode kernel: a step, then the choice of the next token, which goes to `next` too. The positions of the
    /// slots' tokens go to `positions`.
    pub fn read_slot(&mut self, positions: Address, next: Address) -> Result<Vec<Queued>> {
        let tokens = self.slot.row + 1;
        let mut calls = self.write(true, |launches| {
            launches.count_positions(positions, Parameter::int(tokens));
            Ok(())
        })?;
        calls.extend(self.layers(true)?);
        calls.extend(self.logits(true)?);
        let ids = std::mem::replace(&mut self.memory.ids, next);
        calls.extend(self.choice(true)?);
        self.memory.ids = ids;
        Ok(calls)
    }
}

/// Launches all ops except the logits, and the end of a chunk.
fn write_layers(program: &Program, launches: &mut Launches) -> Result<()> {
    // Ops run concurrently only in the one-kernel form.
    let sharing = if launches.persistent {
        program.concurrent(|op| op.fills_device())
    } else {
        vec![1; program.ops.len()]
    };
    launches.has_routing = program.has_routing();
    for (index, op) in program.ops.iter().enumerate() {
        launches.begin(index, &op.access());
        launches.slot.sharing = sharing[index];
        op.launch(launches)?;
    }
    launches.end();
    launches.advance();
    Ok(())
}

impl Programs {
    pub fn new(
        calls: &Calls,
        persistent: Option<DecodeKernel>,
        device: &Device,
        queue: &dyn Queue,
    ) -> Result<Self> {
        let recorded: &[Queued] = if persistent.is_some() {
            &[]
        } else {
            &calls.step
        };
        let all: Vec<&Queued> = calls.always().chain(recorded).collect();
        let kernels = device.kernels(&all)?;
        let template = |(queued, kernel): (&&Queued, _)| Template {
            launch: queued.launch(kernel, 1),
            grid: queued.call.grid,
            tokens: queued.call.arguments().1,
        };
        let mut chunk: Vec<Template> = all.iter().zip(kernels).map(template).collect();
        let mut logits = chunk.split_off(calls.chunk.len());
        let rest = logits.split_off(calls.logits.len());
        let mut sample: Vec<Launch> = rest.into_iter().map(|template| template.launch).collect();
        let step = sample.split_off(calls.sample.len());
        let (step, greedy) = match &persistent {
            Some(persistent) => (
                vec![persistent.launch(calls.choice)],
                vec![persistent.launch(0)],
            ),
            None => (step[calls.choice..].to_vec(), step),
        };
        sample.extend_from_slice(&step);
        queue.finish()?;
        Ok(Programs {
            chunk,
            logits,
            step: queue.record(&step)?,
            greedy: queue.record(&greedy)?,
            sample: queue.record(&sample)?,
            persistent,
        })
    }
}
