//! IQ2_S: blocks of 256 numbers, in runs of 16 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8 * sign *
//! number`.
//!
//! `high` holds bits 8 and 9 of four entries in a byte; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, signed};
use super::iq2_xs::half_byte_scales;
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

/// 2.5625 bits per number: entries of a grid of 1024, scale per 16.
pub static IQ2_S: Format = wide::format::<Block, 1>("IQ2_S", 22, Rounding::SuperBlocks, 0..2, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    low: [u8; 32],
    signs: [u8; 32],
    high: [u8; 8],
    scales: [u8; 8],
}

const _: () = assert!(size_of::<Block>() == 82);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;
    const HALVES: bool = true;

    #[inline(always)]
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        half_byte_scales(self.d, &self.scales, scales);
        for (i, codes) in codes.iter_mut().enumerate() {
            let high = usize::from(self.high[i / 4] >> (i % 4 * 2) & 3);
            let entry = grids::IQ2_S[usize::from(self.low[i]) | high << 8];
            *codes = signed(entry, self.signs[i]);
        }
    }
}
