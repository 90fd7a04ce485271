//! Q1_0: blocks of 128 numbers with an f16 scale and their signs: `x = d` where bit `j % 8` of byte `j / 8` is set, otherwise `-d`.

use super::{Half, encode_blocks, wide};
use crate::format::Format;
use crate::rounding::Rounding;

/// 1.125 bits per number: blocks of 128 signs with one scale.
pub static Q1_0: Format =
    wide::format::<Block, 2>("Q1_0", 41, Rounding::Blocks, 0..2, Some(encode));

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    d: Half,
    signs: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18);

/// Every number becomes plus or minus the mean magnitude.
fn encode(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; 128]| Block {
        d: Half::from_f32(x.iter().fold(0.0, |sum, x| sum + x.abs()) / 128.0),
        signs: std::array::from_fn(|i| {
            let eight = x[8 * i..][..8].iter().enumerate();
            eight.fold(0, |signs, (bit, &x)| signs | u8::from(x >= 0.0) << bit)
        }),
    });
}

impl wide::Block for Block {
    const LEN: usize = 128;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        scales.fill(self.d.value());
        for (codes, &signs) in codes.iter_mut().zip(&self.signs) {
            *codes = std::array::from_fn(|i| (signs >> i & 1) * 2);
        }
    }
}
