//! IQ2_XXS: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8
//! * sign * number`.
//!
//! A run has four entries of a byte, then four times seven signs and, in the upper four bits, the scale.

use super::Half;
use super::grids::{self, even_signs, signed};
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

/// 2.0625 bits per number: entries of a grid of 256, scale per 32.
pub static IQ2_XXS: Format =
    wide::format::<Block, 1>("IQ2_XXS", 16, Rounding::SuperBlocks, 0..2, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    runs: [Run; 8],
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Run {
    entries: [u8; 4],
    signs: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 66);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;

    #[inline(always)]
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        let d = self.d.value() * 0.125;
        let places = codes.as_chunks_mut::<4>().0.iter_mut();
        let places = places.zip(scales.as_chunks_mut::<2>().0);
        for (run, (codes, scales)) in self.runs.iter().zip(places) {
            let signs = u32::from_le_bytes(run.signs);
            *scales = [d * (2 * (signs >> 28) + 1) as f32; 2];
            for (l, codes) in codes.iter_mut().enumerate() {
                let entry = grids::IQ2_XXS[usize::from(run.entries[l])];
                *codes = signed(entry, even_signs(signs >> (7 * l)));
            }
        }
    }
}
