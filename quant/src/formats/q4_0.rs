//! Q4_0: blocks of 32 numbers, an f16 scale and 4-bit codes: `x = d * (q - 8)`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, low_byte};
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 4.5 bits per number: blocks of 32 with one scale.
pub static Q4_0: Format = Format {
    name: "Q4_0",
    ggml_type: 2,
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
    pub(super) d: Half,
    pub(super) q: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18);

impl Block {
    pub(super) fn encode(x: &[f32; 32]) -> Block {
        // The number of largest magnitude (the first of equals) becomes code 0, that is -8, exactly.
        let extreme = fit::extreme(x);
        let d = extreme / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let code = |x: f32| (low_byte(x * inverse + 8.5) as i8).min(15) as u8;
        let mut q = [0; 16];
        for i in 0..16 {
            q[i] = code(x[i]) | code(x[i + 16]) << 4;
        }
        Block {
            d: Half::from_f32(d),
            q,
        }
    }

    fn codes(&self) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = (self.q[i] & 15) as i8 - 8;
            codes[i + 16] = (self.q[i] >> 4) as i8 - 8;
        }
        codes
    }

    pub(super) fn decode(&self) -> [f32; 32] {
        let d = self.d.to_f32();
        self.codes().map(|q| d * f32::from(q))
    }

    /// The product with block `b` of the inputs.
    pub(super) fn dot(&self, b: usize, x: Row) -> f32 {
        scalar::dot_codes(&self.codes(), &x.block(b)) as f32 * (self.d.to_f32() * x.scales[b])
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| block.dot(b, x);
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::simd::{avx2, avx512};

    /// Index of the 16 bits of each lane's scale in the first 64 bytes of a chunk.
    const SCALES: [u16; 32] = {
        let mut at = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            at[lane] = (lane / 4 * size_of::<Block>() / 2) as u16;
            lane += 1;
        }
        at
    };

    impl avx512::Integer for Block {
        type Chunk = [Block; 4];
        type Header = ();

        const GROUPS: usize = 1;
        const OFFSET: i8 = 8;

        #[inline]
        unsafe fn header(_: *const [Block; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(chunk: *const [Block; 4], _: (), _: usize) -> avx512::Group {
            // SAFETY: the chunk is valid.
            let [a, b, c, d] = unsafe { &*chunk };
            let codes = |block: &Block| {
                // SAFETY: a block's codes are 16 bytes.
                unsafe { _mm_loadu_si128(block.q.as_ptr().cast()) }
            };
            let low = _mm512_set1_epi8(15);
            let codes = avx512::join(codes(a), codes(b), codes(c), codes(d));
            // SAFETY: 64 bytes of the chunk's 72.
            let start = unsafe { _mm512_loadu_si512(chunk.cast()) };
            let scales = _mm512_permutexvar_epi16(avx512::constant(&SCALES), start);
            let scale = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
            avx512::Group::new(
                _mm512_and_si512(codes, low),
                _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low),
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
        const OFFSET: i8 = 8;
        const LARGEST: u8 = 15;

        #[inline]
        unsafe fn header(_: *const [Block; 2]) {}

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(chunk: *const [Block; 2], _: (), _: usize) -> avx2::Pair {
            // SAFETY: a chunk is 2 blocks, a block's codes are 16 bytes.
            let (codes, d) = unsafe {
                let (a, b) = (&(*chunk)[0], &(*chunk)[1]);
                let codes = _mm256_loadu2_m128i(b.q.as_ptr().cast(), a.q.as_ptr().cast());
                (codes, [a.d.bits(), b.d.bits()])
            };
            let low = _mm256_set1_epi8(15);
            let scale = avx2::lanes(avx2::half(d[0]), avx2::half(d[1]));
            avx2::Pair::new(
                _mm256_and_si256(codes, low),
                _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low),
                scale,
            )
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
            let codes = neon::load(&self.q, 0);
            let scale = neon::half(self.d.bits());
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let signed = |codes| vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(8));
                neon::Block::new(
                    signed(vandq_u8(codes, vdupq_n_u8(15))),
                    signed(vshrq_n_u8::<4>(codes)),
                    scale,
                )
            }
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
