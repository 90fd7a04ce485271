//! IQ2_S: blocks of 256 numbers, in runs of 16 with a 4-bit scale, and grid entries of eight magnitudes: `x = d * (2 * scale + 1) / 8 * sign *
//! number`.
//!
//! `high` holds bits 8 and 9 of four entries in a byte; a byte of `scales`, the scales of two runs, the first one lower.

use super::Half;
use super::grids::{self, negative};
use super::iq2_xs::half_byte_scales;
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

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
            let low: [u8; 4] = block.low.as_chunks().0[run];
            let high = usize::from(block.high[run]);
            std::array::from_fn(|l| grids::IQ2_S[usize::from(low[l]) | (high >> (2 * l) & 3) << 8])
        });
        let negative = runs.map(|(block, run)| {
            let signs: [u8; 4] = block.signs.as_chunks().0[run];
            signs.map(negative)
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::signed(magnitudes, negative) }
    }
}
