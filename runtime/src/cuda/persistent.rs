//! A step as one kernel: its blocks stay on the device for the whole token and go through the phases of a table, each of which
//! would be a kernel of its own in a recorded step. Weights come through a ring in shared memory, ahead of the phases.

use bytemuck::{Pod, Zeroable};
use waterline_quant::FORMATS;

use super::Device;
use super::driver::{Address, Argument, Kernel, Launch, Memory, Queue};
use super::launches::Queued;
use super::levels::{followers, in_levels};
use super::passed::{Link, Passed, Place, passes_of};
use super::ring_products::Product;
use super::segments::{STEP_UNITS, SUMS_PITCH, Segment, Tile, deal, rows_of_entry};
use super::source::Source;
use crate::error::Result;
use crate::session::PhaseTime;

/// Threads of a block that go through the phases. Sixteen warps hide each other's latencies.
pub(super) const THREADS: usize = 512;
/// Warps that bring weights, and all threads.
const COPIERS: usize = 2;
const ALL_THREADS: usize = THREADS + 32 * COPIERS;
/// What the place of the ring in shared memory is a multiple of.
const RING_ALIGNMENT: usize = 128;
/// Shared memory that stages declare for themselves.
const STATIC_SHARED: usize = 6 << 10;

/// `Phase` in phases.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TablePhase {
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
/// Bytes of `Turn` in phases.cu.
const TURN: usize = 128;
/// Fewest entries that the ring of weights holds, and bytes of the two barriers of each. Each copier has slots of its own.
const LEAST_SLOTS: usize = 2 * COPIERS;
const SLOT_BARRIERS: usize = 2 * size_of::<u64>();
/// Longest list of segments that a block keeps in shared memory.
const LIST: usize = 24 << 10;
/// Bytes of weights a token from which on one kernel is the faster step. On one H200 a graph took 266 us and one kernel 416
/// for 15 MB, 1207 and 566 for 0.7 GB.
pub(super) const LEAST_BYTES: usize = 256 << 20;

/// The phases of a step, ready to run.
pub(super) struct Persistent {
    table: Memory,
    /// Each block's way through them.
    followers: Memory,
    lists: Memory,
    /// How many blocks have arrived, and the number of the token.
    arrived: Memory,
    /// What phases pass to the next ones.
    passed: Memory,
    kernel: Kernel,
    stride: usize,
    /// The function of each phase.
    names: Vec<String>,
    blocks: usize,
    shared: usize,
}

/// What is fixed before the kernel is compiled.
struct Layout {
    parameters: usize,
    /// The list of segments in shared memory, if it lies there.
    list: usize,
    room: usize,
    sums_at: usize,
    /// Whether matrices in BF16 are multiplied on tensor cores.
    tensor_cores: bool,
    /// Bytes of an entry of the ring, and how many it holds.
    slot: usize,
    slots: usize,
}

impl Persistent {
    /// Compiles the phases `calls` for so many blocks; none if the device's shared memory is too small for them.
    pub fn new(
        calls: &[&Queued],
        blocks: usize,
        device: &Device,
        queue: &dyn Queue,
    ) -> Result<Option<Self>> {
        let phases = in_levels(calls, blocks);
        let calls: Vec<&Queued> = phases.iter().map(|phase| phase.queued).collect();
        let mut lists = vec![Vec::new(); blocks];
        let mut segments = Vec::with_capacity(calls.len());
        let mut sums = 0;
        for (index, phase) in phases.iter().enumerate() {
            let before = lists[0].len();
            if let Some(product) = phase.queued.product() {
                let next = calls.get(index + 1).and_then(|next| next.recurrence());
                let own = &mut lists[phase.blocks.clone()];
                sums = sums.max(deal(product, next, own));
                let end = own[0].len();
                for list in &mut lists {
                    list.resize(end, Segment::skipped());
                }
            }
            segments.push(before..lists[0].len());
        }
        // An empty segment ends a list.
        lists
            .iter_mut()
            .for_each(|list| list.push(Segment::zeroed()));
        let stride = lists[0].len();
        let Some(layout) = Layout::of(&calls, stride, sums, device.driver().shared_memory()) else {
            return Ok(None);
        };
        for list in &mut lists {
            let mut entries = 0;
            for segment in list.iter_mut().filter(|segment| segment.rows > 0) {
                segment.entry = entries;
                entries += segment.entries();
            }
        }
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
        let mut table = vec![0u8; calls.len() * layout.parameters];
        let places = table.chunks_exact_mut(layout.parameters);
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
        Ok(Some(Persistent {
            table: upload(&table)?,
            followers: upload(bytemuck::cast_slice(&followers))?,
            lists: upload(bytemuck::cast_slice(&lists.concat()))?,
            arrived: upload(bytemuck::cast_slice(&[0u32, 1]))?,
            passed,
            kernel,
            stride,
            names: calls
                .iter()
                .map(|queued| queued.call.kernel.clone())
                .collect(),
            blocks,
            shared: layout.shared(),
        }))
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
                value(self.names.len() as u64),
                value(self.arrived.address()),
                value(clocks),
            ],
            together: true,
        }
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        let memories = [
            &self.table,
            &self.followers,
            &self.lists,
            &self.arrived,
            &self.passed,
        ];
        memories.map(Memory::bytes).iter().sum()
    }
}

impl Layout {
    fn of(calls: &[&Queued], segments: usize, sums: usize, shared: usize) -> Option<Self> {
        let list = segments * size_of::<Segment>();
        let bytes = calls.iter().map(|queued| queued.call.packed_bytes());
        let parameters = (size_of::<TablePhase>() + bytes.max()?).next_multiple_of(16);
        let products = || calls.iter().filter_map(|queued| queued.product());
        let sums_at = products().map(Product::input_bytes).max().unwrap_or(0);
        let sums_at = sums_at.next_multiple_of(16);
        let room = calls.iter().map(|queued| queued.call.shared).max();
        let room = room?
            .max(sums_at + sums * size_of::<f32>())
            .next_multiple_of(128);
        let factors = || products().flat_map(|product| &product.factors);
        let mut layout = Layout {
            parameters,
            list: if list <= LIST { list } else { 0 },
            room,
            sums_at,
            tensor_cores: factors().any(|factor| factor.on_tensor_cores),
            slot: factors()
                .map(|factor| Tile::of(factor).bytes)
                .max()
                .unwrap_or(0)
                .next_multiple_of(128)
                .max(128),
            slots: 0,
        };
        let left = shared.checked_sub(STATIC_SHARED + layout.shared() + RING_ALIGNMENT)?;
        layout.slots = left / (layout.slot + SLOT_BARRIERS) / COPIERS * COPIERS;
        let fits = layout.slots >= LEAST_SLOTS && layout.parameters / 16 < THREADS;
        fits.then_some(layout)
    }

    /// Bytes of dynamic shared memory.
    fn shared(&self) -> usize {
        self.ring_at() + self.slots * self.slot
    }

    /// Where the ring begins in it. Rows that bulk copies write to places that are no multiples of 32 bytes take longer: a token
    /// 7 % longer.
    fn ring_at(&self) -> usize {
        let before = TURN + 2 * self.parameters + self.slots * SLOT_BARRIERS;
        (before + self.list + self.room).next_multiple_of(RING_ALIGNMENT)
    }

    fn constants(&self, passed_floats: usize) -> String {
        let double_entries = (0..FORMATS.len())
            .filter(|&format| rows_of_entry(format) == 16)
            .fold(0, |set, format| set | 1 << format);
        let constants = [
            ("phase_threads", THREADS),
            ("copiers", COPIERS),
            ("step_units", STEP_UNITS),
            ("sums_pitch", SUMS_PITCH),
            ("double_entries", double_entries),
            ("parameter_bytes", self.parameters),
            ("list_bytes", self.list),
            ("ring_at", self.ring_at()),
            ("sums_at", self.sums_at),
            ("turn_bytes", TURN),
            ("segment_bytes", size_of::<Segment>()),
            ("slots_bytes", self.slots * SLOT_BARRIERS),
            ("slot_bytes", self.slot),
            ("ring_slots", self.slots),
            ("passed_floats", passed_floats),
            ("ring_tensor_cores", self.tensor_cores.into()),
        ];
        let line = |(name, value)| format!("constexpr int {name} = {value};\n");
        // What that changes, phases.cu tells.
        let racecheck = match std::env::var_os("WATERLINE_RACECHECK") {
            Some(_) => "#define WATERLINE_RACECHECK 1\n",
            None => "",
        };
        racecheck.to_owned() + &constants.map(line).concat()
    }
}
