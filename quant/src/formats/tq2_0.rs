//! TQ2_0: blocks of 256 numbers with an f16 scale and 2-bit codes: `x = d * (q - 1)`. Number `32 * l + m` of each half of 128 is bits `2 *
//! l..` of byte m of the half's 32 bytes.

use super::{Half, encode_blocks, wide};
use crate::format::Format;
use crate::rounding::Rounding;

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
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]) {
        scales.fill(self.d.value());
        for (run, codes) in codes.chunks_exact_mut(4).enumerate() {
            let bytes = &self.q[run / 4];
            for (code, byte) in codes.as_flattened_mut().iter_mut().zip(bytes) {
                *code = byte >> (run % 4 * 2) & 3;
            }
        }
    }
}
