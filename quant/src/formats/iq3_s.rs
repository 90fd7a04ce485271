//! IQ3_S: blocks of 256 numbers, in eight runs of 32 with a 4-bit scale, and grid entries of four magnitudes: `x = d * (2 * scale + 1) * sign
//! * number`.
//!
//! `high` holds bit 8 of the eight entries of a run in a byte; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, join, negative};
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

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
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let scale = self.scales[run / 2] >> (run % 2 * 4) & 15;
        [factor * f32::from(2 * scale + 1); 2]
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let magnitudes = runs.map(|(block, run)| {
            let (low, high) = (&block.low[run], usize::from(block.high[run]));
            join(std::array::from_fn(|i| {
                grids::IQ3_S[usize::from(low[i]) | (high >> i & 1) << 8]
            }))
        });
        let negative = runs.map(|(block, run)| block.signs[run].map(negative));
        // SAFETY: guaranteed by the caller.
        unsafe { grids::signed(magnitudes, negative) }
    }
}
