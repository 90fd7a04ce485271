//! IQ3_S: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of four magnitudes: `x = d * (2 * scale + 1) * sign
//! * number`.
//!
//! `high` holds bit 8 of the eight entries of a run in a byte; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, join, signed};
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

/// 3.4375 bits per number: entries of a grid of 512, scale per 32.
pub static IQ3_S: Format =
    wide::format::<Block, 1>("IQ3_S", 21, Rounding::SuperBlocks, 96..110, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    low: [[u8; 8]; 8],
    high: [u8; 8],
    signs: [[u8; 4]; 8],
    scales: [u8; 4],
}

const _: () = assert!(size_of::<Block>() == 110);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = grids::OFFSET;

    #[inline(always)]
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        let d = self.d.value();
        let places = codes.as_chunks_mut::<4>().0.iter_mut();
        let places = places.zip(scales.as_chunks_mut::<2>().0);
        for (run, (codes, scales)) in places.enumerate() {
            *scales = [d * f32::from(2 * (self.scales[run / 2] >> (run % 2 * 4) & 15) + 1); 2];
            let (low, high) = (&self.low[run], usize::from(self.high[run]));
            for (l, codes) in codes.iter_mut().enumerate() {
                let entry = |i: usize| grids::IQ3_S[usize::from(low[i]) | (high >> i & 1) << 8];
                let eight = join(entry(2 * l), entry(2 * l + 1));
                *codes = signed(eight, self.signs[run][l]);
            }
        }
    }
}
