//! IQ1_M: blocks of 256 numbers, in runs of 16 with a 3-bit scale, and grid entries of eight numbers -1, 0 and 1 with a shift each: `x = d *
//! (2 * scale + 1) * (number + shift)`.
//!
//! A half byte of `high` holds bits 8..11 of an entry, and in bit 3 whether its shift is -1/8 instead of 1/8. Each word of `scales` has four
//! scales and, in its upper four bits, a quarter of the f16 `d`.

use super::Half;
use super::iq1_s::shifted;
use super::wide;
use crate::format::Format;
use crate::rounding::Rounding;

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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        let words = self.scales.map(u16::from_le_bytes);
        let quarters = words.iter().rev();
        let d = Half::from_bits(quarters.fold(0, |bits, word| bits << 4 | word >> 12));
        let d = d.value() * 0.125;
        for (j, scale) in scales.iter_mut().enumerate() {
            *scale = d * f32::from(2 * (words[j / 4] >> (j % 4 * 3) & 7) + 1);
        }
        for (i, (codes, low)) in codes.iter_mut().zip(self.low).enumerate() {
            let high = self.high[i / 2] >> (i % 2 * 4) & 15;
            *codes = shifted(u16::from(low) | u16::from(high & 7) << 8, high > 7);
        }
    }
}
