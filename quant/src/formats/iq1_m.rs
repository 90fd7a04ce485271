//! IQ1_M: blocks of 256 numbers, in runs of 16 with a 3-bit scale, and grid entries of eight numbers -1, 0 and 1 with a shift each: `x = d *
//! (2 * scale + 1) * (number + shift)`.
//!
//! A half byte of `high` holds bits 8..11 of an entry, and in bit 3 whether its shift is -1/8 instead of 1/8. Each word of `scales` has four
//! scales and, in its upper four bits, a quarter of the f16 `d`.

use super::Half;
use super::grids;
use super::iq1_s::shifted;
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 1.75 bits per number: entries of a grid of 2048, scale per 16, shift per 8.
pub static IQ1_M: Format =
    wide::format::<Block, 1>("IQ1_M", 29, Rounding::SuperBlocks, 48..56, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    low: [u8; 32],
    high: [u8; 16],
    scales: [[u8; 2]; 4],
}

const _: () = assert!(size_of::<Block>() == 56);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = 9;
    const HALVES: bool = true;

    #[inline(always)]
    fn factor(&self) -> f32 {
        let quarters = self.scales.iter().rev();
        let bits = quarters.fold(0, |bits, word| bits << 4 | u16::from(word[1] >> 4));
        Half::from_bits(bits).value() * 0.125
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let word = u16::from_le_bytes(self.scales[run / 2]) >> (run % 2 * 6);
        [word & 7, word >> 3 & 7].map(|scale| factor * f32::from(2 * scale + 1))
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let entries = runs.map(|(block, run)| {
            let low: [u8; 4] = block.low.as_chunks().0[run];
            std::array::from_fn(|l| {
                let high = block.high[2 * run + l / 2] >> (l % 2 * 4) & 15;
                shifted(u16::from(low[l]) | u16::from(high & 7) << 8, high > 7)
            })
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::load(entries) }
    }
}
