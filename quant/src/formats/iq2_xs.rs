//! IQ2_XS: blocks of 256 numbers, in runs of 16 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8 * sign
//! * number`.
//!
//! A word holds nine bits of an entry and seven signs; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, even_signs, signed};
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        half_byte_scales(self.d, &self.scales, scales);
        for (codes, &word) in codes.iter_mut().zip(&self.words) {
            let word = u16::from_le_bytes(word);
            let entry = grids::IQ2_XS[usize::from(word & 511)];
            *codes = signed(entry, even_signs(u32::from(word >> 9)));
        }
    }
}

/// The scales of sixteen runs, `d * (2 * scale + 1) / 8`.
#[inline(always)]
pub(super) fn half_byte_scales(d: Half, bytes: &[u8; 8], scales: &mut [f32]) {
    let d = d.value() * 0.125;
    for (j, scale) in scales.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (bytes[j / 2] >> (j % 2 * 4) & 15) + 1);
    }
}
