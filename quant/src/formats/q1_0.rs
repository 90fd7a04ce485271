//! Q1_0: blocks of 128 numbers with an f16 scale and their signs: `x = d` where bit `j % 8` of byte `j / 8` is set, otherwise `-d`.

use super::wide::{self, Run};
use super::{Half, encode_blocks};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

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
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        // SAFETY: guaranteed by the caller.
        let zero = unsafe { R::load([[0; 16]; N]) };
        let signs = runs.map(|(block, run)| &block.signs.as_chunks().0[run]);
        (
            zero.plus_where::<0>(signs, 2),
            zero.plus_where::<1>(signs, 2),
        )
    }
}
