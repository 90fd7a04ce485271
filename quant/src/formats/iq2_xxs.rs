//! IQ2_XXS: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8
//! * sign * number`.
//!
//! A run has four entries of a byte, then four times seven signs and, in the upper four bits, the scale.

use super::Half;
use super::grids::{self, even_negative};
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 2.0625 bits per number: entries of a grid of 256, scale per 32.
pub static IQ2_XXS: Format =
    wide::format::<Block, 1>("IQ2_XXS", 16, Rounding::SuperBlocks, 0..2, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    runs: [Stored; 8],
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Stored {
    entries: [u8; 4],
    signs: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 66);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value() * 0.125
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let scale = self.runs[run].signs[3] >> 4;
        [factor * f32::from(2 * scale + 1); 2]
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [wide::Run<Self>; N]) -> (R, R) {
        let magnitudes = runs.map(|(block, run)| {
            let entries = block.runs[run].entries;
            entries.map(|entry| grids::IQ2_XXS[usize::from(entry)])
        });
        let negative = runs.map(|(block, run)| {
            let signs = u32::from_le_bytes(block.runs[run].signs);
            [0, 7, 14, 21].map(|first| even_negative(signs >> first))
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::signed(magnitudes, negative) }
    }
}
