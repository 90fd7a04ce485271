//! TQ2_0: blocks of 256 numbers with an f16 scale and 2-bit codes: `x = d * (q - 1)`. Number `32 * l + m` of each half of 128 is bits `2 *
//! l..` of byte m of the half's 32 bytes.

use super::wide::{self, Run};
use super::{Half, encode_blocks};
use crate::format::Format;
use crate::rounding::Rounding;
use crate::simd::register::Register;

/// 2.0625 bits per number: blocks of 256 with one scale.
pub static TQ2_0: Format =
    wide::format::<Block, 1>("TQ2_0", 35, Rounding::SuperBlocks, 64..66, Some(encode));

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Block {
    q: [[u8; 32]; 2],
    d: Half,
}

const _: () = assert!(size_of::<Block>() == 66);

fn encode(src: &[f32], _: Option<&[f32]>, dst: &mut [u8]) {
    encode_blocks(src, dst, |x: &[f32; 256]| {
        let (d, codes) = wide::ternary(x, 1);
        let byte = |half: usize, m: usize| {
            (0..4).fold(0, |byte, l| {
                byte | codes[128 * half + 32 * l + m] << (2 * l)
            })
        };
        let q = [0, 1].map(|half| std::array::from_fn(|m| byte(half, m)));
        Block { q, d }
    });
}

impl wide::Block for Block {
    const LEN: usize = 256;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn factor(&self) -> f32 {
        self.d.value()
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R) {
        let counts = runs.map(|(_, run)| 2 * (run % 4) as u32);
        let half = |half: usize| runs.map(|(block, run)| block.q[run / 4].as_chunks().0[half]);
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { (R::load(half(0)), R::load(half(1))) };
        (
            first.right_each(counts).and(3),
            second.right_each(counts).and(3),
        )
    }
}
