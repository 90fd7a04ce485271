//! IQ3_XXS: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of four magnitudes: `x = d * (2 * scale + 1) / 4
//! * sign * number`.
//!
//! A run has eight entries of a byte. The words of all runs follow: four times seven signs and, in the upper four bits, the scale.

use super::Half;
use super::grids::{self, even_negative, join};
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 3.0625 bits per number: entries of a grid of 256, scale per 32.
pub static IQ3_XXS: Format =
    wide::format::<Block, 1>("IQ3_XXS", 18, Rounding::SuperBlocks, 0..2, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    entries: [[u8; 8]; 8],
    signs: [[u8; 4]; 8],
}

const _: () = assert!(size_of::<Block>() == 98);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value() * 0.25
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let scale = self.signs[run][3] >> 4;
        [factor * f32::from(2 * scale + 1); 2]
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let magnitudes = runs.map(|(block, run)| {
            join(block.entries[run].map(|entry| grids::IQ3_XXS[usize::from(entry)]))
        });
        let negative = runs.map(|(block, run)| {
            let signs = u32::from_le_bytes(block.signs[run]);
            [0, 7, 14, 21].map(|first| even_negative(signs >> first))
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::signed(magnitudes, negative) }
    }
}
