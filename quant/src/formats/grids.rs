//! The grids of the IQ1, IQ2 and IQ3 formats: lists of eight or four numbers, each one of a few levels. A code selects an entry.
//!
//! grids.bin holds an entry in 16 bits, the first number lowest: two bits for each of eight numbers, or three bits for each of four.

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

/// Negates the numbers whose bits in `signs` are set, and adds [`OFFSET`] to all.
#[inline(always)]
pub(super) fn signed(numbers: u64, signs: u8) -> [u8; 8] {
    const OFFSETS: u64 = 0x0101_0101_0101_0101 * OFFSET as u64;
    let negative = NEGATIVE[usize::from(signs)];
    // No byte of the result is negative or above 255, so carries between bytes cancel.
    let signed = (numbers ^ negative).wrapping_sub(negative);
    signed.wrapping_add(OFFSETS).to_le_bytes()
}

/// The eight sign bits of which seven are stored: the last one makes the number of negative signs even.
#[inline(always)]
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Joins two entries of four numbers.
#[inline(always)]
pub(super) fn join(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}
