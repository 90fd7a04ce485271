//! IQ1_S: blocks of 256 numbers, in eight runs of 32 with a 3-bit scale and a common shift, and grid entries of eight numbers -1, 0 and 1:
//! `x = d * (2 * scale + 1) * (number + shift)`.
//!
//! The `high` word of a run holds bits 8..11 of its four entries, the scale in bits 12..15, and in bit 15 whether the shift is -1/8 instead
//! of 1/8.

use super::Half;
use super::grids::{self, IQ1};
use super::wide::{self, Run};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 1.5625 bits per number: entries of a grid of 2048, scale and shift per 32.
pub static IQ1_S: Format = wide::format::<Block, 1>("IQ1_S", 19, Rounding::SuperBlocks, 0..2, None);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    low: [[u8; 4]; 8],
    high: [[u8; 2]; 8],
}

const _: () = assert!(size_of::<Block>() == 50);

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = 9;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value() * 0.125
    }

    #[inline(always)]
    fn scales(&self, factor: f32, run: usize) -> [f32; 2] {
        let scale = self.high[run][1] >> 4 & 7;
        [factor * f32::from(2 * scale + 1); 2]
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let entries = runs.map(|(block, run)| {
            let (low, high) = (block.low[run], u16::from_le_bytes(block.high[run]));
            std::array::from_fn(|l| {
                let index = u16::from(low[l]) | (high >> (3 * l) & 7) << 8;
                shifted(index, high >> 15 != 0)
            })
        });
        // SAFETY: guaranteed by the caller.
        unsafe { grids::load(entries) }
    }
}

/// Entry `index` of the grid with its shift, as codes.
#[inline(always)]
pub(super) fn shifted(index: u16, is_down: bool) -> u64 {
    let down = u64::from(is_down) * 0x0202_0202_0202_0202;
    IQ1[usize::from(index)] - down
}
