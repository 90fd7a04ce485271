//! Selects the chunks that are attended to in tiles on tensor cores: a pure function of dimensions and device.

use crate::cuda::TensorCores;

/// Tokens and keys per tile, and threads per thread block, in attend_tiles.cu.
const TILE: usize = 64;
const THREADS: usize = 128;
/// Bytes of static shared memory: the queue of keys, the visibility masks of a tile, and factors.
const STATIC: usize = 256 * (4 + 2) + THREADS / 32 * 4 + 3 * TILE * 4;
/// Largest head_dim whose sums fit into a thread's registers.
const LONGEST: usize = 256;
/// Tokens per tile, and threads per thread block, in attend_wide.cu.
const WIDE_TILE: usize = 32;
const WIDE_THREADS: usize = 256;

/// How a chunk is attended to in tiles.
pub(super) struct Tiles {
    /// Whether `attend_wide` runs, for long heads whose keys are also the values; otherwise `attend_tiles` does.
    pub wide: bool,
    /// Tokens per tile.
    pub tokens: usize,
    /// Threads per thread block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

impl Tiles {
    /// The tiles for chunks of up to `tokens` tokens and heads of `dim` columns, whose keys and values are cached in `kv_bytes`
    /// bytes per number, on a device with `room` bytes of shared memory; `None` if chunks use another kernel.
    pub(super) fn new(
        (dim, kv_bytes): (usize, usize),
        keys_only: bool,
        tokens: usize,
        cores: TensorCores,
        room: usize,
    ) -> Option<Tiles> {
        let wide = dim > LONGEST;
        let (tiles, fits) = if wide {
            // Queries, keys, and scores of both halves of the depth.
            let scores = 2 * WIDE_TILE * (WIDE_TILE + 4) * size_of::<f32>();
            let seen = 2 * WIDE_TILE * size_of::<i32>();
            let tiles = Tiles {
                wide,
                tokens: WIDE_TILE,
                threads: WIDE_THREADS,
                shared: 2 * WIDE_TILE * (dim + 8) * 4 + scores + seen,
            };
            let fits = keys_only && dim.is_multiple_of(32) && tiles.shared <= room;
            (tiles, fits)
        } else {
            // Queries in two 16-bit parts, keys and values in one or two.
            let rows = (2 + kv_bytes) * TILE;
            let tiles = Tiles {
                wide,
                tokens: TILE,
                threads: THREADS,
                shared: rows * (dim.next_multiple_of(16) + 8) * size_of::<u16>(),
            };
            let fits = tiles.shared + STATIC <= room;
            (tiles, fits)
        };
        (fits && tokens >= 16 && cores != TensorCores::None).then_some(tiles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chunks_are_attended_to_in_tiles_where_they_fit() {
        let fits = |size, keys_only, tokens, kilobytes: usize| {
            let room = kilobytes << 10;
            Tiles::new(size, keys_only, tokens, TensorCores::Warps, room).is_some()
        };
        let on = |dim, tokens, kilobytes| fits((dim, 2), false, tokens, kilobytes);
        assert!(on(128, 2048, 99) && on(256, 16, 163) && on(64, 2048, 99));
        assert!(!on(128, 1, 163) && !on(256, 2048, 99) && !on(512, 2048, 227));
        let in_f32 = |dim, kilobytes| fits((dim, 4), false, 2048, kilobytes);
        assert!(in_f32(128, 163) && in_f32(256, 227) && !in_f32(128, 99));
        assert!(Tiles::new((64, 2), false, 2048, TensorCores::None, 227 << 10).is_none());
        let latent = |dim, kilobytes| fits((dim, 2), true, 2048, kilobytes);
        assert!(latent(576, 163) && !latent(576, 99) && !latent(300, 227));
    }
}
