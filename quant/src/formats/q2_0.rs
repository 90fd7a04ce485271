//! Q2_0: blocks of 64 numbers with an f16 scale and 2-bit codes: `x = d * (q - 1)`. Code j is bits `2 * (j % 4)..` of byte `j / 4`.
//!
//! PQ2_0 is the same with one scale for 128 numbers. The first published ternary files have it under the number of Q2_0; the distances
//! between tensors tell which one a file has.

use super::wide::{self, Run};
use super::{Half, encode_blocks};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 2.25 bits per number: blocks of 64 with one scale.
pub static Q2_0: Format =
    wide::format::<Block<16>, 4>("Q2_0", 42, Rounding::Blocks, 0..2, Some(encode::<64, 16>));

/// 2.125 bits per number: blocks of 128 with one scale.
pub static PQ2_0: Format = wide::format::<Block<32>, 2>(
    "PQ2_0",
    142,
    Rounding::Blocks,
    0..2,
    Some(encode::<128, 32>),
);

#[derive(Clone, Copy)]
#[repr(C)]
struct Block<const BYTES: usize> {
    d: Half,
    q: [u8; BYTES],
}

// SAFETY: consists of bytes only.
unsafe impl<const BYTES: usize> bytemuck::Zeroable for Block<BYTES> {}
// SAFETY: consists of bytes only, without padding.
unsafe impl<const BYTES: usize> bytemuck::Pod for Block<BYTES> {}

const _: () = assert!(size_of::<Block<16>>() == 18 && size_of::<Block<32>>() == 34);

/// The largest magnitude becomes the scale, so that code 3 is not used.
fn encode<const N: usize, const BYTES: usize>(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; N]| {
        let (d, codes) = wide::ternary(x, 0);
        let q: [u8; BYTES] = std::array::from_fn(|i| {
            let four = codes[4 * i..][..4].iter().enumerate();
            four.fold(0, |byte, (place, code)| byte | code << (2 * place))
        });
        Block { d, q }
    });
}

impl<const BYTES: usize> wide::Block for Block<BYTES> {
    const LEN: usize = 4 * BYTES;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let words = |half| runs.map(|(block, run)| block.q.as_chunks().0[2 * run + half]);
        // SAFETY: guaranteed by the caller.
        unsafe { (R::two_bits(words(0)), R::two_bits(words(1))) }
    }
}
