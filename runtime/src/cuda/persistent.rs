//! A step as one kernel: its blocks stay on the device for the whole token and go through the phases of a table, each of which
//! would be a kernel of its own in a recorded step. Weights come through a ring in shared memory, ahead of the phases.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::Device;
use super::control::{Control, Failure};
use super::driver::{Address, Argument, Kernel, Launch, Memory, Queue};
use super::launches::Queued;
use super::layout::{Layout, Needs};
use super::levels::{Phase, followers, in_levels};
use super::passed::{Link, Passed, Passes, Place, passes_of};
use super::segments::{Segment, Tiling, deal};
use super::source::Source;
use crate::error::Result;

/// Threads of a block that go through the phases. Sixteen warps hide each other's latencies.
pub(super) const THREADS: usize = 512;
/// Warps that bring weights, and all threads.
pub(super) const COPIERS: usize = 2;
const ALL_THREADS: usize = THREADS + 32 * COPIERS;

/// `Phase` in phases.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TablePhase {
    function: i32,
    grid: [u32; 2],
    threads: u32,
    segment: i32,
    segments: i32,
    tasks: i32,
    stores: i32,
    input: Passed,
    added: Passed,
    gates: Passed,
    output: Passed,
    sum: Passed,
    shift: u32,
    unused: u32,
}

/// The parameter of a product that is the tasks which its rows go through.
pub(super) const TASKS: usize = 3;
/// Bytes of weights a token from which on one kernel is the faster step. On one H200 a graph took 266 us and one kernel 416
/// for 15 MB, 1207 and 566 for 0.7 GB.
pub(crate) const LEAST_BYTES: usize = 256 << 20;

/// The phases of a step, ready to run.
pub(crate) struct Persistent {
    table: Memory,
    /// Each block's way through them.
    followers: Memory,
    lists: Memory,
    /// The session's words, which the kernel writes.
    control: Arc<Control>,
    /// What phases pass to the next ones.
    passed: Memory,
    kernel: Kernel,
    stride: usize,
    /// The function of each phase.
    names: Vec<String>,
    /// The ops of each phase.
    ops: Vec<PhaseOps>,
    blocks: usize,
    shared: usize,
    /// Stages of the weight pipeline, and the bytes of one.
    stages: [usize; 2],
}

/// What a phase of a step took on the first of a GPU's processors, in its clock's cycles.
#[derive(Clone, Debug)]
pub struct PhaseTime {
    /// The function that ran.
    pub function: String,
    /// Until the phases before it had ended everywhere.
    pub wait: u64,
    /// From then to its own end.
    pub work: u64,
}

/// What a phase of a step has to do with ops.
pub(crate) struct PhaseOps {
    /// The ops whose work it does, or a part of it.
    pub ops: Vec<usize>,
    /// The phases from whose mailboxes it reads.
    pub sources: Vec<usize>,
}

impl PhaseOps {
    fn new(queued: &Queued, passes: &Passes) -> Self {
        let own = queued.of.as_ref().map(|of| of.op);
        PhaseOps {
            ops: own.into_iter().chain(queued.also.iter().copied()).collect(),
            sources: passes.sources().collect(),
        }
    }
}

/// The weights of each block, and where they pass through its shared memory.
struct Dealt {
    /// Each block's segments of all phases.
    lists: Vec<Vec<Segment>>,
    /// The segments of each phase.
    segments: Vec<Range<usize>>,
    layout: Layout,
}

impl Dealt {
    /// In the largest tiles and batches with which four stages fit into `shared` bytes, or else two.
    fn new(
        phases: &[Phase<'_>],
        blocks: usize,
        shared: usize,
    ) -> std::result::Result<Self, String> {
        let mut least = usize::MAX;
        for stages in [2 * COPIERS, COPIERS] {
            for &tiling in Tiling::all() {
                let (lists, segments, sums) = Self::in_tiles(phases, blocks, tiling);
                let calls = phases.iter().map(|phase| phase.queued);
                let list = lists[0].len() * size_of::<Segment>();
                let needs = Needs::of(calls, list, sums, tiling);
                match needs.layout(stages, shared) {
                    Ok(layout) => {
                        return Ok(Dealt {
                            lists,
                            segments,
                            layout,
                        });
                    }
                    Err(bytes) => least = least.min(bytes),
                }
            }
        }
        Err(format!(
            "a thread block needs {least} bytes of shared memory, and the device has {shared}"
        ))
    }

    /// The lists, the segments of each phase, and the floats that sums take.
    fn in_tiles(
        phases: &[Phase<'_>],
        blocks: usize,
        tiling: Tiling,
    ) -> (Vec<Vec<Segment>>, Vec<Range<usize>>, usize) {
        let mut lists = vec![Vec::new(); blocks];
        let mut segments = Vec::with_capacity(phases.len());
        let mut sums = 0;
        for (index, phase) in phases.iter().enumerate() {
            let before = lists[0].len();
            if let Some(product) = phase.queued.product() {
                let next = phases.get(index + 1);
                let next = next.and_then(|next| next.queued.recurrence());
                let own = &mut lists[phase.blocks.clone()];
                sums = sums.max(deal(product, next, own, tiling));
                let end = own[0].len();
                for list in &mut lists {
                    list.resize(end, Segment::skipped());
                }
            }
            segments.push(before..lists[0].len());
        }
        for list in &mut lists {
            // An empty segment ends a list.
            list.push(Segment::zeroed());
            let mut entries = 0;
            for segment in list.iter_mut().filter(|segment| segment.rows > 0) {
                segment.entry = entries;
                entries += segment.entries(tiling);
            }
        }
        (lists, segments, sums)
    }
}

impl Persistent {
    /// Compiles the phases `calls` for so many blocks, or says why the device cannot run them.
    pub fn new(
        calls: &[&Queued],
        blocks: usize,
        device: &Device,
        queue: &dyn Queue,
        control: &Arc<Control>,
    ) -> Result<std::result::Result<Self, String>> {
        let phases = in_levels(calls, blocks);
        let calls: Vec<&Queued> = phases.iter().map(|phase| phase.queued).collect();
        let Dealt {
            lists,
            segments,
            layout,
        } = match Dealt::new(&phases, blocks, device.driver().shared_memory()) {
            Ok(dealt) => dealt,
            Err(reason) => return Ok(Err(reason)),
        };
        let stride = lists[0].len();
        // Who passes values, and who takes them, has a level for itself.
        let links = phases.iter().map(|phase| match phase.has_company {
            true => Link::Barrier,
            false => phase.queued.link(),
        });
        let links: Vec<_> = links.collect();
        let (passes, passed_floats) = passes_of(&links);
        let source = Source::of_phases(&calls, &passes, &layout.constants(passed_floats));
        let kernel = device.kernels(&source)?[0];

        let upload = |bytes: &[u8]| {
            let memory = Memory::new(device.driver(), bytes.len())?;
            queue.write(memory.address(), bytes)?;
            Ok::<_, crate::error::Error>(memory)
        };
        // Two places of each, all of them empty.
        let passed = upload(&vec![u8::MAX; 2 * passed_floats.max(1) * size_of::<f32>()])?;
        let at = |place: Option<Place>| {
            place.map_or(Passed::zeroed(), |place| place.in_memory(passed.address()))
        };
        let mut table = vec![0u8; calls.len() * layout.parameters()];
        let places = table.chunks_exact_mut(layout.parameters());
        for (index, ((bytes, phase), passes)) in places.zip(&phases).zip(&passes).enumerate() {
            let (queued, own) = (phase.queued, &phase.blocks);
            let call = &queued.call;
            let grid = match (queued.product(), call.grid.blocks(1)) {
                (Some(_), _) => [own.len() as u32, 1],
                (None, [x, y, _]) => [x, y],
            };
            let in_table = TablePhase {
                function: source.of_call[index] as i32,
                grid,
                threads: call.threads as u32,
                segment: segments[index].start as i32,
                segments: segments[index].len() as i32,
                tasks: call.offsets().nth(TASKS).unwrap_or(0) as i32,
                stores: passes.stores.into(),
                input: at(passes.input),
                added: at(passes.added),
                gates: at(passes.gates),
                output: at(passes.output),
                sum: at(passes.sum),
                shift: ((blocks - own.start) % blocks) as u32,
                unused: 0,
            };
            let (head, rest) = bytes.split_at_mut(size_of::<TablePhase>());
            head.copy_from_slice(bytemuck::bytes_of(&in_table));
            for (argument, at) in call.arguments().0.iter().zip(call.offsets()) {
                let words: &[u8] = bytemuck::cast_slice(&argument.0);
                rest[at..at + words.len()].copy_from_slice(words);
            }
            if let Some(recurrence) = queued.recurrence() {
                let inputs = rest.chunks_exact_mut(recurrence.input_bytes);
                for (input, &place) in inputs.zip(&passes.inputs) {
                    input[..size_of::<Passed>()].copy_from_slice(bytemuck::bytes_of(&at(place)));
                }
            }
        }
        let arrives: Vec<bool> = passes
            .iter()
            .map(|passes| passes.output.is_none())
            .collect();
        let followers = followers(&phases, &arrives, blocks);
        let persistent = Persistent {
            table: upload(&table)?,
            followers: upload(bytemuck::cast_slice(&followers))?,
            lists: upload(bytemuck::cast_slice(&lists.concat()))?,
            control: Arc::clone(control),
            passed,
            kernel,
            stride,
            ops: (phases.iter().zip(&passes))
                .map(|(phase, passes)| PhaseOps::new(phase.queued, passes))
                .collect(),
            names: calls
                .iter()
                .map(|queued| queued.call.kernel.clone())
                .collect(),
            blocks,
            shared: layout.shared(),
            stages: layout.stages(),
        };
        let refused = queue.admits(&persistent.launch_of(0, 0, 0))?;
        Ok(match refused {
            Some(reason) => Err(reason),
            None => Ok(persistent),
        })
    }

    /// Which ops its phases belong to, and which phases pass values to which.
    pub fn ops(&self) -> &[PhaseOps] {
        &self.ops
    }

    /// What a failure of the program was, for people.
    pub fn describe_failure(&self, failure: Failure) -> String {
        let name = self.names.get(failure.phase as usize);
        let op = name.and_then(|name| name.split('<').next());
        failure.describe(op.unwrap_or("none"))
    }

    /// What it takes of the device, for people.
    pub fn describe(&self) -> String {
        let [stages, bytes] = self.stages;
        format!(
            "{} thread blocks with {} bytes of shared memory, a weight pipeline of {stages} stages of {bytes} bytes",
            self.blocks, self.shared
        )
    }

    /// The launch that goes through the phases from `first` on. It may leave out only phases without products.
    pub fn launch(&self, first: usize) -> Launch {
        self.launch_with(first, 0)
    }

    /// Goes through all phases and tells how long the first block waited for those before each, and how long it worked.
    pub fn time(&self, device: &Device, queue: &dyn Queue) -> Result<Vec<PhaseTime>> {
        // One phase before the first has a place too, and one behind the last.
        let mut clocks = vec![[0u64; 3]; self.names.len() + 2];
        let memory = Memory::new(device.driver(), size_of_val(&*clocks))?;
        queue.clear(memory.address(), size_of_val(&*clocks))?;
        queue.launch(&self.launch_with(0, memory.address()))?;
        queue.read(memory.address(), bytemuck::cast_slice_mut(&mut clocks))?;
        let times = self.names.iter().zip(&clocks[1..]);
        let times = times.map(|(name, &[begun, ready, done])| PhaseTime {
            function: name.clone(),
            wait: ready.saturating_sub(begun),
            work: done.saturating_sub(ready),
        });
        Ok(times.collect())
    }

    fn launch_with(&self, first: usize, clocks: Address) -> Launch {
        self.launch_of(first, self.names.len(), clocks)
    }

    /// Goes through `count` phases, all or none.
    fn launch_of(&self, first: usize, count: usize, clocks: Address) -> Launch {
        let value = |value: u64| Argument(Box::new([value]));
        Launch {
            kernel: self.kernel,
            grid: [self.blocks as u32, 1, 1],
            threads: ALL_THREADS as u32,
            shared: self.shared as u32,
            arguments: vec![
                value(self.table.address()),
                value(self.followers.address()),
                value(self.lists.address()),
                value(self.stride as u64),
                value(first as u64),
                value(count as u64),
                value(self.control.address()),
                value(clocks),
            ],
            together: true,
        }
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        let memories = [&self.table, &self.followers, &self.lists, &self.passed];
        memories.map(Memory::bytes).iter().sum()
    }
}
