//! The kernels that a session launches: for a chunk, for its logits, and for a step.

use crate::cuda::{
    Address, ChunkMemory, DecodeKernel, Device, Grid, Launch, Launches, Memory, Queue, Queued,
    Recording, Rows, SessionMemory, TranslationUnit, merge,
};
use crate::error::Result;
use crate::operands::{RESIDUAL, View};
use crate::program::Program;
use crate::state::LOGITS;

/// A launch that fits itself to the number of tokens.
pub(super) struct Template {
    pub launch: Launch,
    grid: Grid,
    /// Arguments that are the number of tokens.
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
    /// Logits of the token in row 0 of the residual stream, into the state.
    pub logits: Vec<Template>,
    /// One token from the ids into the state, logits included.
    pub step: Box<dyn Recording>,
    /// Reads the token that the state's logits choose: the first of the largest.
    pub greedy: Box<dyn Recording>,
    /// Reads a sampled token.
    pub sample: Box<dyn Recording>,
    /// The kernel of all three, if the device can hold a whole step.
    pub persistent: Option<DecodeKernel>,
}

/// The calls of a session's programs.
pub(super) struct Calls {
    pub chunk: Vec<Queued>,
    /// Logits of one token.
    pub logits: Vec<Queued>,
    /// Samples a token.
    pub sample: Vec<Queued>,
    /// The choice of a token, then a step with its logits.
    pub step: Vec<Queued>,
    /// How many calls of a step choose the token.
    pub choice: usize,
}

impl Calls {
    /// Those that are kernels of their own, whatever a step is.
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
    /// Where a chosen token is written.
    pub chosen: Address,
    /// How tokens are sampled.
    pub sampling: Address,
    pub hidden: usize,
    pub vocab: usize,
}

impl ProgramWriter<'_> {
    /// The calls for one token.
    fn write(
        &mut self,
        persistent: bool,
        write: impl FnOnce(&mut Launches) -> Result<()>,
    ) -> Result<Vec<Queued>> {
        let mut launches = Launches::new(&self.memory, self.scratch, 1, persistent);
        write(&mut launches)?;
        let calls = launches.into_calls();
        if !persistent {
            return Ok(calls);
        }
        let layers = self.program.ops.len();
        Ok(merge(calls, |op| {
            op < layers && self.program.is_read_once(op)
        }))
    }

    /// All ops but the logits, for one token.
    fn layers(&mut self, persistent: bool) -> Result<Vec<Queued>> {
        let program = self.program;
        self.write(persistent, |launches| write_layers(program, launches))
    }

    /// All ops but the logits for chunks of this many tokens, in the memory of chunks, whose workspaces may exist already.
    pub fn chunk(&self, tokens: usize, chunks: &mut ChunkMemory) -> Result<Vec<Queued>> {
        let memory = SessionMemory {
            buffers: &chunks.buffers,
            ..self.memory
        };
        let mut launches = Launches::reusing(&memory, &mut chunks.scratch, tokens);
        write_layers(self.program, &mut launches)?;
        Ok(launches.into_calls())
    }

    /// Logits of one token.
    pub fn logits(&mut self, persistent: bool) -> Result<Vec<Queued>> {
        let (program, hidden, vocab) = (self.program, self.hidden, self.vocab);
        self.write(persistent, |launches| {
            let residual = View::whole(RESIDUAL, hidden);
            launches.begin(program.ops.len(), &program.logits.access());
            let logits = Rows {
                first: launches.state_address(LOGITS),
                stride: vocab as i32,
                width: vocab as i32,
            };
            program.logits.launch(launches, residual, logits)
        })
    }

    /// Samples a token.
    pub fn sample(&mut self) -> Result<Vec<Queued>> {
        let (vocab, sampling, chosen) = (self.vocab, self.sampling, self.chosen);
        self.write(false, |launches| launches.sample(vocab, sampling, chosen))
    }

    /// The choice of the most probable token, then a step with its logits; and how many calls choose.
    pub fn step(&mut self, persistent: bool) -> Result<(Vec<Queued>, usize)> {
        let (vocab, chosen) = (self.vocab, self.chosen);
        let mut step = self.write(persistent, |launches| {
            let logits = launches.state_address(LOGITS);
            launches.choose(vocab, logits, chosen)
        })?;
        let choice = step.len();
        step.extend(self.layers(persistent)?);
        step.extend(self.logits(persistent)?);
        Ok((step, choice))
    }
}

/// All ops but the logits, and the end of a chunk.
fn write_layers(program: &Program, launches: &mut Launches) -> Result<()> {
    // Only in one kernel ops run at the same time.
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
        let source = TranslationUnit::new(&all);
        let kernels = device.kernels(&source)?;
        let template = |(queued, &kernel): (&&Queued, &usize)| Template {
            launch: queued.launch(kernels[kernel], 1),
            grid: queued.call.grid,
            tokens: queued.call.arguments().1,
        };
        let mut chunk: Vec<Template> = all.iter().zip(&source.of_call).map(template).collect();
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
