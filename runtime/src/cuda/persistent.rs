//! A step as one kernel: its blocks stay on the device for the whole token and go through the phases of a table, each of which
//! would be a kernel of its own in a recorded step. Weights come through a ring in shared memory, ahead of the phases.

use bytemuck::{Pod, Zeroable};

use super::Device;
use super::driver::{Address, Argument, Kernel, Launch, Memory, Queue};
use super::launches::Queued;
use super::ring_products::{Kind, Product, RingFactor};
use super::source::Source;
use crate::error::Result;
use crate::session::PhaseTime;

/// Threads of a block that go through the phases. Sixteen warps hide each other's latencies.
pub(super) const THREADS: usize = 512;
/// Warps that bring weights, and all threads.
const COPIERS: usize = 4;
const ALL_THREADS: usize = THREADS + 32 * COPIERS;
/// Shared memory that stages declare for themselves.
const STATIC_SHARED: usize = 6 << 10;

/// `Phase` in phases.cu.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Phase {
    function: i32,
    grid: [u32; 2],
    threads: u32,
    segments: i32,
    tasks: i32,
    pad: [i32; 2],
}

/// `Segment` in weight_ring.cu: rows of one matrix that a block takes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Segment {
    codes: Address,
    scales: Address,
    bias: Address,
    code_row: u32,
    scale_row: u32,
    rows: i32,
    column: i32,
    sums: i32,
    entry: u32,
    entry_rows: u16,
    format: u16,
    pieces: u16,
    tile_pieces: u16,
    per_piece: f32,
    task: i32,
}

/// The parameter of a product that is the tasks which its rows go through.
const TASKS: usize = 2;
/// Bytes of `Turn` in phases.cu.
const TURN: usize = 64;
/// Fewest entries that the ring of weights holds, and bytes of the two barriers of each.
const LEAST_SLOTS: usize = 3;
const SLOT_BARRIERS: usize = 2 * size_of::<u64>();
/// Longest list of segments that a block keeps in shared memory.
const LIST: usize = 24 << 10;
/// Bytes of an entry, unless one row is larger: large ones cost fewer instructions, small ones come sooner.
const ENTRY: usize = 16 << 10;
/// Rows that a warp takes together.
const ITEM_ROWS: usize = 4;
/// Rows of a tile for tensor cores, its pieces, bytes of a row's piece, and of what stands between rows, so that they begin in
/// other banks.
const TILE_ROWS: usize = 8;
const TILE_PIECES: u16 = 4;
const PIECE: usize = 512;
const TILE_GAP: usize = 64;

/// Bytes of weights a token from which on one kernel is the faster step. On one H200 a graph took 266 us and one kernel 416
/// for 15 MB, 1230 and 672 for 0.7 GB.
pub(super) const LEAST_BYTES: usize = 256 << 20;

/// The phases of a step, ready to run.
pub(super) struct Persistent {
    table: Memory,
    lists: Memory,
    arrived: Memory,
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
    /// The set of formats that come through the ring.
    formats: usize,
    /// Whether some come in tiles.
    tiles: bool,
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
        let mut lists = vec![Vec::new(); blocks];
        let mut counts = Vec::with_capacity(calls.len());
        let mut sums = 0;
        for product in calls.iter().map(|queued| &queued.product) {
            let before = lists[0].len();
            if let Some(product) = product {
                sums = sums.max(deal(product, &mut lists));
            }
            counts.push(lists[0].len() - before);
        }
        // An empty segment ends a list.
        lists
            .iter_mut()
            .for_each(|list| list.push(Segment::zeroed()));
        let stride = lists[0].len();
        let Some(layout) = Layout::of(calls, stride, sums, device.driver().shared_memory()) else {
            return Ok(None);
        };
        for list in &mut lists {
            let mut entries = 0;
            for segment in list.iter_mut().filter(|segment| segment.rows > 0) {
                segment.entry = entries;
                entries += segment.entries();
            }
        }
        let source = Source::of_phases(calls, &layout.constants());
        let kernel = device.kernels(&source)?[0];

        let mut table = vec![0u8; calls.len() * layout.parameters];
        let phases = table.chunks_exact_mut(layout.parameters);
        for (index, (bytes, queued)) in phases.zip(calls).enumerate() {
            let call = &queued.call;
            let [x, y, _] = call.grid.blocks(1);
            let phase = Phase {
                function: source.of_call[index] as i32,
                grid: match queued.product {
                    Some(_) => [blocks as u32, 1],
                    None => [x, y],
                },
                threads: call.threads as u32,
                segments: counts[index] as i32,
                tasks: call.offsets().nth(TASKS).unwrap_or(0) as i32,
                pad: [0; 2],
            };
            let (head, rest) = bytes.split_at_mut(size_of::<Phase>());
            head.copy_from_slice(bytemuck::bytes_of(&phase));
            for (argument, at) in call.arguments().0.iter().zip(call.offsets()) {
                let words: &[u8] = bytemuck::cast_slice(&argument.0);
                rest[at..at + words.len()].copy_from_slice(words);
            }
        }
        let upload = |bytes: &[u8]| {
            let memory = Memory::new(device.driver(), bytes.len())?;
            queue.write(memory.address(), bytes)?;
            Ok::<_, crate::error::Error>(memory)
        };
        Ok(Some(Persistent {
            table: upload(&table)?,
            lists: upload(bytemuck::cast_slice(&lists.concat()))?,
            arrived: upload(&[0; 4])?,
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
        let mut clocks = vec![[0u64; 3]; self.names.len()];
        let memory = Memory::new(device.driver(), size_of_val(&*clocks))?;
        queue.clear(memory.address(), size_of_val(&*clocks))?;
        queue.launch(&self.launch_with(0, memory.address()))?;
        queue.read(memory.address(), bytemuck::cast_slice_mut(&mut clocks))?;
        let times = self.names.iter().zip(clocks);
        let times = times.map(|(name, [begun, ready, done])| PhaseTime {
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
        self.table.bytes() + self.lists.bytes() + self.arrived.bytes()
    }
}

/// Deals a product's rows out to the blocks' lists, every block the same number of segments; returns the floats that
/// a block needs for sums.
fn deal(product: &Product, lists: &mut [Vec<Segment>]) -> usize {
    // The rows of a gated product's two matrices go together.
    let together = if product.kind == Kind::Gated { 2 } else { 1 };
    let owners = &product.factors[..product.factors.len() / together];
    let matrices: Vec<Matrix> = owners.iter().map(Matrix::of).collect();
    let shares = shares(&matrices, lists.len());
    let most = shares.iter().map(Vec::len).max().unwrap_or(0);
    let mut room = 0;
    for (list, share) in lists.iter_mut().zip(shares) {
        let mut sums = 0;
        for &(index, first, rows) in &share {
            for twin in 0..together {
                let factor = &product.factors[index + twin * owners.len()];
                let pieces = factor.pieces();
                list.push(Segment {
                    codes: factor.codes + (first * factor.code_row) as u64,
                    scales: factor.scales + (first * factor.scale_row) as u64,
                    bias: match factor.bias {
                        0 => 0,
                        bias => bias + (first * size_of::<f32>()) as u64,
                    },
                    code_row: factor.code_row as u32,
                    scale_row: factor.scale_row as u32,
                    rows: rows as i32,
                    column: (factor.column + first) as i32,
                    sums: sums as i32,
                    entry: 0,
                    entry_rows: entry_rows(factor) as u16,
                    format: factor.format as u16,
                    pieces: pieces as u16,
                    tile_pieces: if factor.in_tiles { TILE_PIECES } else { 0 },
                    per_piece: 1.0 / pieces as f32,
                    task: factor.task.map_or(-1, |task| task as i32),
                });
                sums += rows * (pieces | 1);
            }
        }
        let missing = most - share.len();
        list.extend(std::iter::repeat_n(Segment::skipped(), missing * together));
        room = room.max(sums);
    }
    room
}

impl Segment {
    /// How many entries it has.
    fn entries(&self) -> u32 {
        let tiles = match self.tile_pieces {
            0 => 1,
            pieces => u32::from(self.pieces.div_ceil(pieces)),
        };
        (self.rows as u32).div_ceil(self.entry_rows.into()) * tiles
    }

    /// Takes a place in a list that does not end there, which one of zero rows would mean.
    fn skipped() -> Self {
        Segment {
            rows: -1,
            ..Segment::zeroed()
        }
    }
}

/// Bytes of an entry.
fn entry_bytes(factor: &RingFactor) -> usize {
    match factor.in_tiles {
        true => TILE_ROWS * (usize::from(TILE_PIECES) * PIECE + TILE_GAP),
        false => entry_rows(factor) * factor.row_bytes(),
    }
}

/// Rows of an entry.
fn entry_rows(factor: &RingFactor) -> usize {
    if factor.in_tiles {
        return TILE_ROWS;
    }
    let least = factor.aligned_rows();
    let rows = ENTRY / factor.row_bytes();
    let step = if rows < ITEM_ROWS {
        least
    } else {
        least.max(ITEM_ROWS)
    };
    (rows / step * step).max(least)
}

/// What there is to share out.
#[derive(Clone, Copy)]
struct Matrix {
    rows: usize,
    /// Bytes of a row.
    bytes: usize,
    /// Rows that stay together.
    together: usize,
}

impl Matrix {
    fn of(factor: &RingFactor) -> Self {
        Matrix {
            rows: factor.rows,
            bytes: factor.row_bytes(),
            together: factor.aligned_rows(),
        }
    }
}

/// Shares matrices out among `blocks`, so that all have about as many bytes: for each block the matrix, the first row and the
/// number of rows.
fn shares(matrices: &[Matrix], blocks: usize) -> Vec<Vec<(usize, usize, usize)>> {
    let total: usize = matrices.iter().map(|m| m.rows * m.bytes).sum();
    let mut shares = vec![Vec::new(); blocks];
    let mut before = 0;
    for (index, matrix) in matrices.iter().enumerate() {
        // The first row of this matrix that begins at or after the block's part of the whole.
        let border = |block: usize| {
            let at = (total * block / blocks).saturating_sub(before);
            let row = at.div_ceil(matrix.bytes.max(1));
            row.next_multiple_of(matrix.together).min(matrix.rows)
        };
        for (block, share) in shares.iter_mut().enumerate() {
            let (first, last) = (border(block), border(block + 1));
            if last > first {
                share.push((index, first, last - first));
            }
        }
        before += matrix.rows * matrix.bytes;
    }
    shares
}

impl Layout {
    fn of(calls: &[&Queued], segments: usize, sums: usize, shared: usize) -> Option<Self> {
        let list = segments * size_of::<Segment>();
        let bytes = calls.iter().map(|queued| queued.call.packed_bytes());
        let parameters = (size_of::<Phase>() + bytes.max()?).next_multiple_of(16);
        let products = || calls.iter().filter_map(|queued| queued.product.as_ref());
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
            formats: factors()
                .filter(|f| !f.in_tiles)
                .fold(0, |set, f| set | 1 << f.format),
            tiles: factors().any(|f| f.in_tiles),
            slot: factors()
                .map(entry_bytes)
                .max()
                .unwrap_or(0)
                .next_multiple_of(128)
                .max(128),
            slots: 0,
        };
        let left = shared.checked_sub(STATIC_SHARED + layout.shared())?;
        layout.slots = left / (layout.slot + SLOT_BARRIERS);
        let fits = layout.slots >= LEAST_SLOTS && layout.parameters / 16 <= THREADS;
        fits.then_some(layout)
    }

    /// Bytes of dynamic shared memory.
    fn shared(&self) -> usize {
        TURN + 2 * self.parameters
            + self.list
            + self.room
            + self.slots * (self.slot + SLOT_BARRIERS)
    }

    fn constants(&self) -> String {
        let constants = [
            ("phase_threads", THREADS),
            ("copiers", COPIERS),
            ("item_rows", ITEM_ROWS),
            ("ring_tile_rows", TILE_ROWS),
            ("tile_gap", TILE_GAP),
            ("piece_bytes", PIECE),
            ("parameter_bytes", self.parameters),
            ("list_bytes", self.list),
            ("room_bytes", self.room),
            ("sums_at", self.sums_at),
            ("turn_bytes", TURN),
            ("segment_bytes", size_of::<Segment>()),
            ("slots_bytes", self.slots * SLOT_BARRIERS),
            ("slot_bytes", self.slot),
            ("ring_slots", self.slots),
            ("ring_formats", self.formats),
            ("ring_tiles", self.tiles.into()),
        ];
        let line = |(name, value)| format!("constexpr int {name} = {value};\n");
        constants.map(line).concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_row_once_and_weigh_the_same() {
        let matrices = [(9216, 1152, 1), (6, 8192, 1), (36, 44, 4), (7, 4096, 1)];
        let matrices = matrices.map(|(rows, bytes, together)| Matrix {
            rows,
            bytes,
            together,
        });
        for blocks in [1, 3, 132] {
            let shares = shares(&matrices, blocks);
            let mut seen = matrices.map(|m| vec![0; m.rows]);
            let total: usize = matrices.iter().map(|m| m.rows * m.bytes).sum();
            for share in &shares {
                let mut bytes = 0;
                for &(matrix, first, rows) in share {
                    seen[matrix][first..first + rows]
                        .iter_mut()
                        .for_each(|n| *n += 1);
                    bytes += rows * matrices[matrix].bytes;
                    assert_eq!(first % matrices[matrix].together, 0);
                }
                assert!(bytes <= total / blocks + 2 * 8192, "{bytes} of {total}");
            }
            assert!(seen.iter().flatten().all(|&n| n == 1));
        }
    }
}
