//! The grids of the IQ1, IQ2 and IQ3 formats: lists of eight or four numbers, each one of a few levels. A code selects an entry.
//!
//! grids.bin holds an entry in 16 bits, the first number lowest: two bits for each of eight numbers, or three bits for each of four.

use crate::simd::register::Register;

static STORED: &[u8; 2 * 4608] = include_bytes!("grids.bin");

/// Expands `N` stored entries of eight numbers from entry `first` on.
const fn eights<const N: usize>(first: usize, levels: [u8; 3]) -> [u64; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < 8 * N {
        let level = levels[(entry(first + i / 8) >> (i % 8 * 2) & 3) as usize];
        grid[i / 8] |= (level as u64) << (i % 8 * 8);
        i += 1;
    }
    grid
}

/// Expands `N` stored entries of four numbers from entry `first` on.
const fn fours<const N: usize>(first: usize, levels: [u8; 8]) -> [u32; N] {
    let mut grid = [0; N];
    let mut i = 0;
    while i < 4 * N {
        let level = levels[(entry(first + i / 4) >> (i % 4 * 3) & 7) as usize];
        grid[i / 4] |= (level as u32) << (i % 4 * 8);
        i += 1;
    }
    grid
}

/// All entries as they are stored, for kernels.
pub(crate) fn entries() -> impl Iterator<Item = u16> {
    (0..STORED.len() / 2).map(entry)
}

const fn entry(index: usize) -> u16 {
    u16::from_le_bytes([STORED[2 * index], STORED[2 * index + 1]])
}

/// The numbers of IQ1_S and IQ1_M, -1, 0 and 1: eight times the number plus its shift of one eighth, plus 9. With the shift of minus one
/// eighth, each byte is less by 2.
pub(super) static IQ1: [u64; 2048] = eights(0, [2, 10, 18]);
pub(super) static IQ2_XXS: [u64; 256] = eights(2048, IQ2_LEVELS);
pub(super) static IQ2_XS: [u64; 512] = eights(2304, IQ2_LEVELS);
pub(super) static IQ2_S: [u64; 1024] = eights(2816, IQ2_LEVELS);
pub(super) static IQ3_XXS: [u32; 256] = fours(3840, [4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [u32; 512] = fours(4096, [1, 3, 5, 7, 9, 11, 13, 15]);

/// The levels of the IQ2 formats: eight times 1, 3 and 5, roughly.
const IQ2_LEVELS: [u8; 3] = [8, 25, 43];

/// The offset of codes with a sign.
pub(super) const OFFSET: u8 = 64;

/// For each byte of sign bits, 255 in the bytes of negative numbers.
static NEGATIVE: [u64; 256] = {
    let mut masks = [0; 256];
    let mut i = 0;
    while i < 8 * 256 {
        masks[i / 8] |= (((i as u64 / 8) >> (i % 8) & 1) * 255) << (i % 8 * 8);
        i += 1;
    }
    masks
};

/// Like [`NEGATIVE`] for seven bits of eight: the last one makes the number of negative signs even.
static EVEN_NEGATIVE: [u64; 128] = {
    let mut masks = [0; 128];
    let mut i = 0;
    while i < 128 {
        masks[i] = NEGATIVE[i + 128 * (i.count_ones() as usize % 2)];
        i += 1;
    }
    masks
};

/// The signs of eight numbers as 255 in the bytes of negative numbers.
#[inline(always)]
pub(super) fn negative(signs: u8) -> u64 {
    NEGATIVE[usize::from(signs)]
}

/// Like [`negative`], of which the lowest seven bits are stored.
#[inline(always)]
pub(super) fn even_negative(seven: u32) -> u64 {
    EVEN_NEGATIVE[(seven & 127) as usize]
}

/// Loads the four entries of each run.
///
/// # Safety
/// As for [`Register::load`].
#[inline(always)]
pub(super) unsafe fn load<R: Register<N>, const N: usize>(runs: [[u64; 4]; N]) -> (R, R) {
    let half = |half: usize| runs.map(|run| [run[2 * half], run[2 * half + 1]]);
    // SAFETY: guaranteed by the caller.
    unsafe { (R::words(half(0)), R::words(half(1))) }
}

/// Unpacks magnitudes with the masks of their signs, and adds [`OFFSET`].
///
/// # Safety
/// As for [`Register::load`].
#[inline(always)]
pub(super) unsafe fn signed<R: Register<N>, const N: usize>(
    magnitudes: [[u64; 4]; N],
    negative: [[u64; 4]; N],
) -> (R, R) {
    // SAFETY: guaranteed by the caller.
    let (magnitudes, negative) = unsafe { (load::<R, N>(magnitudes), load::<R, N>(negative)) };
    // Subtracting the negated offset equals adding the offset, modulo 256.
    let minus = OFFSET.wrapping_neg();
    (
        magnitudes.0.negate_where(negative.0).minus(minus),
        magnitudes.1.negate_where(negative.1).minus(minus),
    )
}

/// Joins pairs of entries of four numbers.
#[inline(always)]
pub(super) fn join(fours: [u32; 8]) -> [u64; 4] {
    std::array::from_fn(|i| u64::from(fours[2 * i]) | u64::from(fours[2 * i + 1]) << 32)
}
