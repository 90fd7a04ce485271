//! The decode kernel on the host: the table of ops, each block's list of ops and of weight segments, and the launch. An op here is a
//! kernel call of the schedule.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Zeroable;

use crate::cuda::decode::control::{Control, Failure};
use crate::cuda::decode::layout::{Layout, Needs};
use crate::cuda::decode::levels::{KernelOp, by_levels, next_ops};
use crate::cuda::decode::mailbox::{Mailbox, MailboxRole, Mailboxes, assign_mailboxes};
use crate::cuda::decode::pipeline::{Segment, distribute};
use crate::cuda::decode::record::{OpRecord, PRODUCER_WARPS, ROW_OPS_PARAMETER};
use crate::cuda::decode::slots::SlotCalls;
use crate::cuda::decode::source::decode_kernel;
use crate::cuda::decode::tiling::Tiling;
use crate::cuda::device::Device;
use crate::cuda::driver::{Address, Argument, Kernel, Launch, Memory, Queue};
use crate::cuda::schedule::{DECODE_THREADS, Queued};
use crate::error::Result;
use crate::op_time::OpTime;

/// Threads of a block.
const CTA_THREADS: usize = DECODE_THREADS + 32 * PRODUCER_WARPS;

/// The ops of a step, ready to run.
pub struct DecodeKernel {
    table: Memory,
    /// Each block's list of ops.
    next_ops: Memory,
    lists: Memory,
    /// The words that the kernel shares with the host.
    control: Arc<Control>,
    mailbox_memory: Memory,
    kernel: Kernel,
    stride: usize,
    /// The function of each op.
    names: Vec<String>,
    /// The program's ops that each op computes.
    ops: Vec<KernelOpInfo>,
    blocks: usize,
    shared: usize,
    /// Number of stages of the weight pipeline, and bytes per stage.
    stages: [usize; 2],
}

/// Description of an op of the kernel, for the printed schedule.
pub struct KernelOpInfo {
    /// The program's ops that it computes in full or in part.
    pub ops: Vec<usize>,
    /// The kernel's ops whose mailboxes it reads.
    pub sources: Vec<usize>,
    /// Passes that could not merge it with its neighbours, and the reasons.
    pub refusals: Vec<(&'static str, &'static str)>,
}

impl KernelOpInfo {
    fn new(queued: &Queued, mailboxes: &Mailboxes) -> Self {
        let own = queued.of.as_ref().map(|of| of.op);
        KernelOpInfo {
            ops: own.into_iter().chain(queued.also.iter().copied()).collect(),
            sources: mailboxes.sources().collect(),
            refusals: queued.refusals.clone(),
        }
    }
}

/// The weights of each block, and the layout of shared memory.
struct WeightPlan {
    /// Each block's segments, over all ops.
    lists: Vec<Vec<Segment>>,
    /// Indices of each op's segments.
    segments: Vec<Range<usize>>,
    layout: Layout,
}

impl WeightPlan {
    /// Chooses the largest tiles and batches that leave room for four stages in `shared` bytes, or else for two.
    /// The arguments are the numbers of slots and of thread blocks, and the bytes of shared memory of a block.
    fn new(
        ops: &[KernelOp<'_>],
        [slots, blocks, shared]: [usize; 3],
    ) -> std::result::Result<Self, String> {
        let mut least = usize::MAX;
        for stages in [2 * PRODUCER_WARPS, PRODUCER_WARPS] {
            for tiling in Tiling::all(blocks) {
                let (lists, segments, sums) = Self::in_tiles(ops, blocks, tiling);
                let calls = ops.iter().map(|op| op.queued);
                let list = lists[0].len() * size_of::<Segment>();
                let needs = Needs::new(calls, list, sums, slots, tiling);
                match needs.layout(stages, shared) {
                    Ok(layout) => {
                        return Ok(WeightPlan {
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
            "a thread block needs {least} bytes of shared memory, but the device has {shared}"
        ))
    }

    /// Returns the blocks' lists, the segment indices of each op, and the number of floats that partial sums need.
    fn in_tiles(
        ops: &[KernelOp<'_>],
        blocks: usize,
        tiling: Tiling,
    ) -> (Vec<Vec<Segment>>, Vec<Range<usize>>, usize) {
        let mut lists = vec![Vec::new(); blocks];
        let mut segments = Vec::with_capacity(ops.len());
        let mut sums = 0;
        for (index, op) in ops.iter().enumerate() {
            let before = lists[0].len();
            if let Some(gemv) = op.queued.gemv() {
                let next = ops.get(index + 1);
                let next = next.and_then(|next| next.queued.recurrence());
                let own = &mut lists[op.blocks.clone()];
                sums = sums.max(distribute(gemv, next, own, tiling));
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
            let mut tiles = 0;
            for segment in list.iter_mut().filter(|segment| segment.rows > 0) {
                segment.tile = tiles;
                tiles += segment.tiles(tiling);
            }
        }
        (lists, segments, sums)
    }
}

impl DecodeKernel {
    /// Compiles the kernel for `blocks` thread blocks. With the calls of several slots it reads a token in each. The inner error is the
    /// reason why the device cannot run it.
    pub fn new(
        slots: &[&[Queued]],
        blocks: usize,
        device: &Device,
        queue: &dyn Queue,
        control: &Arc<Control>,
    ) -> Result<std::result::Result<Self, String>> {
        let ops = by_levels(SlotCalls::group(slots), blocks);
        let calls: Vec<&Queued> = ops.iter().map(|op| op.queued).collect();
        let WeightPlan {
            lists,
            segments,
            layout,
        } = match WeightPlan::new(&ops, [slots.len(), blocks, device.driver().shared_memory()]) {
            Ok(dealt) => dealt,
            Err(reason) => return Ok(Err(reason)),
        };
        let stride = lists[0].len();
        // Only an op that is alone in its level uses mailboxes, and only for one slot.
        let links = ops.iter().map(|op| {
            if op.is_concurrent || slots.len() > 1 {
                MailboxRole::Barrier
            } else {
                MailboxRole::of(op.queued)
            }
        });
        let links: Vec<_> = links.collect();
        let (mailboxes, mailbox_floats) = assign_mailboxes(&links);
        let (source, functions) = decode_kernel(
            &ops,
            &mailboxes,
            &layout.constants(mailbox_floats, device.driver().tuning()),
            slots.len() > 1,
        );
        let kernel = device.compile(&source)?[0];

        let upload = |bytes: &[u8]| {
            let memory = Memory::new(device.driver(), bytes.len())?;
            queue.write(memory.address(), bytes)?;
            Ok::<_, crate::error::Error>(memory)
        };
        // Two buffers, all entries empty.
        let mailbox_memory = upload(&vec![u8::MAX; 2 * mailbox_floats.max(1) * size_of::<f32>()])?;
        let at = |place: Option<Mailbox>| {
            place.map_or(0, |place| place.in_memory(mailbox_memory.address()))
        };
        let mut table = vec![0u8; calls.len() * layout.parameters()];
        let places = table.chunks_exact_mut(layout.parameters());
        for (index, ((bytes, op), mailboxes)) in places.zip(&ops).zip(&mailboxes).enumerate() {
            let (queued, own) = (op.queued, &op.blocks);
            let call = &queued.call;
            let grid = match (queued.gemv(), call.grid.blocks(1)) {
                (Some(_), _) => [own.len() as u32, 1],
                (None, [x, y, _]) => [x, y],
            };
            let in_table = OpRecord {
                function: functions[index] as i32,
                grid,
                threads: call.threads as u32,
                segment: segments[index].start as i32,
                segments: segments[index].len() as i32,
                row_ops: call.offsets().nth(ROW_OPS_PARAMETER).unwrap_or(0) as i32,
                stores: mailboxes.stores.into(),
                input: at(mailboxes.input),
                added: at(mailboxes.added),
                gates: at(mailboxes.gates),
                output: at(mailboxes.output),
                sum: at(mailboxes.sum),
                shift: ((blocks - own.start) % blocks) as u32,
                slot: op.slot as u32,
            };
            let (head, rest) = bytes.split_at_mut(size_of::<OpRecord>());
            head.copy_from_slice(bytemuck::bytes_of(&in_table));
            let packed = rest.chunks_mut(call.packed_bytes().max(1));
            for (queued, packed) in op.parameters.iter().zip(packed) {
                for (words, at) in queued.call.values().zip(queued.call.offsets()) {
                    let words: &[u8] = bytemuck::cast_slice(words);
                    packed[at..at + words.len()].copy_from_slice(words);
                }
            }
            if let Some(recurrence) = queued.recurrence() {
                let mut step = recurrence.step;
                for (input, &place) in step.input.iter_mut().zip(&mailboxes.inputs) {
                    input.from = at(place);
                }
                rest[..size_of_val(&step)].copy_from_slice(bytemuck::bytes_of(&step));
            }
        }
        let arrives: Vec<bool> = mailboxes
            .iter()
            .map(|mailboxes| mailboxes.output.is_none())
            .collect();
        let next_ops = next_ops(&ops, &arrives, blocks);
        let persistent = DecodeKernel {
            table: upload(&table)?,
            next_ops: upload(bytemuck::cast_slice(&next_ops))?,
            lists: upload(bytemuck::cast_slice(&lists.concat()))?,
            control: Arc::clone(control),
            mailbox_memory,
            kernel,
            stride,
            ops: (ops.iter().zip(&mailboxes))
                .map(|(op, mailboxes)| KernelOpInfo::new(op.queued, mailboxes))
                .collect(),
            names: calls
                .iter()
                .map(|queued| queued.call.kernel.clone())
                .collect(),
            blocks,
            shared: layout.shared(),
            stages: layout.stages(),
        };
        let refused = queue.admits(&persistent.launch_of(0, 0, 0, 1))?;
        Ok(match refused {
            Some(reason) => Err(reason),
            None => Ok(persistent),
        })
    }

    /// Returns the kernel's ops in order.
    pub fn ops(&self) -> &[KernelOpInfo] {
        &self.ops
    }

    /// Returns the number of thread blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Describes a failure in words.
    pub fn describe_failure(&self, failure: Failure) -> String {
        let name = self.names.get(failure.op as usize);
        let op = name.and_then(|name| name.split('<').next());
        failure.describe(op.unwrap_or("none"))
    }

    /// Describes the resources that the kernel uses.
    pub fn describe(&self) -> String {
        let [stages, bytes] = self.stages;
        format!(
            "{} thread blocks with {} bytes of shared memory, a weight pipeline of {stages} stages of {bytes} bytes",
            self.blocks, self.shared
        )
    }

    /// Returns the launch that runs the ops from `first` on. Ops with weights cannot be skipped.
    pub fn launch(&self, first: usize) -> Launch {
        self.launch_of(first, self.names.len(), 0, 1)
    }

    /// Returns the launch that reads a token in each of the first `slots` slots.
    pub fn launch_slots(&self, slots: usize) -> Launch {
        self.launch_of(0, self.names.len(), 0, slots)
    }

    /// Runs all ops; returns for each how long the first block waited for its input and how long it worked.
    pub fn time(&self, device: &Device, queue: &dyn Queue) -> Result<Vec<OpTime>> {
        // One more entry before the first op and one after the last.
        let mut clocks = vec![[0u64; 3]; self.names.len() + 2];
        let memory = Memory::new(device.driver(), size_of_val(&*clocks))?;
        queue.clear(memory.address(), size_of_val(&*clocks))?;
        queue.launch(&self.launch_of(0, self.names.len(), memory.address(), 1))?;
        queue.read(memory.address(), bytemuck::cast_slice_mut(&mut clocks))?;
        let times = self.names.iter().zip(&clocks[1..]);
        let times = times.map(|(name, &[begun, ready, done])| OpTime {
            function: name.clone(),
            wait: ready.saturating_sub(begun),
            work: done.saturating_sub(ready),
        });
        Ok(times.collect())
    }

    /// Returns the launch. `count` is the number of all ops, or 0 for a launch that only tests whether the device holds all blocks.
    fn launch_of(&self, first: usize, count: usize, clocks: Address, slots: usize) -> Launch {
        let value = |value: u64| Argument(Box::new([value]));
        Launch {
            kernel: self.kernel,
            grid: [self.blocks as u32, 1, 1],
            threads: CTA_THREADS as u32,
            shared: self.shared as u32,
            arguments: vec![
                value(self.table.address()),
                value(self.next_ops.address()),
                value(self.lists.address()),
                value(self.stride as u64),
                value(first as u64),
                value(count as u64),
                value(self.control.address()),
                value(clocks),
                value(slots as u64),
            ],
            cluster: 1,
            cooperative: true,
        }
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        let memories = [
            &self.table,
            &self.next_ops,
            &self.lists,
            &self.mailbox_memory,
        ];
        memories.map(Memory::bytes).iter().sum()
    }
}
