//! The CPU engine: the complete state in host memory, ops on a thread pool.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use waterline_quant::ProductObserver;

use super::draft::HostDraft;
use super::host_batch::{HostBatch, HostGroup, HostVerifier};
use super::slots::{OneState, Slots};
use super::{Engine, Group, Setup, StateCopy, Verifier, checkpoint_room, no_copy};
use crate::cpu::Pool;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::op_time::OpTime;
use crate::program::{Program, Workspace};
use crate::state::{Arena, HEADER, LOGITS, StatePlan};

/// How chunks are read.
enum Reading {
    /// Runs each op over the complete chunk, in the fastest form for its length.
    Chunks(Workspace),
    /// Reads every token with the bits of a single step.
    Steps(Slots),
}

impl Reading {
    fn new(program: &Program, setup: &Setup) -> Result<Self> {
        let pool = Arc::clone(&setup.pool);
        Ok(if setup.exact {
            Reading::Steps(Slots::new(program, pool, setup.chunk, false)?)
        } else {
            Reading::Chunks(Workspace::new(program, pool, setup.chunk)?)
        })
    }

    fn workspace(&mut self) -> &mut Workspace {
        match self {
            Reading::Chunks(workspace) => workspace,
            Reading::Steps(slots) => &mut slots.workspace,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Reading::Chunks(workspace) => workspace.bytes(),
            Reading::Steps(slots) => slots.bytes(),
        }
    }
}

/// Size in bytes of the working memory for chunks of up to `chunk` tokens.
pub(crate) fn plan_reading(program: &Program, threads: usize, chunk: usize, exact: bool) -> usize {
    if exact {
        Slots::plan(program, threads, chunk, false)
    } else {
        Workspace::plan(program, threads, chunk)
    }
}

/// State and working memory of a session on the CPU.
pub(super) struct CpuEngine {
    model: Arc<Model>,
    reading: Reading,
    arena: Arena,
    marks: Vec<Arena>,
    copied: Option<StateCopy>,
    pool: Arc<Pool>,
}

impl CpuEngine {
    /// Allocates the state and the working memory.
    pub fn new(model: &Arc<Model>, plan: Arc<StatePlan>, setup: &Setup) -> Result<Self> {
        let reading = Reading::new(model.program(), setup)?;
        let arena = Arena::new(plan)?;
        let marks = (0..setup.marks).map(|_| arena.try_clone());
        Ok(CpuEngine {
            model: Arc::clone(model),
            reading,
            marks: marks.collect::<Result<_>>()?,
            arena,
            copied: None,
            pool: Arc::clone(&setup.pool),
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
        self.reading.bytes()
    }

    fn observe_products(&mut self, observer: ProductObserver) -> Result<()> {
        self.reading.workspace().observe_products(observer);
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.arena.reset();
        Ok(())
    }

    fn read(&mut self, tokens: &[u32]) -> Result<()> {
        let position = self.arena.tensor::<u64>(HEADER)[0];
        let program = self.model.program();
        let arena = &mut self.arena;
        match &mut self.reading {
            Reading::Chunks(workspace) => workspace.run(program, arena, tokens, position),
            Reading::Steps(slots) => slots.read(program, &mut OneState::new(arena), tokens),
        }
        Ok(())
    }

    fn residual(&self, rows: Range<usize>, stream: &mut [f32]) -> Result<()> {
        let workspace = match &self.reading {
            Reading::Chunks(workspace) => workspace,
            Reading::Steps(slots) => &slots.workspace,
        };
        stream.copy_from_slice(workspace.residual(self.model.program(), rows));
        Ok(())
    }

    fn invalidate_logits(&mut self) -> Result<()> {
        self.arena.tensor_mut::<f32>(LOGITS)[0] = f32::NAN;
        Ok(())
    }

    fn compute_logits(&mut self, row: usize) -> Result<()> {
        let logits = self.arena.tensor_mut(LOGITS);
        let workspace = self.reading.workspace();
        workspace.logits(self.model.program(), row..row + 1, logits);
        Ok(())
    }

    fn logits_of(&mut self, rows: Range<usize>, logits: &mut [f32]) -> Result<()> {
        let workspace = self.reading.workspace();
        workspace.logits(self.model.program(), rows, logits);
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
        let mut frame = self
            .reading
            .workspace()
            .frame(&mut self.arena, &tokens, position);
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

    fn download(&self, state: &mut [u8]) -> Result<()> {
        state.copy_from_slice(self.arena.bytes());
        Ok(())
    }

    fn upload(&mut self, state: &[u8]) -> Result<()> {
        self.arena.bytes_mut().copy_from_slice(state);
        Ok(())
    }

    fn begin_copy(&mut self, positions: Range<u64>) -> Result<()> {
        let plan = self.arena.plan();
        let bytes = |parts: &mut dyn Iterator<Item = Range<usize>>, length| {
            let mut copy = checkpoint_room(length)?;
            parts.for_each(|part| copy.extend_from_slice(&self.arena.bytes()[part]));
            Ok::<_, Error>(copy)
        };
        self.copied = Some(StateCopy {
            rows: bytes(&mut plan.rows(positions.clone()), plan.row_bytes(positions))?,
            present: bytes(&mut plan.present(), plan.present_bytes())?,
        });
        Ok(())
    }

    fn end_copy(&mut self) -> Result<StateCopy> {
        self.copied.take().ok_or_else(no_copy)
    }

    fn copy_out(
        &mut self,
        parts: &mut dyn Iterator<Item = Range<usize>>,
        bytes: &mut [u8],
    ) -> Result<()> {
        let mut rest = bytes;
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(&self.arena.bytes()[part]);
            rest = after;
        }
        Ok(())
    }

    fn copy_in(&mut self, copies: &mut dyn Iterator<Item = (Range<usize>, &[u8])>) -> Result<()> {
        for (part, bytes) in copies {
            self.arena.bytes_mut()[part].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn clear(&mut self, parts: &mut dyn Iterator<Item = Range<usize>>) -> Result<()> {
        for part in parts {
            self.arena.bytes_mut()[part].fill(0);
        }
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
            batch: HostBatch::new(self.model.program(), Arc::clone(&self.pool), most, false)?,
        }))
    }

    fn verifier(&self, most: usize, drafts: bool) -> Result<Box<dyn Verifier>> {
        let draft = self.model.draft().filter(|_| drafts);
        Ok(Box::new(HostVerifier {
            draft: draft
                .map(|draft| HostDraft::new(draft, &self.pool))
                .transpose()?,
            model: Arc::clone(&self.model),
            batch: HostBatch::new(self.model.program(), Arc::clone(&self.pool), most, true)?,
            before: self.arena.try_clone()?,
            most,
        }))
    }
}
