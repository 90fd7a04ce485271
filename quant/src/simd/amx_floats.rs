//! BF16 matrices times many tokens on AMX, which multiplies bf16 tiles exactly and adds in f32.
//!
//! The 24 significant bits of an f32 input are split into three bf16 pieces, so the products of the pieces are exact.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::amx::Config;
use super::avx512::constant;
use super::avx512_panel::transpose;
use crate::kernel::Product;

/// Smallest number of tokens for these kernels; with fewer tokens, AVX-512 is faster.
pub(crate) const LEAST_TOKENS: usize = 32;
/// Rows and tokens of a tile.
const TILE: usize = 16;
/// Columns of a tile.
const COLUMNS: usize = 32;
/// Columns that are split into pieces at a time.
const DEPTH: usize = 128;
/// Number of tiles in these columns.
const STEPS: usize = DEPTH / COLUMNS;
/// Tokens whose bf16 pieces are held at the same time.
const TOKENS: usize = 256;
/// Largest number of pieces of an input.
const PIECES: usize = 3;
/// Bytes of a tile.
const TILE_BYTES: usize = TILE * COLUMNS * 2;

/// Bytes of working memory.
pub(crate) const ROOM: usize = size_of::<Tokens>();

/// Pieces of some columns of the tokens: a line of `DEPTH` values per token.
#[repr(C, align(64))]
#[derive(Pod, Zeroable, Clone, Copy)]
struct Tokens([[[u16; DEPTH]; TOKENS]; PIECES]);

/// Some columns of two tiles of rows: one line per pair of columns, which holds the pair of every row.
#[repr(C, align(64))]
#[derive(Zeroable, Clone, Copy)]
struct Weights([[[[u16; 2]; TILE]; COLUMNS / 2]; 2 * STEPS]);

/// Sums of two tiles of tokens (outer) and two tiles of rows.
#[repr(C, align(64))]
struct Sums([[f32; 2 * TILE]; 2 * TILE]);

/// Takes the next piece, the upper half of the bits, off each of 32 values.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn next_piece(numbers: &mut [__m512; 2]) -> __m512i {
    /// Indices of the odd 16-bit halves of 32 values.
    const UPPER: [u16; 32] = {
        let mut at = [0; 32];
        let mut i = 0;
        while i < 32 {
            at[i] = 2 * i as u16 + 1;
            i += 1;
        }
        at
    };
    let [a, b] = numbers.map(|x| _mm512_castps_si512(x));
    let piece = _mm512_permutex2var_epi16(a, constant(&UPPER), b);
    for x in numbers {
        let upper = _mm512_and_si512(_mm512_castps_si512(*x), _mm512_set1_epi32(!0xffff));
        *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(upper));
    }
    piece
}

impl Tokens {
    /// Splits columns `from..from + DEPTH` of `count` tokens from `first` on into pieces. Zeros fill the last tiles.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn cut(&mut self, product: &Product, [first, count]: [usize; 2], from: usize, pieces: usize) {
        for t in 0..count.next_multiple_of(2 * TILE) {
            if t >= count {
                self.0.iter_mut().for_each(|piece| piece[t].fill(0));
                continue;
            }
            let (values, _) =
                product.input(first + t).values[from..][..DEPTH].as_chunks::<COLUMNS>();
            for (step, values) in values.iter().enumerate() {
                // SAFETY: 32 values are read, and 32 places of a line are written.
                unsafe {
                    let values = values.as_ptr();
                    let mut numbers = [_mm512_loadu_ps(values), _mm512_loadu_ps(values.add(16))];
                    for piece in &mut self.0[..pieces] {
                        let line = piece[t][step * COLUMNS..][..COLUMNS].as_mut_ptr();
                        _mm512_storeu_si512(line.cast(), next_piece(&mut numbers));
                    }
                }
            }
        }
    }
}

impl Weights {
    /// Gathers columns `from..from + DEPTH` of `rows`, at most two tiles of rows. Zeros fill the tiles.
    #[target_feature(enable = "avx512f")]
    fn gather(&mut self, product: &Product, rows: Range<usize>, from: usize) {
        const BYTES: usize = COLUMNS * size_of::<u16>();
        for step in 0..STEPS {
            let column = from + step * COLUMNS;
            let whole = 2 * product.cols.saturating_sub(column).min(COLUMNS);
            for half in 0..2 {
                let mut x = [_mm512_setzero_ps(); TILE];
                for (r, x) in x.iter_mut().enumerate() {
                    let row = rows.start + half * TILE + r;
                    if row >= rows.end || whole == 0 {
                        continue;
                    }
                    let stored = &product.weights[row * product.row_bytes + 2 * column..][..whole];
                    let mut completed = [0; BYTES];
                    let mut numbers = stored.as_ptr();
                    if whole < BYTES {
                        completed[..whole].copy_from_slice(stored);
                        numbers = completed.as_ptr();
                    }
                    // SAFETY: there are 64 bytes to read.
                    *x = unsafe { _mm512_loadu_ps(numbers.cast()) };
                }
                for (line, x) in self.0[2 * step + half].iter_mut().zip(transpose(x)) {
                    // SAFETY: a line has 64 bytes.
                    unsafe { _mm512_storeu_ps(line.as_mut_ptr().cast(), x) };
                }
            }
        }
    }
}

/// Offsets of the pieces that are multiplied, in bytes from the first piece of the tokens and of the weights.
#[derive(Clone, Copy)]
#[repr(C)]
struct TileStep {
    tokens: u32,
    weights: u32,
}

/// Returns the steps for the products of all pieces of an input, and their number.
fn steps(pieces: usize) -> ([TileStep; STEPS * PIECES], usize) {
    let mut steps = [TileStep {
        tokens: 0,
        weights: 0,
    }; STEPS * PIECES];
    let count = STEPS * pieces;
    for (i, step) in steps[..count].iter_mut().enumerate() {
        let (columns, piece) = (i / pieces, i % pieces);
        step.tokens = (piece * TOKENS * DEPTH * 2 + columns * COLUMNS * 2) as u32;
        step.weights = (columns * 2 * TILE_BYTES) as u32;
    }
    (steps, count)
}

/// Adds the products of two tiles of tokens with two tiles of rows to `sums`, whose tokens are `stride` values apart.
///
/// # Safety
/// The tiles must be configured. `tokens` and `weights` must be valid for two tiles at each step, and `sums` for 32 values of 32 tokens.
/// There must be at least one step.
#[inline(always)]
unsafe fn multiply_tiles(
    steps: &[TileStep],
    tokens: *const u16,
    weights: *const u16,
    sums: *mut f32,
    stride: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!(
            "tileloadd tmm0, [{sums} + {stride}]",
            "tileloadd tmm1, [{sums} + {stride} + 64]",
            "tileloadd tmm2, [{next_sums} + {stride}]",
            "tileloadd tmm3, [{next_sums} + {stride} + 64]",
            "2:",
            "mov {x:e}, dword ptr [{steps}]",
            "mov {w:e}, dword ptr [{steps} + 4]",
            "add {x}, {tokens}",
            "add {w}, {weights}",
            "tileloadd tmm4, [{x} + {depth}]",
            "tileloadd tmm6, [{w} + {line}]",
            "tileloadd tmm7, [{w} + {line} + 1024]",
            "tileloadd tmm5, [{x} + {depth} + 4096]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {steps}, 8",
            "dec {count}",
            "jnz 2b",
            "tilestored [{sums} + {stride}], tmm0",
            "tilestored [{sums} + {stride} + 64], tmm1",
            "tilestored [{next_sums} + {stride}], tmm2",
            "tilestored [{next_sums} + {stride} + 64], tmm3",
            sums = in(reg) sums,
            next_sums = in(reg) sums.add(TILE * stride),
            stride = in(reg) 4 * stride,
            steps = inout(reg) steps.as_ptr() => _,
            count = inout(reg) steps.len() => _,
            tokens = in(reg) tokens,
            weights = in(reg) weights,
            depth = in(reg) 2 * DEPTH,
            line = in(reg) 64usize,
            x = out(reg) _,
            w = out(reg) _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}

// The offsets that appear as literals in the tile instructions above.
const _: () = assert!(TILE_BYTES == 1024 && TILE * DEPTH * 2 == 4096 && 4 * TILE == 64);

/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel), for weights in BF16.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn multiply(product: &Product, rows: Range<usize>) {
    let mut room = product.x.room(product.worker);
    let tokens: &mut Tokens = bytemuck::from_bytes_mut(&mut room.as_mut_slice::<u8>()[..ROOM]);
    let mut weights = Weights::zeroed();
    let pieces = product.x.pieces();
    let (steps, count) = steps(pieces);
    let steps = &steps[..count];
    let line =
        |token: usize, row: usize| product.out.wrapping_add(token * product.out_stride + row);
    for token in 0..product.x.rows() {
        // SAFETY: the caller guarantees that these rows of every token are valid.
        unsafe { std::slice::from_raw_parts_mut(line(token, rows.start), rows.len()) }.fill(0.0);
    }
    static WHOLE: Config = Config::for_floats();
    // SAFETY: the configuration has 64 bytes, with sizes that the palette allows.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &WHOLE, options(nostack, preserves_flags)) };
    for first in (0..product.x.rows()).step_by(TOKENS) {
        let count = (product.x.rows() - first).min(TOKENS);
        for from in (0..product.cols).step_by(DEPTH) {
            tokens.cut(product, [first, count], from, pieces);
            for row in rows.clone().step_by(2 * TILE) {
                let height = (rows.end - row).min(2 * TILE);
                weights.gather(product, row..row + height, from);
                let weights = weights.0.as_ptr().cast::<u16>();
                for t in (0..count).step_by(2 * TILE) {
                    let tokens = tokens.0[0][t].as_ptr();
                    let here = (count - t).min(2 * TILE);
                    let out = line(first + t, row);
                    // SAFETY: there are complete tiles of tokens and weights. The caller guarantees these rows of these tokens; if they are
                    // less than complete tiles, the sums are computed in a separate buffer.
                    unsafe {
                        if height == 2 * TILE && here == 2 * TILE {
                            multiply_tiles(steps, tokens, weights, out, product.out_stride);
                            continue;
                        }
                        let mut sums = Sums([[0.0; 2 * TILE]; 2 * TILE]);
                        for (t, sums) in sums.0[..here].iter_mut().enumerate() {
                            let out = out.add(t * product.out_stride);
                            std::ptr::copy_nonoverlapping(out, sums.as_mut_ptr(), height);
                        }
                        let place = sums.0.as_mut_ptr().cast();
                        multiply_tiles(steps, tokens, weights, place, 2 * TILE);
                        for (t, sums) in sums.0[..here].iter().enumerate() {
                            let out = out.add(t * product.out_stride);
                            std::ptr::copy_nonoverlapping(sums.as_ptr(), out, height);
                        }
                    }
                }
            }
        }
    }
    // SAFETY: the tiles are no longer in use.
    unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
}
