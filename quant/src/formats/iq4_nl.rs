//! IQ4_NL: blocks of 32 numbers, an f16 scale and 4-bit codes of sixteen values that lie closer near zero:
//! `x = d * VALUES[q]`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, LANES};
use crate::formats::{Half, decode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 4.5 bits per number: blocks of 32 with one scale, for values that lie closer near zero.
pub static IQ4_NL: Format = Format {
    name: "IQ4_NL",
    ggml_type: 20,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..2,
    reordered: None,
    encode,
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

/// The values of the codes, as in ggml.
pub(crate) const VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    d: Half,
    q: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18);

/// Eight blocks at a time; the last ones may be fewer.
fn encode(src: &[f32], dst: &mut [u8]) {
    let blocks = bytemuck::cast_slice_mut::<u8, Block>(dst);
    for (src, blocks) in src.chunks(32 * LANES).zip(blocks.chunks_mut(LANES)) {
        let mut x = [0.0; 32 * LANES];
        x[..src.len()].copy_from_slice(src);
        let scales = fit::fit_to_values::<32>(&fit::columns(&x), &VALUES).0;
        for ((x, block), scale) in x.as_chunks().0.iter().zip(blocks).zip(scales) {
            *block = Block {
                d: Half::from_f32(scale),
                q: nearest_codes(x, scale),
            };
        }
    }
}

/// The codes of the values nearest to `x / scale`, two in a byte.
pub(crate) fn nearest_codes(x: &[f32; 32], scale: f32) -> [u8; 16] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let codes = x.map(|x| fit::nearest_value_code(inverse * x, &VALUES));
    std::array::from_fn(|i| codes[i] | codes[i + 16] << 4)
}

/// The values of the two codes in each byte.
pub(crate) fn values(q: &[u8; 16], values: &[i8; 16]) -> [i8; 32] {
    std::array::from_fn(|i| values[usize::from(q[i % 16] >> (i / 16 * 4) & 15)])
}

impl Block {
    fn decode(&self) -> [f32; 32] {
        let d = self.d.to_f32();
        values(&self.q, &VALUES).map(|q| d * f32::from(q))
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| {
            let codes = scalar::dot_codes(&values(&block.q, &VALUES), &x.block(b)) as f32;
            codes * (block.d.to_f32() * x.scales[b])
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, VALUES};
    use crate::simd::{avx2, avx512};

    /// The values, made unsigned by adding 128.
    pub(crate) const UNSIGNED: [i8; 16] = {
        let mut values = VALUES;
        let mut i = 0;
        while i < 16 {
            values[i] ^= -128;
            i += 1;
        }
        values
    };

    /// Looks up the low and the high halves of the bytes of `codes` in a table of sixteen bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(crate) fn look_up_512(values: &'static [i8; 16], codes: __m512i) -> (__m512i, __m512i) {
        // SAFETY: sixteen bytes.
        let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
        let low = _mm512_set1_epi8(15);
        let high = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
        (
            _mm512_shuffle_epi8(values, _mm512_and_si512(codes, low)),
            _mm512_shuffle_epi8(values, high),
        )
    }

    /// As [`look_up_512`].
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) fn look_up_256(values: &'static [i8; 16], codes: __m256i) -> (__m256i, __m256i) {
        // SAFETY: sixteen bytes.
        let values =
            _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
        let low = _mm256_set1_epi8(15);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
        (
            _mm256_shuffle_epi8(values, _mm256_and_si256(codes, low)),
            _mm256_shuffle_epi8(values, high),
        )
    }

    impl avx512::Integer for Block {
        type Chunk = [Block; 4];
        type Header = ();

        const GROUPS: usize = 1;
        const OFFSET: i8 = -128;

        #[inline]
        unsafe fn header(_: *const [Block; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(chunk: *const [Block; 4], _: (), _: usize) -> avx512::Group {
            // SAFETY: the chunk is valid; blocks need no alignment.
            let [a, b, c, d] = unsafe { &*chunk };
            let codes = |block: &Block| {
                // SAFETY: a block's codes are 16 bytes.
                unsafe { _mm_loadu_si128(block.q.as_ptr().cast()) }
            };
            let codes = avx512::join(codes(a), codes(b), codes(c), codes(d));
            let (first, second) = look_up_512(&UNSIGNED, codes);
            let scale = avx512::spread_halves(a.d.bits(), b.d.bits(), c.d.bits(), d.d.bits());
            avx512::Group::new(first, second, scale)
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
            // SAFETY: the chunk is valid; a block's codes are 16 bytes.
            let ([a, b], codes) = unsafe {
                let [a, b] = &*chunk;
                let codes = _mm256_loadu2_m128i(b.q.as_ptr().cast(), a.q.as_ptr().cast());
                ([a, b], codes)
            };
            let (first, second) = look_up_256(&VALUES, codes);
            let scale = avx2::lanes(avx2::half(a.d.bits()), avx2::half(b.d.bits()));
            avx2::Pair::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm {
    use std::arch::aarch64::*;

    use super::{Block, VALUES};
    use crate::simd::neon;

    /// Looks up the low and the high halves of the bytes of `codes` in a table of sixteen bytes.
    #[inline]
    pub(crate) fn look_up(values: &[i8; 16], codes: &[u8; 16]) -> (int8x16_t, int8x16_t) {
        let codes = neon::load(codes, 0);
        // SAFETY: NEON is part of the architecture; sixteen values.
        unsafe {
            let values = vld1q_s8(values.as_ptr());
            (
                vqtbl1q_s8(values, vandq_u8(codes, vdupq_n_u8(15))),
                vqtbl1q_s8(values, vshrq_n_u8::<4>(codes)),
            )
        }
    }

    impl neon::Integer for Block {
        type Header = ();

        const BLOCKS: usize = 1;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), _: usize) -> neon::Block {
            let (first, second) = look_up(&VALUES, &self.q);
            let scale = neon::half(self.d.bits());
            neon::Block::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
