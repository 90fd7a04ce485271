//! A kernel call: its parameters, grid and node, and the memory that it accesses.

use std::ops::Range;

use bytemuck::Pod;

use super::{Accesses, FinishedProduct, Gemv, Node, OpMemory, Recurrence, Source};
use crate::abi::{DeviceType, device_struct};
use crate::cuda::driver::{Address, Argument, Kernel, Launch};

/// One parameter of a kernel: its C++ type and its bytes.
#[derive(Clone)]
pub struct Parameter {
    kind: String,
    bytes: Argument,
    tokens: bool,
}

impl Parameter {
    /// A parameter that passes a value.
    pub fn value<T: DeviceType + Pod>(value: T) -> Self {
        Self::with_type(T::NAME.into(), value)
    }

    fn with_type<T: Pod>(kind: String, value: T) -> Self {
        let mut words = vec![0u64; size_of::<T>().div_ceil(8)].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut words)[..size_of::<T>()]
            .copy_from_slice(bytemuck::bytes_of(&value));
        Parameter {
            kind,
            bytes: Argument(words),
            tokens: false,
        }
    }

    /// A pointer to numbers of type `kind`, such as `const float`.
    pub fn pointer(kind: &str, address: Address) -> Self {
        Self::with_type(format!("{kind}*"), address)
    }

    /// An `int`.
    pub fn int(value: usize) -> Self {
        Parameter::value(i32::try_from(value).expect("dimensions fit an int"))
    }

    /// The number of tokens in the chunk, an `int`.
    pub fn tokens() -> Self {
        Parameter {
            tokens: true,
            ..Parameter::int(1)
        }
    }
}

device_struct! {
    /// Columns of a buffer between ops: `width` values of each token.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Rows {
        /// First column of the first token.
        pub first: Address as *mut f32,
        /// Values from one token to the next.
        pub stride: i32,
        /// Number of columns.
        pub width: i32,
    }
    "__device__ float* token(int t) const"
}

impl Rows {
    /// Returns the memory of the first token's columns.
    pub fn bytes(self) -> Range<Address> {
        self.first..self.first + (self.width as usize * size_of::<f32>()) as u64
    }

    /// Whether these columns of the first token share memory with `other`.
    pub fn overlaps(self, other: Rows) -> bool {
        let (own, other) = (self.bytes(), other.bytes());
        own.start < other.end && other.start < own.end
    }

    /// Whether every token begins at a multiple of 16 bytes.
    pub fn is_aligned(self) -> bool {
        self.first.is_multiple_of(16) && self.stride % 4 == 0
    }
}

/// Blocks of a launch.
#[derive(Clone, Copy)]
pub enum Grid {
    /// This many blocks.
    Blocks(usize),
    /// One block for every token: `blockIdx.x` is the token.
    Tokens,
    /// This many blocks for every token: `blockIdx.y` is the token.
    EachToken(usize),
    /// This many blocks for every tile of this many tokens: `blockIdx.y` is the tile.
    EachTile(usize, usize),
    /// Blocks for every tile of lists of tokens: `blockIdx.y` is the tile.
    EachListedTile {
        blocks: usize,
        /// Tokens of a tile.
        tile: usize,
        /// Number of lists. Each list begins at a new tile.
        lists: usize,
        /// Number of lists that contain each token.
        used: usize,
    },
    /// As many blocks as run at once, which go through all tiles of rows and tokens. Where there are fewer tiles than blocks, the blocks of
    /// a cluster share the depth of a tile.
    SplitTiles {
        /// Blocks that run at once.
        blocks: usize,
        /// Tiles of rows.
        row_tiles: usize,
        /// Tokens of a tile.
        tile: usize,
        /// Steps that one block takes for a tile.
        steps: usize,
    },
}

/// Maximum number of blocks in a cluster.
const MOST_IN_CLUSTER: usize = 8;
/// Fixed cost of a tile, in steps: for a block alone, and for a cluster, whose blocks wait for each other and exchange sums.
const TILE_ALONE: usize = 2;
const TILE_IN_CLUSTER: usize = 7;

impl Grid {
    /// Returns the blocks along x, y and z for a chunk.
    pub fn blocks(self, tokens: usize) -> [u32; 3] {
        let (x, y) = match self {
            Grid::Blocks(x) => (x, 1),
            Grid::Tokens => (tokens, 1),
            Grid::EachToken(x) => (x, tokens),
            Grid::EachTile(x, tile) => (x, tokens.div_ceil(tile)),
            Grid::EachListedTile {
                blocks,
                tile,
                lists,
                used,
            } => (blocks, tokens * used / tile + lists),
            Grid::SplitTiles { blocks, .. } => {
                let cluster = self.cluster(tokens);
                (blocks / cluster * cluster, 1)
            }
        };
        [x as u32, y as u32, 1]
    }

    /// Returns the blocks per cluster for a chunk.
    pub fn cluster(self, tokens: usize) -> usize {
        let Grid::SplitTiles {
            blocks,
            row_tiles,
            tile,
            steps,
        } = self
        else {
            return 1;
        };
        let tiles = row_tiles * tokens.div_ceil(tile);
        let time = |cluster: &usize| {
            let each = if *cluster > 1 {
                TILE_IN_CLUSTER
            } else {
                TILE_ALONE
            };
            tiles.div_ceil(blocks / cluster) * (steps.div_ceil(*cluster) + each)
        };
        let sizes = (0..).map(|power| 1 << power);
        let sizes = sizes.take_while(|&size| size <= MOST_IN_CLUSTER.min(blocks).min(steps));
        sizes.min_by_key(time).unwrap_or(1)
    }
}

/// A kernel to launch: a function template of a `.cu` file with its template arguments.
pub struct Call {
    /// The files that define it.
    pub source: &'static [Source],
    /// The function with its template arguments, such as `recur<128, 64>`.
    pub kernel: String,
    /// Blocks.
    pub grid: Grid,
    /// Threads of a block; a multiple of 32.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Parameters, in order.
    pub parameters: Vec<Parameter>,
}

impl Call {
    /// Returns the template's name, without its arguments.
    pub fn template(&self) -> &str {
        self.kernel.split('<').next().unwrap_or_default()
    }

    /// Returns the types of the function's parameters.
    pub fn types(&self) -> Vec<&str> {
        self.parameters.iter().map(|p| p.kind.as_str()).collect()
    }

    /// Returns the offset of each parameter, in bytes, where all are packed into one piece of memory.
    pub fn offsets(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().scan(0, |end, parameter| {
            let at = *end;
            *end += size_of_val(&*parameter.bytes.0).next_multiple_of(16);
            Some(at)
        })
    }

    /// Returns the bytes of all parameters, packed into one piece of memory.
    pub fn packed_bytes(&self) -> usize {
        let bytes = |parameter: &Parameter| size_of_val(&*parameter.bytes.0).next_multiple_of(16);
        self.parameters.iter().map(bytes).sum()
    }

    /// Returns the words of each parameter, in order.
    pub fn values(&self) -> impl Iterator<Item = &[u64]> {
        self.parameters.iter().map(|parameter| &*parameter.bytes.0)
    }

    /// Returns the arguments, and the indices of those that are the number of tokens.
    pub fn arguments(&self) -> (Vec<Argument>, Vec<usize>) {
        let arguments = self.parameters.iter().map(|p| p.bytes.clone()).collect();
        let tokens = |i: &usize| self.parameters[*i].tokens;
        (
            arguments,
            (0..self.parameters.len()).filter(tokens).collect(),
        )
    }
}

/// A call in the schedule.
pub struct Queued {
    /// The kernel.
    pub call: Call,
    /// What the kernel computes.
    pub node: Node,
    /// The part of its op's memory that the call accesses; `None` means all of it.
    pub(crate) accesses: Option<Accesses>,
    /// The op that the call belongs to.
    pub(crate) of: Option<OpMemory>,
    /// Other ops that the call also computes, in full or in part.
    pub(crate) also: Vec<usize>,
    /// Passes that could not merge the call with its neighbours, and the reasons.
    pub(crate) refusals: Vec<(&'static str, &'static str)>,
    /// Whether no block reads what another block of this call wrote for earlier tokens. Results of earlier calls may be read.
    pub(crate) block_local: bool,
    /// Whether the parameters come from a table, which has them for each slot of a batch: `blockIdx.z` is the slot.
    pub(crate) by_slot: bool,
    /// In a batch: the same product, which can also do the work on single values after it.
    pub(crate) finished: Option<FinishedProduct>,
}

impl Queued {
    pub(crate) fn new(call: Call, node: Node) -> Self {
        Queued {
            call,
            node,
            accesses: None,
            of: None,
            also: Vec::new(),
            refusals: Vec::new(),
            block_local: false,
            by_slot: false,
            finished: None,
        }
    }

    /// Returns the index of the call's op in the program.
    pub(crate) fn op(&self) -> Option<usize> {
        self.of.as_ref().map(|of| of.op)
    }

    /// Returns the number of blocks in a step.
    pub(crate) fn blocks(&self) -> usize {
        let [x, y, _] = self.call.grid.blocks(1);
        (x * y) as usize
    }

    /// Returns the streaming GEMV, if the call is one.
    pub(crate) fn gemv(&self) -> Option<&Gemv> {
        match &self.node {
            Node::Gemv(gemv) => Some(gemv),
            _ => None,
        }
    }

    /// Returns the step of a recurrence, if the call is one in the decode kernel.
    pub(crate) fn recurrence(&self) -> Option<&Recurrence> {
        match &self.node {
            Node::RecurStep(recurrence) => Some(recurrence),
            _ => None,
        }
    }

    /// Returns the memory that the call accesses: at most what its op names. A call without an op may access anything.
    pub(crate) fn accesses(&self) -> Option<Accesses> {
        let part = self.node.accesses().or_else(|| self.accesses.clone());
        part.or_else(|| Some(self.of.as_ref()?.accesses.clone()))
    }

    /// Gives the call the arguments of its node. Passes over nodes come before.
    pub(crate) fn complete(&mut self) {
        self.node.complete(&mut self.call.parameters);
    }

    /// Whether the call accesses memory that its op does not name.
    #[cfg(any(test, feature = "emulator"))]
    pub(crate) fn exceeds_op(&self) -> bool {
        let (Some(accesses), Some(of)) = (self.accesses(), &self.of) else {
            return false;
        };
        let named = &of.accesses;
        let inside = |part: &Range<Address>, all: &[Range<Address>]| {
            let mut all = all.iter().chain(&of.own);
            part.is_empty() || all.any(|one| one.start <= part.start && part.end <= one.end)
        };
        let read = |part| inside(part, &named.reads) || inside(part, &named.writes);
        !accesses.reads.iter().all(read)
            || !accesses
                .writes
                .iter()
                .all(|part| inside(part, &named.writes))
    }

    /// Whether the kernel calls `wait_for_dependencies` itself.
    pub(crate) fn prefetches(&self) -> bool {
        self.node.prefetches()
    }

    /// Returns the launch of `kernel` for a chunk of this many tokens.
    pub fn launch(&self, kernel: Kernel, tokens: usize) -> Launch {
        let (mut arguments, counts) = self.call.arguments();
        for argument in counts {
            arguments[argument].0[0] = tokens as u64;
        }
        Launch {
            kernel,
            grid: self.call.grid.blocks(tokens),
            cluster: self.call.grid.cluster(tokens) as u32,
            threads: self.call.threads as u32,
            shared: self.call.shared as u32,
            arguments,
            cooperative: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn blocks_share_the_depth_of_tiles_that_are_fewer_than_they() {
        let clusters = |row_tiles, steps, blocks| {
            [64, 512, 2048, 8192].map(|tokens| {
                let grid = Grid::SplitTiles {
                    blocks,
                    row_tiles,
                    tile: 128,
                    steps,
                };
                let [x, y, z] = grid.blocks(tokens);
                let cluster = grid.cluster(tokens);
                assert!(x as usize <= blocks && (x as usize).is_multiple_of(cluster));
                assert_eq!((y, z), (1, 1));
                cluster
            })
        };
        // A long product of few rows, one of many rows, one of a single step, and a device with few SMs.
        assert_eq!(clusters(8, 88, 132), [8, 4, 1, 1]);
        assert_eq!(clusters(24, 32, 132), [4, 1, 1, 1]);
        assert_eq!(clusters(8, 1, 132), [1, 1, 1, 1]);
        assert_eq!(clusters(8, 88, 4), [1, 1, 1, 1]);
    }
}
