//! A session's half that lives on a device: state, buffers, and the program as kernels.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use super::Device;
use super::driver::{Address, Launch, Memory, Queue, Recording};
use super::launches::{Call, Grid, Launches, Parameter};
use super::source::Source;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::program::{RESIDUAL, View};
use crate::session::SessionOptions;
use crate::state::{Arena, HEADER, LOG, LOGITS, StatePlan};

const SESSION: &str = include_str!("session.cu");

/// A launch that fits itself to the number of tokens.
struct Template {
    launch: Launch,
    grid: Grid,
    /// Arguments that are the number of tokens.
    tokens: Vec<usize>,
}

impl Template {
    fn fit(&mut self, tokens: usize) {
        self.launch.grid = self.grid.blocks(tokens);
        for &argument in &self.tokens {
            self.launch.arguments[argument].0[0] = tokens as u64;
        }
    }
}

/// The state and the programs of a session on a device.
pub(crate) struct Engine {
    queue: Box<dyn Queue>,
    device: Arc<Device>,
    arena: Memory,
    plan: Arc<StatePlan>,
    buffers: Vec<Memory>,
    scratch: Vec<Memory>,
    /// Tokens of the chunk, u32.
    ids: Memory,
    /// States to return to.
    marks: Vec<Memory>,
    /// Whether the state's logits are those after the last token.
    fresh: bool,
    hidden: usize,
    vocab: usize,
    /// The token that the state's logits chose, u32.
    chosen: Memory,
    shown: Shown,
    programs: Programs,
}

/// What a session runs.
struct Programs {
    /// Reads a chunk.
    chunk: Vec<Template>,
    /// Logits of the token in row 0 of the residual stream, into the state.
    logits: Vec<Template>,
    /// One token from the ids into the state, logits included.
    step: Box<dyn Recording>,
    /// The same for the token that the state's logits choose.
    greedy: Box<dyn Recording>,
}

/// The host's copy of the logits, made when it is asked for, in memory that is allocated once.
struct Shown {
    logits: OnceCell<Vec<f32>>,
    spare: Cell<Vec<f32>>,
}

impl Shown {
    fn new(vocab: usize) -> Self {
        Shown {
            logits: OnceCell::new(),
            spare: Cell::new(vec![0.0; vocab]),
        }
    }

    fn get(&self, fill: impl FnOnce(&mut [f32])) -> &[f32] {
        self.logits.get_or_init(|| {
            let mut logits = self.spare.take();
            fill(&mut logits);
            logits
        })
    }

    /// The logits have changed.
    fn forget(&mut self) {
        if let Some(logits) = self.logits.take() {
            self.spare.set(logits);
        }
    }
}

impl Programs {
    /// Compiles the calls of a chunk, of the choice of a token, of a step and of its logits; records the last three.
    fn new(calls: [Vec<(Call, bool)>; 4], device: &Device, queue: &dyn Queue) -> Result<Self> {
        let lengths = [calls[0].len(), calls[1].len(), calls[2].len()];
        let calls: Vec<&(Call, bool)> = calls.iter().flatten().collect();
        let source = Source::of(&calls);
        let kernels = device.kernels(&source)?;
        let template = |((call, _), &kernel): (&&(Call, bool), &usize)| {
            let (arguments, tokens) = call.arguments();
            Template {
                launch: Launch {
                    kernel: kernels[kernel],
                    grid: call.grid.blocks(1),
                    threads: call.threads as u32,
                    shared: call.shared as u32,
                    arguments,
                },
                grid: call.grid,
                tokens,
            }
        };
        let mut chunk: Vec<Template> = calls.iter().zip(&source.of_call).map(template).collect();
        let mut one = chunk.split_off(lengths[0]);
        let launches: Vec<Launch> = one.iter().map(|t| t.launch.clone()).collect();
        queue.finish()?;
        Ok(Programs {
            chunk,
            step: queue.record(&launches[lengths[1]..])?,
            greedy: queue.record(&launches)?,
            logits: one.split_off(lengths[1] + lengths[2]),
        })
    }
}

impl Engine {
    /// Allocates for chunks of up to `chunk` tokens and compiles what is not compiled yet.
    pub fn new(
        model: &Model,
        device: Arc<Device>,
        plan: Arc<StatePlan>,
        options: &SessionOptions,
    ) -> Result<Self> {
        let chunk = options.chunk;
        let driver = device.driver();
        let queue = Arc::clone(driver).queue()?;
        let program = model.program();
        let memory = |bytes: usize| {
            let memory = Memory::new(driver, bytes)?;
            queue.clear(memory.address(), bytes.max(1))?;
            Ok(memory)
        };
        let buffers = (program.widths.iter())
            .map(|width| memory(width * chunk * size_of::<f32>()))
            .collect::<Result<Vec<_>>>()?;
        let arena = memory(plan.bytes)?;
        let ids = memory(chunk * size_of::<u32>())?;
        let chosen = memory(size_of::<u32>())?;
        let vocab = model.spec().vocab;
        let hidden = model.spec().hidden;
        let weights = device.weights(model);
        let mut scratch = Vec::new();
        let mut lowered = |tokens: usize, write: &dyn Fn(&mut Launches) -> Result<()>| {
            let mut launches = Launches {
                tokens,
                plan: &plan,
                arena: arena.address(),
                ids: ids.address(),
                buffers: &buffers,
                weights: &weights,
                queue: &*queue,
                kv: options.state.kv,
                processors: driver.processors() as usize,
                tensor_cores: driver.tensor_cores(),
                bf16: None,
                scratch: &mut scratch,
                calls: Vec::new(),
            };
            write(&mut launches)?;
            Ok::<_, Error>(launches.calls)
        };
        let stages = |launches: &mut Launches| {
            (program.stages.iter()).try_for_each(|stage| stage.launch(launches))?;
            launches.advance();
            Ok(())
        };
        let calls = [
            lowered(chunk, &stages)?,
            lowered(1, &|launches| {
                launches.choose(vocab, chosen.address());
                Ok(())
            })?,
            lowered(1, &stages)?,
            lowered(1, &|launches| {
                let residual = View::whole(RESIDUAL, hidden);
                program.logits.launch(launches, residual, LOGITS)
            })?,
        ];
        let programs = Programs::new(calls, &device, &*queue)?;
        let marks = (0..options.marks).map(|_| memory(plan.bytes));
        Ok(Engine {
            marks: marks.collect::<Result<Vec<_>>>()?,
            shown: Shown::new(vocab),
            fresh: false,
            arena,
            ids,
            buffers,
            scratch,
            hidden,
            vocab,
            chosen,
            programs,
            plan,
            device,
            queue,
        })
    }

    /// Bytes of working memory on the device, besides the state.
    pub fn bytes(&self) -> usize {
        let memories = self.buffers.iter().chain(&self.scratch);
        memories.map(Memory::bytes).sum::<usize>() + self.ids.bytes()
    }

    /// Bytes of the device's memory that the weights of all its models, this state and its working memory take.
    pub fn device_bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(Memory::bytes).sum();
        self.device.weight_bytes() + self.arena.bytes() + marks + self.bytes()
    }

    /// Reads one chunk of tokens into the state.
    pub fn run(&mut self, tokens: &[u32]) -> Result<()> {
        self.shown.forget();
        self.queue
            .write(self.ids.address(), bytemuck::cast_slice(tokens))?;
        if let [_] = tokens {
            self.fresh = true;
            return self.programs.step.replay();
        }
        self.fresh = false;
        for template in &mut self.programs.chunk {
            template.fit(tokens.len());
            self.queue.launch(&template.launch)?;
        }
        Ok(())
    }

    /// The last token's row of the residual stream becomes the first.
    fn move_row(&self, row: usize) -> Result<()> {
        let bytes = self.hidden * size_of::<f32>();
        let residual = self.buffers[RESIDUAL].address();
        match row {
            0 => Ok(()),
            _ => self
                .queue
                .copy(residual + (row * bytes) as u64, residual, bytes),
        }
    }

    /// The state's logits become those after this token of the chunk that was run last, and the device is idle. Rows are
    /// asked for in order.
    pub fn compute_logits(&mut self, row: usize) -> Result<()> {
        self.shown.forget();
        if !self.fresh {
            self.move_row(row)?;
            for template in &self.programs.logits {
                self.queue.launch(&template.launch)?;
            }
        }
        self.queue.finish()
    }

    /// The state's logits; NaN from a device that was lost.
    pub fn logits(&self) -> &[f32] {
        self.shown.get(|logits| {
            let read = self
                .queue
                .read(self.slot(LOGITS), bytemuck::cast_slice_mut(logits));
            if read.is_err() {
                logits.fill(f32::NAN);
            }
        })
    }

    /// Chooses the first of the largest logits on the device and reads that token.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the logits are not finite; the state is then one of a damaged model.
    pub fn step(&mut self) -> Result<u32> {
        self.shown.forget();
        self.fresh = true;
        self.programs.greedy.replay()?;
        let mut token = [0u32];
        self.queue
            .read(self.chosen.address(), bytemuck::cast_slice_mut(&mut token))?;
        if token[0] as usize >= self.vocab {
            return Err(Error::invalid(
                "logits",
                "found NaN or infinity, expected finite numbers (the weights or the state are damaged)",
            ));
        }
        Ok(token[0])
    }

    fn slot(&self, slot: usize) -> Address {
        self.arena.address() + self.plan.slots[slot].offset as u64
    }

    /// The layout of the state.
    pub fn plan(&self) -> &Arc<StatePlan> {
        &self.plan
    }

    /// Empties the state.
    pub fn reset(&mut self) -> Result<()> {
        self.shown.forget();
        self.queue.clear(self.arena.address(), self.plan.bytes)
    }

    /// Writes the whole state to `arena`, which has the same plan; of the session's own slots, `own` is the truth.
    pub fn download(&self, own: &Arena, arena: &mut Arena) -> Result<()> {
        self.queue.read(self.arena.address(), arena.bytes_mut())?;
        let own = own.bytes();
        arena.bytes_mut()[..own.len()].copy_from_slice(own);
        Ok(())
    }

    /// Replaces the whole state.
    pub fn upload(&mut self, arena: &Arena) -> Result<()> {
        self.shown.forget();
        self.queue.write(self.arena.address(), arena.bytes())
    }

    /// Takes over another session's state, which has the same plan.
    pub fn copy_from(&mut self, other: &Engine) -> Result<()> {
        self.shown.forget();
        other.queue.finish()?;
        let (from, to) = (other.arena.address(), self.arena.address());
        self.queue.copy(from, to, self.plan.bytes)?;
        self.queue.finish()
    }

    /// Keeps the state as mark number `mark`.
    pub fn save(&self, mark: usize) -> Result<()> {
        let (from, to) = (self.arena.address(), self.marks[mark].address());
        self.queue.copy(from, to, self.plan.bytes)
    }

    /// Returns to mark number `mark`.
    pub fn load(&mut self, mark: usize) -> Result<()> {
        self.shown.forget();
        let (from, to) = (self.marks[mark].address(), self.arena.address());
        self.queue.copy(from, to, self.plan.bytes)
    }
}

impl Launches<'_> {
    /// Puts the first of the largest logits where the next chunk's tokens are, and to `chosen`.
    fn choose(&mut self, vocab: usize, chosen: Address) {
        self.push(Call {
            source: SESSION,
            kernel: format!("choose<{vocab}>"),
            grid: Grid::Blocks(1),
            threads: 1024,
            shared: 0,
            parameters: vec![
                self.slot("const float", LOGITS),
                Parameter::pointer("u32", self.ids),
                Parameter::pointer("u32", chosen),
            ],
        });
    }

    /// Ends a chunk: its tokens go to the log, the position moves on.
    fn advance(&mut self) {
        let log = self.slot_shape(LOG)[0];
        self.push(Call {
            source: SESSION,
            kernel: format!("advance<{log}>"),
            grid: Grid::Blocks(1),
            threads: 256,
            shared: 0,
            parameters: vec![
                self.ids(),
                self.slot("u32", LOG),
                Parameter::pointer("u64", self.slot_address(HEADER)),
                Parameter::tokens(),
            ],
        });
    }
}
