//! Selects the chunks that are attended to in tiles on tensor cores: a pure function of dimensions and device.

use crate::cuda::TensorCores;

/// Tokens and keys per tile, and threads per thread block, in attend_tiles.cu.
const TILE: usize = 64;
const THREADS: usize = 128;
/// Bytes of static shared memory there: the queue of keys, and the visibility masks of a tile.
const STATIC: usize = 256 * (4 + 2) + THREADS / 32 * 4 + 2 * TILE * 4;
/// Largest head_dim whose sums fit into a thread's registers.
const LONGEST: usize = 256;
/// Tokens per tile, and threads per thread block, in attend_wide.cu.
const WIDE_TILE: usize = 32;
const WIDE_THREADS: usize = 256;
/// Tokens per tile in attend_chunk.cu, and the columns of a row of 128 bytes.
const CHUNK: usize = 128;
const BLOCK: usize = 64;

/// A kernel of chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// `attend_chunk`: caches in f16, heads of whole pieces of 16 bytes.
    Chunk {
        /// Keys per tile.
        keys: usize,
        /// Tiles of 16 tokens per warp.
        row_tiles: usize,
        /// Whether warp groups multiply.
        groups: bool,
    },
    /// `attend_tiles`: all other heads of up to 256 columns.
    Tiles,
    /// `attend_wide`: longer heads whose keys are also the values.
    Wide,
}

/// How a chunk is attended to in tiles.
pub(super) struct Tiles {
    pub form: Form,
    /// Tokens per tile.
    pub tokens: usize,
    /// Threads per thread block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

/// Whether a single token can attend on tensor cores (attend_step.cu), with heads of `dim` columns whose keys and values are cached in
/// `kv_bytes` bytes per number.
pub(super) fn has_step((dim, kv_bytes): (usize, usize), cores: TensorCores) -> bool {
    let in_pieces = kv_bytes == 2 && dim.is_multiple_of(8);
    in_pieces && dim <= LONGEST && cores != TensorCores::None
}

/// Bytes of shared memory of a thread block of attend_step.cu with this many threads and query heads.
pub(super) fn step_bytes(dim: usize, heads: usize, threads: usize) -> usize {
    let shares = match dim {
        0..=64 => 1,
        65..=128 => 2,
        _ => 4,
    };
    let warps = threads / 32;
    // Queries in two 16-bit parts, the token's own key and value, factors, and 16 scores of each warp and head.
    let queries = heads * 2 * (dim + 8) * size_of::<u16>();
    let own = 2 * dim * size_of::<u16>();
    let scores = if shares > 1 { warps * 16 } else { 0 };
    let step = queries + own + (1 + scores) * 8 * size_of::<f32>();
    let merging = warps / shares * heads * (dim + 2) * size_of::<f32>();
    step.max(merging)
}

impl Tiles {
    /// The tiles for chunks of up to `tokens` tokens and heads of `dim` columns, whose keys and values are cached in `kv_bytes`
    /// bytes per number, with or without retained tokens, on a device with `room` bytes of shared memory; `None` if chunks use another kernel.
    pub(super) fn new(
        (dim, kv_bytes): (usize, usize),
        [keys_only, retains]: [bool; 2],
        tokens: usize,
        cores: TensorCores,
        room: usize,
    ) -> Option<Tiles> {
        let tiles = if dim > LONGEST {
            (keys_only && dim.is_multiple_of(32)).then(|| Tiles::wide(dim, room))?
        } else if kv_bytes == 2 && dim.is_multiple_of(8) {
            Tiles::chunk(dim, retains, cores, room)
        } else {
            Tiles::split(dim, room)
        }?;
        (tokens >= 16 && cores != TensorCores::None).then_some(tiles)
    }

    fn wide(dim: usize, room: usize) -> Option<Tiles> {
        // Queries, keys, and scores of both halves of the depth.
        let scores = 2 * WIDE_TILE * (WIDE_TILE + 4) * size_of::<f32>();
        let seen = 2 * WIDE_TILE * size_of::<i32>();
        let tiles = Tiles {
            form: Form::Wide,
            tokens: WIDE_TILE,
            threads: WIDE_THREADS,
            shared: 2 * WIDE_TILE * (dim + 8) * 4 + scores + seen,
        };
        (tiles.shared <= room).then_some(tiles)
    }

    fn split(dim: usize, room: usize) -> Option<Tiles> {
        // Queries, keys and values in two 16-bit parts.
        let tiles = Tiles {
            form: Form::Tiles,
            tokens: TILE,
            threads: THREADS,
            shared: 6 * TILE * (dim.next_multiple_of(16) + 8) * size_of::<u16>(),
        };
        (tiles.shared + STATIC <= room).then_some(tiles)
    }

    fn chunk(dim: usize, retains: bool, cores: TensorCores, room: usize) -> Option<Tiles> {
        let groups = cores == TensorCores::WarpGroups && dim.is_multiple_of(BLOCK);
        // Each key that a warp loads serves two tiles of tokens, where registers allow.
        let row_tiles = if groups || dim > CHUNK { 1 } else { 2 };
        let alignment = if groups { 1024 } else { 0 };
        [64, 32].into_iter().find_map(|keys| {
            let row = dim.next_multiple_of(BLOCK) * size_of::<u16>();
            let tiles = Tiles {
                form: Form::Chunk {
                    keys,
                    row_tiles,
                    groups,
                },
                tokens: CHUNK,
                threads: CHUNK / 16 / row_tiles * 32,
                shared: (CHUNK + 2 * keys) * row + alignment,
            };
            let queue = if retains { 4 * CHUNK * (4 + 2) } else { 0 };
            // Two tiles of keys, factors, and the queue.
            let fixed = 2 * keys * 24 + CHUNK * 4 + queue + 64;
            (tiles.shared + fixed <= room).then_some(tiles)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chunks_are_attended_to_in_tiles_where_they_fit() {
        let form = |size, keys_only, tokens, kilobytes: usize| {
            let room = kilobytes << 10;
            let tiles = Tiles::new(size, [keys_only, false], tokens, TensorCores::Warps, room);
            tiles.map(|tiles| tiles.form)
        };
        let chunk = |keys, row_tiles| {
            Some(Form::Chunk {
                keys,
                row_tiles,
                groups: false,
            })
        };
        let on = |dim, tokens, kilobytes| form((dim, 2), false, tokens, kilobytes);
        assert_eq!(on(128, 2048, 99), chunk(64, 2));
        assert_eq!(on(256, 16, 163), chunk(64, 1));
        assert_eq!(on(256, 2048, 99), chunk(32, 1));
        assert_eq!(on(12, 2048, 99), Some(Form::Tiles));
        assert_eq!(on(128, 1, 163), None);
        assert_eq!(on(512, 2048, 227), None);
        let in_f32 = |dim, kilobytes| form((dim, 4), false, 2048, kilobytes);
        assert_eq!(in_f32(128, 163), Some(Form::Tiles));
        assert_eq!(in_f32(256, 227), Some(Form::Tiles));
        assert_eq!(in_f32(128, 99), None);
        assert!(Tiles::new((64, 2), [false; 2], 2048, TensorCores::None, 227 << 10).is_none());
        let latent = |dim, kilobytes| form((dim, 2), true, 2048, kilobytes);
        assert_eq!(latent(576, 163), Some(Form::Wide));
        assert!(latent(576, 99).is_none() && latent(300, 227).is_none());
        let hopper = Tiles::new(
            (256, 2),
            [false; 2],
            2048,
            TensorCores::WarpGroups,
            227 << 10,
        );
        let groups = hopper.map(|tiles| matches!(tiles.form, Form::Chunk { groups: true, .. }));
        assert_eq!(groups, Some(true));
    }
}
