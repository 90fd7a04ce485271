//! Five-bit codes, shared by Q5_0 and Q5_1.

use bytemuck::{Pod, Zeroable};

use super::codes::Codes;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "aarch64")]
use super::codes::{halves, less};
#[cfg(target_arch = "x86_64")]
use super::codes::{halves_256, halves_512};
#[cfg(target_arch = "aarch64")]
use crate::simd::neon;

/// Codes plus `OFFSET`: the low four bits of code i and of code i + 16 in byte i, and the fifth bits of all codes as bits of one
/// number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FiveBits<const OFFSET: i8> {
    high: [[u8; 2]; 2],
    low: [u8; 16],
}

// SAFETY: bytes.
unsafe impl<const OFFSET: i8> Zeroable for FiveBits<OFFSET> {}
// SAFETY: bytes, without padding.
unsafe impl<const OFFSET: i8> Pod for FiveBits<OFFSET> {}

impl<const OFFSET: i8> FiveBits<OFFSET> {
    pub(crate) fn pack(codes: [u8; 32]) -> Self {
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
}

impl<const OFFSET: i8> Codes for FiveBits<OFFSET> {
    const OFFSET: i8 = OFFSET;
    const LARGEST: u8 = 31;

    #[inline]
    fn signed(&self) -> [i8; 32] {
        std::array::from_fn(|i| {
            let low = self.low[i % 16] >> (i / 16 * 4) & 15;
            let high = self.high[i / 16][i % 16 / 8] >> (i % 8) & 1;
            (low | high << 4) as i8 - OFFSET
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn unpack_512(blocks: [&Self; 4]) -> (__m512i, __m512i) {
        let fifth = |half: usize| {
            blocks.iter().enumerate().fold(0, |bits, (i, block)| {
                bits | u64::from(u16::from_le_bytes(block.high[half])) << (16 * i)
            })
        };
        let (first, second) = halves_512(blocks.map(|block| &block.low));
        let sixteen = _mm512_set1_epi8(16);
        (
            _mm512_mask_add_epi8(first, fifth(0), first, sixteen),
            _mm512_mask_add_epi8(second, fifth(1), second, sixteen),
        )
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_256(blocks: [&Self; 2]) -> (__m256i, __m256i) {
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
        let (first, second) = halves_256(blocks.map(|block| &block.low));
        (with(first, 0), with(second, 1))
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    fn unpack(&self) -> (int8x16_t, int8x16_t) {
        const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let with = |low, [a, b]: [u8; 2]| {
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let own = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));
                let set = vtstq_u8(own, neon::load(&BITS, 0));
                vorrq_u8(low, vandq_u8(set, vdupq_n_u8(16)))
            }
        };
        let (first, second) = halves(&self.low);
        (
            less::<OFFSET>(with(first, self.high[0])),
            less::<OFFSET>(with(second, self.high[1])),
        )
    }
}
