//! MXFP4: blocks of 32 numbers, a power of two and 4-bit floats: `x = 2^(e - 128) * VALUES[q]`, the values being twice those of
//! the floats. ("OCP Microscaling Formats (MX) Specification", 1.0.)
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{extreme, low_byte};
use crate::formats::iq4_nl::values;
use crate::formats::{decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 4.25 bits per number: blocks of 32 4-bit floats with a power of two.
pub static MXFP4: Format = Format {
    name: "MXFP4",
    ggml_type: 39,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..1,
    reordered: None,
    encode: |src, dst| encode_blocks(src, dst, Block::encode),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

/// Twice the values of the codes, which have a sign, two bits of exponent and one of mantissa.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    e: u8,
    q: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 17);

impl Block {
    fn encode(x: &[f32; 32]) -> Block {
        let largest = extreme(x).abs();
        // The largest float of a block is 4 or 6.
        let e = if largest > 0.0 {
            low_byte(largest.log2().floor() - 2.0 + 127.0)
        } else {
            0
        };
        let scale = Block { e, q: [0; 16] }.scale();
        let (mut codes, mut errors) = ([0; 32], x.map(f32::abs));
        for (code, value) in VALUES.iter().enumerate() {
            let value = f32::from(*value) * scale;
            for i in 0..32 {
                let error = (value - x[i]).abs();
                let better = error < errors[i];
                errors[i] = if better { error } else { errors[i] };
                codes[i] = if better { code as u8 } else { codes[i] };
            }
        }
        Block {
            e,
            q: std::array::from_fn(|i| codes[i] | codes[i + 16] << 4),
        }
    }

    #[inline]
    fn scale(&self) -> f32 {
        f32::from_bits(match self.e {
            e @ 0..2 => 1 << (21 + e), // subnormal
            e => u32::from(e - 1) << 23,
        })
    }

    fn decode(&self) -> [f32; 32] {
        let scale = self.scale();
        values(&self.q, &VALUES).map(|q| scale * f32::from(q))
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| {
            let codes = scalar::dot_codes(&values(&block.q, &VALUES), &x.block(b)) as f32;
            codes * (block.scale() * x.scales[b])
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, VALUES};
    use crate::formats::iq4_nl::x86::{look_up_256, look_up_512};
    use crate::simd::avx512::{SPREAD, constant};
    use crate::simd::{avx2, avx512};

    const LARGEST: i8 = 12;

    /// The values, made unsigned by adding the largest.
    const UNSIGNED: [i8; 16] = {
        let mut values = VALUES;
        let mut i = 0;
        while i < 16 {
            values[i] += LARGEST;
            i += 1;
        }
        values
    };

    /// Scales of four blocks.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn scales(e: [u8; 4]) -> __m128 {
        let e = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(e)));
        let normal = _mm_slli_epi32::<23>(_mm_sub_epi32(e, _mm_set1_epi32(1)));
        let subnormal = _mm_sllv_epi32(_mm_set1_epi32(1 << 21), e);
        let is_subnormal = _mm_cmpgt_epi32(_mm_set1_epi32(2), e);
        _mm_castsi128_ps(_mm_blendv_epi8(normal, subnormal, is_subnormal))
    }

    impl avx512::Integer for Block {
        type Chunk = [Block; 4];
        type Header = ();

        const GROUPS: usize = 1;
        const OFFSET: i8 = LARGEST;

        #[inline]
        unsafe fn header(_: *const [Block; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw")]
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
            let scales = _mm512_castps128_ps512(scales([a.e, b.e, c.e, d.e]));
            let scale = _mm512_permutexvar_ps(constant(&SPREAD), scales);
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
        const OFFSET: i8 = LARGEST;

        #[inline]
        unsafe fn header(_: *const [Block; 2]) {}

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(chunk: *const [Block; 2], _: (), _: usize) -> avx2::Pair {
            // SAFETY: the chunk is valid; a block's codes are 16 bytes.
            let ([a, b], codes) = unsafe {
                let [a, b] = &*chunk;
                let codes = _mm256_loadu2_m128i(b.q.as_ptr().cast(), a.q.as_ptr().cast());
                ([a, b], codes)
            };
            let (first, second) = look_up_256(&UNSIGNED, codes);
            let scales = _mm256_castps128_ps256(scales([a.e, b.e, 0, 0]));
            let scale = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
            avx2::Pair::new(first, second, scale)
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

    use super::{Block, VALUES};
    use crate::formats::iq4_nl::arm::look_up;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = ();

        const BLOCKS: usize = 1;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), _: usize) -> neon::Block {
            let (first, second) = look_up(&VALUES, &self.q);
            let scale = self.scale();
            neon::Block::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
