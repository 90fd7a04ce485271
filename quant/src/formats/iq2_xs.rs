//! IQ2_XS: blocks of 256 numbers, in runs of 16 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8 * sign
//! * number`.
//!
//! A word holds nine bits of an entry and seven signs; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, even_negative};
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 2.3125 bits per number: entries of a grid of 512, scale per 16.
pub static IQ2_XS: Format =
    wide::format::<Block, 1>("IQ2_XS", 17, Rounding::SuperBlocks, 64..74, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    words: [[u8; 2]; 32],
    scales: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 74);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;
    const HALVES: bool = true;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value() * 0.125
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        half_byte_scales(factor, self.scales[run])
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let magnitudes = runs.map(|(block, run)| {
            let words: [[u8; 2]; 4] = block.words.as_chunks().0[run];
            words.map(|word| grids::IQ2_XS[usize::from(u16::from_le_bytes(word) & 511)])
        });
        let negative = runs.map(|(block, run)| {
            let words: [[u8; 2]; 4] = block.words.as_chunks().0[run];
            words.map(|word| even_negative(u32::from(u16::from_le_bytes(word) >> 9)))
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::signed(magnitudes, negative) }
    }
}

/// The scales of two runs of 16, `factor * (2 * scale + 1)`.
#[inline(always)]
pub(super) fn half_byte_scales(factor: f32, byte: u8) -> [f32; 2] {
    [byte & 15, byte >> 4].map(|scale| factor * f32::from(2 * scale + 1))
}
