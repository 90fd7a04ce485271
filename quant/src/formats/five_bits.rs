//! Five-bit codes, shared by Q5_0 and Q5_1.

/// The low four bits of code i and of code i + 16 in byte i, and the fifth bits of all codes as bits of one number.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct FiveBits {
    high: [[u8; 2]; 2],
    low: [u8; 16],
}

impl FiveBits {
    pub(crate) fn pack(codes: [u8; 32]) -> FiveBits {
        let mut packed = FiveBits {
            high: [[0; 2]; 2],
            low: [0; 16],
        };
        for i in 0..16 {
            packed.low[i] = codes[i] & 15 | codes[i + 16] << 4;
            packed.high[0][i / 8] |= (codes[i] >> 4 & 1) << (i % 8);
            packed.high[1][i / 8] |= (codes[i + 16] >> 4 & 1) << (i % 8);
        }
        packed
    }

    /// The codes less `offset`.
    pub(crate) fn codes(&self, offset: i8) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..32 {
            let low = self.low[i % 16] >> (i / 16 * 4) & 15;
            let high = self.high[i / 16][i % 16 / 8] >> (i % 8) & 1;
            codes[i] = (low | high << 4) as i8 - offset;
        }
        codes
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::FiveBits;
    use crate::simd::avx512;

    /// The first and the second 16 codes of each of four blocks.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    pub(crate) fn four_blocks(blocks: [&FiveBits; 4]) -> (__m512i, __m512i) {
        let low = blocks.map(|block| {
            // SAFETY: the low bits are 16 bytes.
            unsafe { _mm_loadu_si128(block.low.as_ptr().cast()) }
        });
        let low = avx512::join(low[0], low[1], low[2], low[3]);
        let fifth = |half: usize| {
            blocks.iter().enumerate().fold(0, |bits, (i, block)| {
                bits | u64::from(u16::from_le_bytes(block.high[half])) << (16 * i)
            })
        };
        let (fifteen, sixteen) = (_mm512_set1_epi8(15), _mm512_set1_epi8(16));
        let first = _mm512_and_si512(low, fifteen);
        let second = _mm512_and_si512(_mm512_srli_epi16::<4>(low), fifteen);
        (
            _mm512_mask_add_epi8(first, fifth(0), first, sixteen),
            _mm512_mask_add_epi8(second, fifth(1), second, sixteen),
        )
    }

    /// The codes of two blocks.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) fn two_blocks(blocks: [&FiveBits; 2]) -> (__m256i, __m256i) {
        let [a, b] = blocks.map(|block| block.low.as_ptr().cast());
        // SAFETY: the low bits are 16 bytes.
        let low = unsafe { _mm256_loadu2_m128i(b, a) };
        let [a, b] = blocks.map(|block| _mm_set1_epi32(bytemuck::cast(block.high)));
        let high = _mm256_set_m128i(b, a);
        let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        // Byte i of a lane gets the bits of numbers 8 * (i / 8).. of its half.
        let place = |half| {
            _mm256_set_epi64x(
                ONES * (2 * half + 1),
                ONES * 2 * half,
                ONES * (2 * half + 1),
                ONES * 2 * half,
            )
        };
        const ONES: i64 = 0x0101_0101_0101_0101;
        let with = |low, half| {
            let own = _mm256_and_si256(_mm256_shuffle_epi8(high, place(half)), bits);
            let set = _mm256_cmpeq_epi8(own, bits);
            _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)))
        };
        let fifteen = _mm256_set1_epi8(15);
        (
            with(_mm256_and_si256(low, fifteen), 0),
            with(_mm256_and_si256(_mm256_srli_epi16::<4>(low), fifteen), 1),
        )
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm {
    use std::arch::aarch64::*;

    use super::FiveBits;
    use crate::simd::neon;

    impl FiveBits {
        /// The first and the second 16 codes.
        #[inline]
        pub(crate) fn unpack(&self) -> (int8x16_t, int8x16_t) {
            const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
            let low = neon::load(&self.low, 0);
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let with = |low, [a, b]: [u8; 2]| {
                    let own = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));
                    let set = vtstq_u8(own, neon::load(&BITS, 0));
                    vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(set, vdupq_n_u8(16))))
                };
                (
                    with(vandq_u8(low, vdupq_n_u8(15)), self.high[0]),
                    with(vshrq_n_u8::<4>(low), self.high[1]),
                )
            }
        }
    }
}
