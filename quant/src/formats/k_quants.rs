//! Shared by the K formats: packed 6-bit scales, and encoding with minima.

use super::Half;
use super::fit::{self, Lanes, Spacings, nearest_int};
use super::importance::{self, mean_square};

/// Codes per scale and minimum in Q4_K and Q5_K.
pub(crate) const SUB: usize = 32;

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
///
/// ```text
/// bytes 0..4   scale j in bits 0..6; bits 4..6 of scale j + 4 in bits 6..8
/// bytes 4..8   minimum j likewise
/// bytes 8..12  bits 0..4 of scale j + 4; bits 0..4 of minimum j + 4
/// ```
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct PackedScales([u8; 12]);

impl PackedScales {
    pub(crate) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> PackedScales {
        let mut packed = [0; 12];
        for j in 0..4 {
            packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
            packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
            packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
        }
        PackedScales(packed)
    }

    /// Returns the scales and the minima, the first of each in the lowest byte.
    #[inline]
    pub(crate) fn unpack(&self) -> (u64, u64) {
        const LOW6: u32 = 0x3f3f_3f3f;
        const LOW4: u32 = 0x0f0f_0f0f;
        const HIGH2: u32 = 0x3030_3030;
        let [a, b, c] = bytemuck::cast::<_, [[u8; 4]; 3]>(self.0).map(u32::from_le_bytes);
        let scales = u64::from(a & LOW6) | u64::from(c & LOW4 | a >> 2 & HIGH2) << 32;
        let mins = u64::from(b & LOW6) | u64::from(c >> 4 & LOW4 | b >> 2 & HIGH2) << 32;
        (scales, mins)
    }
}

/// Scales and minima of the eight sub-blocks of a super-block, rounded to 6 bits under one f16 scale for the scales and one for the minima,
/// with the codes.
pub(crate) struct SuperBlock {
    pub(crate) d: Half,
    pub(crate) dmin: Half,
    pub(crate) packed: PackedScales,
    pub(crate) codes: [[u8; SUB]; 8],
}

/// Encodes the eight sub-blocks of a super-block of Q4_K or Q5_K. Numbers of large magnitude weigh more, because inputs multiply them; with
/// an importance matrix, numbers with large inputs weigh more too. `spacings` are tried only without one.
pub(crate) fn fit_super_block(
    x: &[f32; 256],
    importance: Option<&[f32; 256]>,
    spacings: Spacings,
) -> SuperBlock {
    let columns: [Lanes; SUB] = fit::columns(x);
    let (fit, [(d, scales), (dmin, mins)]) = if let Some(importance) = importance {
        let weights = importance::weights(&columns, importance, Lanes::all(2.0 * mean_square(x)));
        let spacings = importance::spacings(spacings.max_code);
        let fit = fit::fit_affine::<SUB, false>(&columns, &weights, spacings);
        let sums = importance::sums(&weights).0;
        let round = |values: Lanes| importance::fit_scales(&values.0, &sums, 63);
        let rounded = [round(fit.scale), round(fit.min)];
        (fit, rounded)
    } else {
        let squares = importance::sums(&fit::squares(&columns));
        let typical = (squares / Lanes::all(SUB as f32)).map(f32::sqrt);
        let weights = columns.map(|x| typical + x.map(f32::abs));
        let fit = fit::fit_affine::<SUB, false>(&columns, &weights, spacings);
        let rounded = [round_to_6_bits(fit.scale.0), round_to_6_bits(fit.min.0)];
        (fit, rounded)
    };
    let mut codes = [[0; SUB]; 8];
    for (j, x) in x.as_chunks::<SUB>().0.iter().enumerate() {
        let scale = d.to_f32() * f32::from(scales[j]);
        let min = dmin.to_f32() * f32::from(mins[j]);
        codes[j] = if scale == 0.0 {
            fit.codes_of(j)
        } else {
            x.map(|x| nearest_int((x + min) / scale).clamp(0, spacings.max_code.into()) as u8)
        };
    }
    SuperBlock {
        d,
        dmin,
        packed: PackedScales::pack(&scales, &mins),
        codes,
    }
}

fn round_to_6_bits(values: [f32; 8]) -> (Half, [u8; 8]) {
    let max = values
        .into_iter()
        .fold(0.0, |max, value| if value > max { value } else { max });
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    // A negative value becomes the largest code, as in ggml.
    let codes = values.map(|value| (nearest_int(inverse * value) as u8).min(63));
    (Half::from_f32(max / 63.0), codes)
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::PackedScales;
    use crate::formats::Half;
    use crate::simd::avx2;
    use crate::simd::avx512::{SPREAD, constant};

    /// Scales and minima of the eight sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct EightLines {
        pub(crate) scales: __m256,
        pub(crate) mins: __m256,
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(crate) fn eight_lines(d: &Half, dmin: &Half, packed: &PackedScales) -> EightLines {
        let (scales, mins) = packed.unpack();
        let floats =
            |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
        EightLines {
            scales: _mm256_mul_ps(floats(scales), _mm256_set1_ps(avx2::half(d.bits()))),
            mins: _mm256_mul_ps(floats(mins), _mm256_set1_ps(avx2::half(dmin.bits()))),
        }
    }

    /// Like [`eight_lines`], in one register: the scales in the low half, the minima in the high half.
    #[target_feature(enable = "avx512f,f16c")]
    #[inline]
    pub(crate) fn eight_lines_512(d: &Half, dmin: &Half, packed: &PackedScales) -> __m512 {
        const HALVES: [i32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
        let (scales, mins) = packed.unpack();
        let codes = _mm512_cvtepu8_epi32(_mm_set_epi64x(mins as i64, scales as i64));
        let units = u32::from(d.bits()) | u32::from(dmin.bits()) << 16;
        let units = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_cvtsi32_si128(units as i32)));
        _mm512_mul_ps(
            _mm512_cvtepi32_ps(codes),
            _mm512_permutexvar_ps(constant(&HALVES), units),
        )
    }

    /// Scales and minima of eight blocks of 32, from the bits of their scales and of their `m`, the negated minima.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(crate) fn lines_of_blocks(lines: [[u16; 2]; 8]) -> EightLines {
        let [a, b, c, d, e, f, g, h] =
            lines.map(|[scale, low]| (u32::from(scale) | u32::from(low) << 16) as i32);
        let (first, last) = (_mm_setr_epi32(a, b, c, d), _mm_setr_epi32(e, f, g, h));
        let scale_bits = _mm_set1_epi32(0xffff);
        let scales = _mm_packus_epi32(
            _mm_and_si128(first, scale_bits),
            _mm_and_si128(last, scale_bits),
        );
        let lows = _mm_packus_epi32(_mm_srli_epi32::<16>(first), _mm_srli_epi32::<16>(last));
        EightLines {
            scales: _mm256_cvtph_ps(scales),
            mins: _mm256_xor_ps(_mm256_cvtph_ps(lows), _mm256_set1_ps(-0.0)),
        }
    }

    /// For each byte of a group's register, the bit that belongs to its 128-bit lane.
    const BITS: [[u8; 64]; 2] = {
        let mut bits = [[0; 64]; 2];
        let mut i = 0;
        while i < 128 {
            bits[i / 64][i % 64] = 1 << (i / 16);
            i += 1;
        }
        bits
    };

    /// Returns masks of the set bits for the first and the last 16 numbers of the four runs of a group: bit j of byte i is that of number i
    /// in run j of eight.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    #[inline]
    pub(crate) fn high_bits_512(high: &[u8; 32], group: usize) -> (__mmask64, __mmask64) {
        let bits = constant(&BITS[group]);
        let set = |half: &[u8]| {
            // SAFETY: half of 32 bytes.
            let bytes = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            _mm512_test_epi8_mask(_mm512_broadcast_i32x4(bytes), bits)
        };
        (set(&high[..16]), set(&high[16..]))
    }

    /// Like [`high_bits_512`] for the two runs of a pair: `value` in the bytes whose bit is set, zero in the others.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) fn high_bits_256(high: &[u8; 32], pair: usize, value: i8) -> (__m256i, __m256i) {
        let (even, odd) = (1i8 << (2 * pair), 2u8.wrapping_shl(2 * pair as u32) as i8);
        let bits = _mm256_set_m128i(_mm_set1_epi8(odd), _mm_set1_epi8(even));
        let set = |half: &[u8]| {
            // SAFETY: half of 32 bytes.
            let bytes = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            let own = _mm256_and_si256(_mm256_broadcastsi128_si256(bytes), bits);
            _mm256_and_si256(_mm256_cmpeq_epi8(own, bits), _mm256_set1_epi8(value))
        };
        (set(&high[..16]), set(&high[16..]))
    }

    /// Returns the first and the last 16 codes of four runs of 32. Bits `2 * j..2 * j + 2` of byte i are code i of run j.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
    #[inline]
    pub(crate) fn two_bits_512(runs: &[u8; 32]) -> (__m512i, __m512i) {
        let right = constant(&RIGHT);
        let codes = |half: &[u8]| {
            // SAFETY: half of 32 bytes.
            let bytes = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            let codes = _mm512_srlv_epi32(_mm512_broadcast_i32x4(bytes), right);
            _mm512_and_si512(codes, _mm512_set1_epi8(3))
        };
        (codes(&runs[..16]), codes(&runs[16..]))
    }

    /// How far each 128-bit lane is shifted right to bring its two bits to the bottom.
    const RIGHT: [i32; 16] = [0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6];

    /// Like [`two_bits_512`], for runs `2 * upper` and `2 * upper + 1`.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) fn two_bits_256(runs: &[u8; 32], upper: usize) -> (__m256i, __m256i) {
        let right = _mm256_add_epi64(
            _mm256_set_epi64x(2, 2, 0, 0),
            _mm256_set1_epi64x(4 * upper as i64),
        );
        let codes = |half: &[u8]| {
            // SAFETY: half of 32 bytes.
            let bytes = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            let codes = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes), right);
            _mm256_and_si256(codes, _mm256_set1_epi8(3))
        };
        (codes(&runs[..16]), codes(&runs[16..]))
    }

    /// For each f32 lane, the index of its scale among sixteen: `PLACES[2 * group + half]`.
    const PLACES: [[i32; 16]; 4] = {
        let mut places = [[0; 16]; 4];
        let mut i = 0;
        while i < 64 {
            places[i / 16][i % 16] = (8 * (i / 32) + i / 16 % 2 + 2 * (i % 16 / 4)) as i32;
            i += 1;
        }
        places
    };

    /// Selects, from the scales of sixteen sub-blocks of 16, those of the first and of the last halves of the four runs of a group. Each is
    /// broadcast to one 128-bit lane.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn half_scales_512(scales: __m512, group: usize) -> (__m512, __m512) {
        (
            _mm512_permutexvar_ps(constant(&PLACES[2 * group]), scales),
            _mm512_permutexvar_ps(constant(&PLACES[2 * group + 1]), scales),
        )
    }

    /// Like [`half_scales_512`], for the two runs of a pair.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) fn half_scales_256(scales: [__m256; 2], pair: usize) -> (__m256, __m256) {
        let places = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
        let places = _mm256_add_epi32(places, _mm256_set1_epi32(4 * (pair % 2) as i32));
        let next = _mm256_add_epi32(places, _mm256_set1_epi32(1));
        (
            _mm256_permutevar8x32_ps(scales[pair / 2], places),
            _mm256_permutevar8x32_ps(scales[pair / 2], next),
        )
    }

    /// Selects the four scales of a group from eight and broadcasts each to one 128-bit lane.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn spread(scales: __m512, group: usize) -> __m512 {
        let places = _mm512_add_epi32(constant(&SPREAD), _mm512_set1_epi32(4 * group as i32));
        _mm512_permutexvar_ps(places, scales)
    }

    impl EightLines {
        /// Broadcasts each of the four scales of a group to one 128-bit lane.
        #[target_feature(enable = "avx512f")]
        #[inline]
        pub(crate) fn spread(self, group: usize) -> __m512 {
            spread(_mm512_castps256_ps512(self.scales), group)
        }

        /// Broadcasts each of the two scales of a pair to one 128-bit lane.
        #[target_feature(enable = "avx2")]
        #[inline]
        pub(crate) fn spread_pair(self, pair: usize) -> __m256 {
            let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
            let places = _mm256_add_epi32(lanes, _mm256_set1_epi32(2 * pair as i32));
            _mm256_permutevar8x32_ps(self.scales, places)
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm {
    use std::arch::aarch64::*;

    use super::PackedScales;
    use crate::formats::Half;
    use crate::simd::neon;

    /// Scales and minima of the eight sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct EightLines {
        pub(crate) scales: [f32; 8],
        pub(crate) mins: [float32x4_t; 2],
    }

    #[inline]
    pub(crate) fn eight_lines(d: &Half, dmin: &Half, packed: &PackedScales) -> EightLines {
        let (scales, mins) = packed.unpack();
        let (d, dmin) = (neon::half(d.bits()), neon::half(dmin.bits()));
        let mins = mins.to_le_bytes().map(|min| dmin * f32::from(min));
        EightLines {
            scales: scales.to_le_bytes().map(|scale| d * f32::from(scale)),
            // SAFETY: eight floats.
            mins: unsafe { [vld1q_f32(mins.as_ptr()), vld1q_f32(mins.as_ptr().add(4))] },
        }
    }

    /// Returns bits `2 * run..2 * run + 2` of the first and of the last 16 of 32 bytes.
    #[inline]
    pub(crate) fn two_bits(bytes: &[u8; 32], run: usize) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: NEON is part of the architecture.
        unsafe {
            let right = vdupq_n_s8(-2 * run as i8);
            let bits = |bytes| vandq_u8(vshlq_u8(bytes, right), vdupq_n_u8(3));
            (bits(neon::load(bytes, 0)), bits(neon::load(bytes, 1)))
        }
    }

    /// Returns the low halves (`half` 0) or the high halves (`half` 1) of 32 bytes.
    #[inline]
    pub(crate) fn nibbles(run: &[u8; 32], half: usize) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: NEON is part of the architecture.
        unsafe {
            let right = vdupq_n_s8(-4 * half as i8);
            let nibble = |bytes| vandq_u8(vshlq_u8(bytes, right), vdupq_n_u8(15));
            (nibble(neon::load(run, 0)), nibble(neon::load(run, 1)))
        }
    }
}
