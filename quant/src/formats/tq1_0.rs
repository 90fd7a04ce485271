//! TQ1_0: blocks of 256 numbers -1, 0 and 1 with an f16 scale, five numbers in a byte: digits in base 3 of a fraction, `byte / 256`.
//!
//! Digit n of byte m is number `32 * n + m` for bytes 0..32, and `160 + 16 * n + m - 32` for the 16 bytes after them. The last four bytes
//! have four digits each: number `240 + 4 * n + m - 48`.
//!
//! PTQ1_0 has blocks of 128 numbers: 16 and then 8 bytes of five digits, and two bytes of four.

use super::wide::{self, Run};
use super::{Half, encode_blocks};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 1.6875 bits per number: blocks of 256 numbers -1, 0 and 1 with one scale.
pub static TQ1_0: Format =
    wide::format::<Block, 1>("TQ1_0", 34, Rounding::SuperBlocks, 48..54, Some(encode));

/// 1.75 bits per number: blocks of 128 numbers -1, 0 and 1 with one scale.
pub static PTQ1_0: Format =
    wide::format::<ShortBlock, 2>("PTQ1_0", 143, Rounding::Blocks, 16..28, Some(encode_short));

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    five: [u8; 32],
    next_five: [u8; 16],
    four: [u8; 4],
    d: Half,
}

const _: () = assert!(size_of::<Block>() == 54);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let bytes = |half: usize| runs.map(|(block, run)| block.sixteen(2 * run + half));
        let powers = |half: usize| runs.map(|(_, run)| &const { &Block::POWERS }[2 * run + half]);
        // SAFETY: guaranteed by the caller.
        unsafe { (digits(bytes(0), powers(0)), digits(bytes(1), powers(1))) }
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct ShortBlock {
    five: [u8; 16],
    next_five: [u8; 8],
    four: [u8; 2],
    d: Half,
}

const _: () = assert!(size_of::<ShortBlock>() == 28);

impl wide::Block for ShortBlock {
    const LEN: usize = 128;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let bytes = |half: usize| runs.map(|(block, run)| block.sixteen(2 * run + half));
        let powers =
            |half: usize| runs.map(|(_, run)| &const { &ShortBlock::POWERS }[2 * run + half]);
        // SAFETY: guaranteed by the caller.
        unsafe { (digits(bytes(0), powers(0)), digits(bytes(1), powers(1))) }
    }
}

fn encode(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; 256]| {
        let (d, codes) = wide::ternary(x, 1);
        Block {
            five: bytes(&codes[..160]),
            next_five: bytes(&codes[160..240]),
            four: bytes(&codes[240..]),
            d,
        }
    });
}

fn encode_short(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; 128]| {
        let (d, codes) = wide::ternary(x, 1);
        ShortBlock {
            five: bytes(&codes[..80]),
            next_five: bytes(&codes[80..120]),
            four: bytes(&codes[120..]),
            d,
        }
    });
}

/// Packs the first digits of N bytes, then the second digits of all, and so on. The fraction is rounded up.
fn bytes<const N: usize>(codes: &[u8]) -> [u8; N] {
    std::array::from_fn(|m| {
        let digit = |n: usize| codes.get(N * n + m).copied().map_or(0, u16::from);
        let digits = (0..5).fold(0, |digits, n| 3 * digits + digit(n));
        (digits * 256).div_ceil(243) as u8
    })
}

impl Block {
    const POWERS: [[u8; 16]; 16] = powers([32, 16, 4]);

    /// The bytes of numbers `16 * index..16 * index + 16`.
    #[inline(always)]
    fn sixteen(&self, index: usize) -> [u8; 16] {
        match index {
            0..10 => self.five.as_chunks().0[index % 2],
            10..15 => self.next_five,
            _ => bytemuck::cast([self.four; 4]),
        }
    }
}

impl ShortBlock {
    const POWERS: [[u8; 16]; 8] = powers([16, 8, 2]);

    /// Like [`Block::sixteen`].
    #[inline(always)]
    fn sixteen(&self, index: usize) -> [u8; 16] {
        match index {
            0..5 => self.five,
            5 | 6 => bytemuck::cast([self.next_five; 2]),
            _ => bytemuck::cast([self.next_five, bytemuck::cast([self.four; 4])]),
        }
    }
}

/// The powers of three that move the digits of each sixteen numbers to the front of their bytes, in a block of this many bytes: two fields
/// with five digits in a byte, one with four.
const fn powers<const N: usize>([five, next_five, four]: [usize; 3]) -> [[u8; 16]; N] {
    const THREES: [u8; 5] = [1, 3, 9, 27, 81];
    let next = 5 * five;
    let last = next + 5 * next_five;
    let mut powers = [[0; 16]; N];
    let mut i = 0;
    while i < 16 * N {
        let digit = if i < next {
            i / five
        } else if i < last {
            (i - next) / next_five
        } else {
            (i - last) / four
        };
        powers[i / 16][i % 16] = THREES[digit];
        i += 1;
    }
    powers
}

/// Unpacks the digits of numbers from their bytes.
///
/// # Safety
/// As for [`Register::load`].
#[inline(always)]
unsafe fn digits<R: Register<N>, const N: usize>(
    bytes: [[u8; 16]; N],
    powers: [&[u8; 16]; N],
) -> R {
    // SAFETY: guaranteed by the caller.
    unsafe { R::load(bytes).times(R::load(powers.map(|powers| *powers))) }.triple_high()
}
