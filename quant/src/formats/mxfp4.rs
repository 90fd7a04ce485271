//! MXFP4: blocks of 32 numbers with a power of two and 4-bit floats: `x = 2^(e - 128) * VALUES[q]`, where `VALUES` is twice the values of
//! the floats. ("OCP Microscaling Formats (MX) Specification", 1.0.)
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::format::Format;
use crate::formats::codes::{Codes, Lookup, Table};
use crate::formats::encode_blocks;
use crate::formats::fit::{extreme, low_byte};
use crate::formats::scaled::{Scale, Scaled};

/// 4.25 bits per number: blocks of 32 4-bit floats with a power of two as scale.
pub static MXFP4: Format =
    Block::format("MXFP4", 39, |src, _, dst| encode_blocks(src, dst, encode));

type Block = Scaled<Exponent, Lookup<Values>>;

const _: () = assert!(size_of::<Block>() == 17);

/// Twice the values of the codes, which have a sign bit, two exponent bits and one mantissa bit.
#[derive(Clone, Copy)]
pub(super) struct Values;

impl Table for Values {
    const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    const OFFSET: i8 = 12;
    const SIGNED: bool = false;
}

fn encode(x: &[f32; 32]) -> Block {
    let largest = extreme(x).abs();
    // The number of largest magnitude becomes 4 or 6.
    let e = if largest > 0.0 {
        low_byte(largest.log2().floor() - 2.0 + 127.0)
    } else {
        0
    };
    let scale = Exponent(e).value();
    let (mut codes, mut errors) = ([0; 32], x.map(f32::abs));
    for (code, value) in Values::VALUES.iter().enumerate() {
        let value = f32::from(*value) * scale;
        for i in 0..32 {
            let error = (value - x[i]).abs();
            let better = error < errors[i];
            errors[i] = if better { error } else { errors[i] };
            codes[i] = if better { code as u8 } else { codes[i] };
        }
    }
    Block {
        d: Exponent(e),
        q: Lookup::pack(codes),
    }
}

/// The exponent `e` of the scale `2^(e - 128)`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
struct Exponent(u8);

impl Scale for Exponent {
    #[inline]
    fn value(self) -> f32 {
        f32::from_bits(match self.0 {
            e @ 0..2 => 1 << (21 + e), // subnormal
            e => u32::from(e - 1) << 23,
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn lanes_256([a, b]: [Self; 2]) -> __m256 {
        let scales = _mm256_castps128_ps256(values([a.0, b.0, 0, 0]));
        _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,f16c")]
    #[inline]
    unsafe fn lanes_512<C: Codes>(blocks: &[Scaled<Self, C>; 4]) -> __m512 {
        use crate::simd::avx512::{SPREAD, constant};
        let scales = _mm512_castps128_ps512(values(blocks.each_ref().map(|block| block.d.0)));
        _mm512_permutexvar_ps(constant(&SPREAD), scales)
    }
}

/// Returns the scales of four exponents.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn values(e: [u8; 4]) -> __m128 {
    let e = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(i32::from_le_bytes(e)));
    let normal = _mm_slli_epi32::<23>(_mm_sub_epi32(e, _mm_set1_epi32(1)));
    let subnormal = _mm_sllv_epi32(_mm_set1_epi32(1 << 21), e);
    let is_subnormal = _mm_cmpgt_epi32(_mm_set1_epi32(2), e);
    _mm_castsi128_ps(_mm_blendv_epi8(normal, subnormal, is_subnormal))
}
