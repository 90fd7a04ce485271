//! The CPU engine: the whole state in host memory, ops on a thread pool.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use waterline_quant::Activations;

use super::draft::HostDraft;
use super::together::{HostAhead, HostGroup, Together};
use super::{Ahead, Engine, Group, Setup};
use crate::bound::Model;
use crate::cpu::{Buffers, Frame, Pool, room};
use crate::cuda::OpTime;
use crate::error::Result;
use crate::operands::{INPUTS, RESIDUAL, View};
use crate::program::Program;
use crate::state::{Arena, HEADER, LOGITS, StatePlan};

/// State and working memory of a session on the CPU.
pub(super) struct CpuEngine {
    model: Arc<Model>,
    workspace: Workspace,
    arena: Arena,
    marks: Vec<Arena>,
    pool: Arc<Pool>,
}

impl CpuEngine {
    /// Allocates the state and the working memory.
    pub fn new(model: &Arc<Model>, plan: Arc<StatePlan>, setup: &Setup) -> Result<Self> {
        let pool = Arc::clone(&setup.pool);
        let workspace = Workspace::new(model.program(), Arc::clone(&pool), setup.chunk)?;
        let arena = Arena::new(plan)?;
        let marks = (0..setup.marks).map(|_| arena.try_clone());
        Ok(CpuEngine {
            model: Arc::clone(model),
            workspace,
            marks: marks.collect::<Result<_>>()?,
            arena,
            pool,
        })
    }
}

impl Engine for CpuEngine {
    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn arena_mut(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn plan(&self) -> &Arc<StatePlan> {
        self.arena.plan()
    }

    fn work_bytes(&self) -> usize {
        self.workspace.bytes()
    }

    fn reset(&mut self) -> Result<()> {
        self.arena.reset();
        Ok(())
    }

    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        let position = self.arena.tensor::<u64>(HEADER)[0];
        let program = self.model.program();
        self.workspace
            .run(program, &mut self.arena, tokens, position);
        Ok(())
    }

    fn compute_logits(&mut self, row: usize) -> Result<()> {
        let logits = self.arena.tensor_mut(LOGITS);
        self.workspace
            .logits(self.model.program(), row..row + 1, logits);
        Ok(())
    }

    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()> {
        self.workspace.logits(self.model.program(), rows, logits);
        let own = self.arena.tensor_mut(LOGITS);
        own.copy_from_slice(&logits[logits.len() - own.len()..]);
        Ok(())
    }

    fn logits(&self) -> Result<&[f32]> {
        Ok(self.arena.tensor(LOGITS))
    }

    fn time_step(&mut self) -> Result<Option<(u32, Vec<OpTime>)>> {
        let logits = self.arena.tensor::<f32>(LOGITS);
        let best = |best, i| if logits[i] > logits[best] { i } else { best };
        let tokens = [(0..logits.len()).fold(0, best) as u32];
        let position = self.arena.tensor::<u64>(HEADER)[0];
        let model = Arc::clone(&self.model);
        let program = model.program();
        let mut times = Vec::with_capacity(program.ops.len() + 1);
        let mut begun = Instant::now();
        let mut note = |name: &str, weights: usize| {
            let end = Instant::now();
            times.push(OpTime {
                function: match weights {
                    0 => name.to_string(),
                    _ => format!("{name}, {:.2} MB of weights", weights as f64 / 1e6),
                },
                wait: 0,
                work: (end - begun).as_nanos() as u64,
            });
            begun = Instant::now();
        };
        let mut frame = self.workspace.frame(&mut self.arena, &tokens, position);
        for op in &program.ops {
            op.run(&mut frame);
            note(op.name(), op.weight_bytes());
        }
        self.compute_logits(0)?;
        note("Logits", program.logits.matrix.bytes().len());
        Ok(Some((tokens[0], times)))
    }

    fn fork(&self, setup: &Setup) -> Result<Box<dyn Engine>> {
        let plan = Arc::clone(self.plan());
        let mut fork = CpuEngine::new(&self.model, plan, setup)?;
        fork.arena.copy_from(&self.arena);
        Ok(Box::new(fork))
    }

    fn download(&self, arena: &mut Arena) -> Result<()> {
        arena.copy_from(&self.arena);
        Ok(())
    }

    fn upload(&mut self, arena: &Arena) -> Result<()> {
        self.arena.copy_from(arena);
        Ok(())
    }

    fn save_mark(&mut self, mark: usize) -> Result<()> {
        self.marks[mark].copy_from(&self.arena);
        Ok(())
    }

    fn load_mark(&mut self, mark: usize) -> Result<()> {
        self.arena.copy_from(&self.marks[mark]);
        Ok(())
    }

    fn group(&self, most: usize) -> Result<Box<dyn Group>> {
        Ok(Box::new(HostGroup {
            model: Arc::clone(&self.model),
            together: Together::new(self.model.program(), Arc::clone(&self.pool), most, false)?,
        }))
    }

    fn ahead(&self, most: usize, drafts: bool) -> Result<Box<dyn Ahead>> {
        let draft = self.model.draft().filter(|_| drafts);
        Ok(Box::new(HostAhead {
            draft: draft
                .map(|draft| HostDraft::new(draft, &self.pool))
                .transpose()?,
            model: Arc::clone(&self.model),
            together: Together::new(self.model.program(), Arc::clone(&self.pool), most, true)?,
            before: self.arena.try_clone()?,
            most,
        }))
    }
}

/// The memory and threads that a session computes with.
pub(crate) struct Workspace {
    pool: Arc<Pool>,
    buffers: Buffers,
    inputs: Activations,
    scratch: Vec<Mutex<Vec<f32>>>,
    common: Vec<f32>,
    chunk: usize,
    widest: usize,
}

/// Widths of the buffers. A device gathers the inputs of products in one, which stand in [`Activations`] here.
pub(super) fn widths(program: &Program) -> Vec<usize> {
    let mut widths = program.widths.clone();
    widths[INPUTS] = 0;
    widths
}

impl Workspace {
    /// Allocates for chunks of up to `chunk` tokens of `program`.
    pub fn new(program: &Program, pool: Arc<Pool>, chunk: usize) -> Result<Self> {
        let widest = program.widths.iter().copied().max().unwrap_or(0);
        let threads = pool.threads();
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let scratch = (0..threads).map(|_| Ok(Mutex::new(room(scratch)?)));
        Ok(Workspace {
            buffers: Buffers::new(&widths(program), chunk)?,
            inputs: Activations::new(chunk, widest)?,
            scratch: scratch.collect::<Result<_>>()?,
            common: room(common)?,
            pool,
            chunk,
            widest,
        })
    }

    /// The same, with which every token has the bits of a step, however many tokens there are.
    pub fn in_step_order(mut self) -> Self {
        self.inputs.sum_as_alone();
        self
    }

    /// Bytes of working memory that [`Workspace::new`] would allocate.
    pub fn plan(program: &Program, threads: usize, chunk: usize) -> usize {
        let buffers = widths(program).iter().sum::<usize>() * chunk;
        let (scratch, common) = Self::rooms(program, threads, chunk);
        let widest = program.widths.iter().copied().max().unwrap_or(0);
        (buffers + scratch * threads + common) * size_of::<f32>()
            + Activations::bytes(chunk, widest)
    }

    /// Floats of each worker's scratch memory, and of that which all workers see.
    fn rooms(program: &Program, threads: usize, chunk: usize) -> (usize, usize) {
        let rooms = program.ops.iter();
        rooms.fold((0, 0), |(scratch, common), op| {
            let more = (op.scratch(chunk), op.common(threads));
            (scratch.max(more.0), common.max(more.1))
        })
    }

    /// Bytes of working memory, besides the state.
    pub fn bytes(&self) -> usize {
        let buffers = self.buffers.floats();
        let scratch: usize = self
            .scratch
            .iter()
            .map(|s| s.lock().map_or(0, |s| s.len()))
            .sum();
        (buffers + scratch + self.common.len()) * size_of::<f32>()
            + Activations::bytes(self.chunk, self.widest)
    }

    /// Reads one chunk of tokens into the state.
    pub fn run(&mut self, program: &Program, arena: &mut Arena, tokens: &[u32], position: u64) {
        let mut frame = self.frame(arena, tokens, position);
        for op in &program.ops {
            op.run(&mut frame);
        }
    }

    /// What ops see of a chunk.
    pub fn frame<'a>(
        &'a mut self,
        arena: &'a mut Arena,
        tokens: &'a [u32],
        position: u64,
    ) -> Frame<'a> {
        assert!(!tokens.is_empty() && tokens.len() <= self.chunk);
        Frame {
            pool: &self.pool,
            buffers: &mut self.buffers,
            inputs: &mut self.inputs,
            scratch: &self.scratch,
            common: &mut self.common,
            arena,
            tokens,
            position,
        }
    }

    /// Columns of the first row of a buffer, to be written before a run.
    pub fn first_row(&mut self, view: View) -> &mut [f32] {
        &mut self.buffers.get_mut(view.buffer)[view.columns(0)]
    }

    /// The first row of the residual stream after a run.
    pub fn residual(&self, program: &Program) -> &[f32] {
        &self.buffers.get(RESIDUAL)[..program.logits.matrix.cols()]
    }

    /// Writes the logits `[rows, vocab]` after these tokens of the chunk that was run last.
    pub fn logits(&mut self, program: &Program, rows: Range<usize>, logits: &mut [f32]) {
        program
            .logits
            .run(&self.pool, &self.buffers, &mut self.inputs, rows, logits);
    }
}
