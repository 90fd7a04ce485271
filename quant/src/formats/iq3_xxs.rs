//! IQ3_XXS: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of four magnitudes: `x = d * (2 * scale + 1) / 4
//! * sign * number`.
//!
//! A run has eight entries of a byte. The words of all runs follow: four times seven signs and, in the upper four bits, the scale.

use super::Half;
use super::grids::{self, even_signs, join, signed};
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        let d = self.d.value() * 0.25;
        let runs = self.entries.iter().zip(&self.signs);
        let places = codes.as_chunks_mut::<4>().0.iter_mut();
        let places = places.zip(scales.as_chunks_mut::<2>().0);
        for ((entries, &signs), (codes, scales)) in runs.zip(places) {
            let signs = u32::from_le_bytes(signs);
            *scales = [d * (2 * (signs >> 28) + 1) as f32; 2];
            for (l, codes) in codes.iter_mut().enumerate() {
                let entry = |i: usize| grids::IQ3_XXS[usize::from(entries[2 * l + i])];
                *codes = signed(join(entry(0), entry(1)), even_signs(signs >> (7 * l)));
            }
        }
    }
}
