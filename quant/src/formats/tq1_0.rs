//! TQ1_0: blocks of 256 numbers -1, 0 and 1 with an f16 scale, five numbers in a byte: digits in base 3 of a fraction, `byte / 256`.
//!
//! Digit n of byte m is number `32 * n + m` for bytes 0..32, and `160 + 16 * n + m - 32` for the 16 bytes after them. The last four bytes
//! have four digits each: number `240 + 4 * n + m - 48`.
//!
//! PTQ1_0 has blocks of 128 numbers: 16 and then 8 bytes of five digits, and two bytes of four.

use super::{Half, encode_blocks, wide};
use crate::format::Format;
use crate::rounding::Rounding;

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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        scales.fill(self.d.value());
        unpack_digits(&self.five, &self.next_five, &self.four, codes);
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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        scales.fill(self.d.value());
        unpack_digits(&self.five, &self.next_five, &self.four, codes);
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

/// Writes the digits of the three groups of bytes.
#[inline(always)]
fn unpack_digits<const A: usize, const B: usize, const C: usize>(
    five: &[u8; A],
    next_five: &[u8; B],
    four: &[u8; C],
    codes: &mut [[u8; 8]],
) {
    let (first, rest) = codes.as_flattened_mut().split_at_mut(5 * A);
    let (second, last) = rest.split_at_mut(5 * B);
    digits(five, first);
    digits(next_five, second);
    digits(four, last);
}

/// Writes the first digit of all bytes, then the second digit of all, and so on.
#[inline(always)]
fn digits<const N: usize>(bytes: &[u8; N], codes: &mut [u8]) {
    let mut bytes = *bytes;
    for codes in codes.as_chunks_mut::<N>().0 {
        for (code, byte) in codes.iter_mut().zip(&mut bytes) {
            *code = ((u16::from(*byte) * 3) >> 8) as u8;
            *byte = byte.wrapping_mul(3);
        }
    }
}
