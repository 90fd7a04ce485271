//! Q8_0: blocks of 32 numbers, an f16 scale and 8-bit codes: `x = d * q`.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::low_byte;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 8.5 bits per number: blocks of 32 with one scale.
pub static Q8_0: Format = Format {
    name: "Q8_0",
    ggml_type: 8,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..2,
    reordered: None,
    encode: |src, dst| encode_blocks(src, dst, Block::encode),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    d: Half,
    q: [i8; 32],
}

const _: () = assert!(size_of::<Block>() == 34);

impl Block {
    fn encode(x: &[f32; 32]) -> Block {
        let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        Block {
            d: Half::from_f32(d),
            q: x.map(|x| low_byte((x * inverse).round()) as i8),
        }
    }

    fn decode(&self) -> [f32; 32] {
        let d = self.d.to_f32();
        self.q.map(|q| f32::from(q) * d)
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| {
            scalar::dot_codes(&block.q, &x.block(b)) as f32 * (block.d.to_f32() * x.scales[b])
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::simd::{avx2, avx512};

    impl avx512::Integer for Block {
        type Chunk = [Block; 4];
        type Header = ();

        const GROUPS: usize = 1;
        // Codes are made unsigned by adding 128: the sign bit is flipped.
        const OFFSET: i8 = -128;

        #[inline]
        unsafe fn header(_: *const [Block; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(chunk: *const [Block; 4], _: (), _: usize) -> avx512::Group {
            // SAFETY: the chunk is valid.
            let blocks = unsafe { &*chunk };
            let half = |block: &Block, half: usize| {
                // SAFETY: a block's codes are 32 bytes.
                unsafe { _mm_loadu_si128(block.q.as_ptr().cast::<__m128i>().add(half)) }
            };
            let sign = _mm512_set1_epi8(-128);
            let [a, b, c, d] = blocks;
            let first = avx512::join(half(a, 0), half(b, 0), half(c, 0), half(d, 0));
            let second = avx512::join(half(a, 1), half(b, 1), half(c, 1), half(d, 1));
            let scale = avx512::spread_halves(a.d.bits(), b.d.bits(), c.d.bits(), d.d.bits());
            avx512::Group::new(
                _mm512_xor_si512(first, sign),
                _mm512_xor_si512(second, sign),
                scale,
            )
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }

    impl avx2::Integer for Block {
        type Chunk = [Block; 2];
        type Header = ();

        const PAIRS: usize = 1;
        const SIGNED: bool = true;

        #[inline]
        unsafe fn header(_: *const [Block; 2]) {}

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(chunk: *const [Block; 2], _: (), _: usize) -> avx2::Pair {
            // SAFETY: a chunk is 2 blocks, a block's codes are 32 bytes.
            unsafe {
                let (a, b) = (&(*chunk)[0], &(*chunk)[1]);
                let (qa, qb) = (
                    a.q.as_ptr().cast::<__m128i>(),
                    b.q.as_ptr().cast::<__m128i>(),
                );
                let scale = avx2::lanes(avx2::half(a.d.bits()), avx2::half(b.d.bits()));
                avx2::Pair::new(
                    _mm256_loadu2_m128i(qb, qa),
                    _mm256_loadu2_m128i(qb.add(1), qa.add(1)),
                    scale,
                )
            }
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Block;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = ();

        const BLOCKS: usize = 1;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), _: usize) -> neon::Block {
            let scale = neon::half(self.d.bits());
            // SAFETY: 32 codes.
            let (first, second) =
                unsafe { (vld1q_s8(self.q.as_ptr()), vld1q_s8(self.q.as_ptr().add(16))) };
            neon::Block::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
