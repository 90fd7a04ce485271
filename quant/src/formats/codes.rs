//! Codes of blocks of 32 numbers: how they are packed, apart from the scale of a block ([`Scaled`](super::scaled::Scaled),
//! [`Affine`](super::affine::Affine)).

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use crate::simd::avx512;
#[cfg(target_arch = "aarch64")]
use crate::simd::neon;

/// 32 packed codes. Vectors hold the first and the last 16 of a block.
pub(crate) trait Codes: Pod {
    /// Added to signed codes to make them unsigned.
    const OFFSET: i8;
    /// The largest unsigned code, if it is below 64.
    const LARGEST: u8 = 63;
    /// Whether [`Codes::unpack_256`] gives signed codes, because unsigned ones may exceed 63.
    const SIGNED: bool = false;
    /// Whether unpacking looks values up, by shuffles: then scales had better not be shuffled too.
    #[cfg(target_arch = "x86_64")]
    const LOOKS_UP: bool = false;

    /// The signed codes.
    fn signed(&self) -> [i8; 32];

    /// The unsigned codes of four blocks, a 128-bit lane each.
    ///
    /// # Safety
    /// The CPU has AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_512(blocks: [&Self; 4]) -> (__m512i, __m512i);

    /// The codes of two blocks, a 128-bit lane each.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_256(blocks: [&Self; 2]) -> (__m256i, __m256i);

    /// The signed codes of a block.
    #[cfg(target_arch = "aarch64")]
    fn unpack(&self) -> (int8x16_t, int8x16_t);
}

/// Four-bit codes plus `OFFSET`: the low halves of the bytes are codes 0..16, the high halves codes 16..32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Nibbles<const OFFSET: i8>(pub(crate) [u8; 16]);

// SAFETY: bytes.
unsafe impl<const OFFSET: i8> Zeroable for Nibbles<OFFSET> {}
// SAFETY: bytes.
unsafe impl<const OFFSET: i8> Pod for Nibbles<OFFSET> {}

impl<const OFFSET: i8> Nibbles<OFFSET> {
    pub(crate) fn pack(codes: [u8; 32]) -> Self {
        Nibbles(std::array::from_fn(|i| codes[i] | codes[i + 16] << 4))
    }
}

impl<const OFFSET: i8> Codes for Nibbles<OFFSET> {
    const OFFSET: i8 = OFFSET;
    const LARGEST: u8 = 15;

    #[inline]
    fn signed(&self) -> [i8; 32] {
        std::array::from_fn(|i| (self.0[i % 16] >> (i / 16 * 4) & 15) as i8 - OFFSET)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn unpack_512(blocks: [&Self; 4]) -> (__m512i, __m512i) {
        halves_512(blocks.map(|block| &block.0))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_256(blocks: [&Self; 2]) -> (__m256i, __m256i) {
        halves_256(blocks.map(|block| &block.0))
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    fn unpack(&self) -> (int8x16_t, int8x16_t) {
        let (first, second) = halves(&self.0);
        (less::<OFFSET>(first), less::<OFFSET>(second))
    }
}

/// The low and the high halves of the bytes of four blocks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn halves_512(blocks: [&[u8; 16]; 4]) -> (__m512i, __m512i) {
    // SAFETY: 16 bytes each.
    let [a, b, c, d] = blocks.map(|bytes| unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) });
    split_512(avx512::join(a, b, c, d))
}

/// The low and the high halves of bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn split_512(bytes: __m512i) -> (__m512i, __m512i) {
    let (low, high) = (_mm512_set1_epi8(15), _mm512_srli_epi16::<4>(bytes));
    (_mm512_and_si512(bytes, low), _mm512_and_si512(high, low))
}

/// The low and the high halves of the bytes of two blocks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn halves_256([a, b]: [&[u8; 16]; 2]) -> (__m256i, __m256i) {
    // SAFETY: 16 bytes each.
    split_256(unsafe { _mm256_loadu2_m128i(b.as_ptr().cast(), a.as_ptr().cast()) })
}

/// The low and the high halves of bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn split_256(bytes: __m256i) -> (__m256i, __m256i) {
    let (low, high) = (_mm256_set1_epi8(15), _mm256_srli_epi16::<4>(bytes));
    (_mm256_and_si256(bytes, low), _mm256_and_si256(high, low))
}

/// The low and the high halves of sixteen bytes.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) fn halves(bytes: &[u8; 16]) -> (uint8x16_t, uint8x16_t) {
    let bytes = neon::load(bytes, 0);
    // SAFETY: NEON is part of the architecture.
    unsafe { (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)) }
}

/// Unsigned codes less their offset.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) fn less<const OFFSET: i8>(codes: uint8x16_t) -> int8x16_t {
    // SAFETY: NEON is part of the architecture.
    unsafe { vsubq_s8(vreinterpretq_s8_u8(codes), vdupq_n_s8(OFFSET)) }
}

/// Signed bytes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct SignedBytes(pub(crate) [i8; 32]);

impl Codes for SignedBytes {
    // Adding 128 flips the sign bit.
    const OFFSET: i8 = -128;
    const SIGNED: bool = true;

    #[inline]
    fn signed(&self) -> [i8; 32] {
        self.0
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn unpack_512([a, b, c, d]: [&Self; 4]) -> (__m512i, __m512i) {
        let half = |block: &SignedBytes, half: usize| {
            // SAFETY: 32 bytes.
            unsafe { _mm_loadu_si128(block.0.as_ptr().cast::<__m128i>().add(half)) }
        };
        let sign = _mm512_set1_epi8(-128);
        let first = avx512::join(half(a, 0), half(b, 0), half(c, 0), half(d, 0));
        let second = avx512::join(half(a, 1), half(b, 1), half(c, 1), half(d, 1));
        (
            _mm512_xor_si512(first, sign),
            _mm512_xor_si512(second, sign),
        )
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_256(blocks: [&Self; 2]) -> (__m256i, __m256i) {
        let [a, b] = blocks.map(|block| block.0.as_ptr().cast::<__m128i>());
        // SAFETY: 32 bytes each.
        unsafe {
            (
                _mm256_loadu2_m128i(b, a),
                _mm256_loadu2_m128i(b.add(1), a.add(1)),
            )
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    fn unpack(&self) -> (int8x16_t, int8x16_t) {
        // SAFETY: 32 bytes.
        unsafe { (vld1q_s8(self.0.as_ptr()), vld1q_s8(self.0.as_ptr().add(16))) }
    }
}

/// Sixteen values that four-bit codes select.
pub(crate) trait Table: Copy + 'static {
    /// The values.
    const VALUES: [i8; 16];
    /// As in [`Codes`].
    const OFFSET: i8;
    /// As in [`Codes`].
    const SIGNED: bool;
    /// The values, made unsigned by adding the offset.
    #[cfg(target_arch = "x86_64")]
    const UNSIGNED: [i8; 16] = {
        let mut values = Self::VALUES;
        let mut i = 0;
        while i < 16 {
            values[i] = values[i].wrapping_add(Self::OFFSET);
            i += 1;
        }
        values
    };
}

/// Four-bit codes of the values of a table, packed as [`Nibbles`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Lookup<T>([u8; 16], PhantomData<T>);

// SAFETY: bytes; the marker has no size.
unsafe impl<T: Table> Zeroable for Lookup<T> {}
// SAFETY: bytes; the marker has no size.
unsafe impl<T: Table> Pod for Lookup<T> {}

impl<T: Table> Lookup<T> {
    pub(crate) fn pack(codes: [u8; 32]) -> Self {
        let nibbles = Nibbles::<0>::pack(codes);
        Lookup(nibbles.0, PhantomData)
    }
}

impl<T: Table> Codes for Lookup<T> {
    const OFFSET: i8 = T::OFFSET;
    const SIGNED: bool = T::SIGNED;
    #[cfg(target_arch = "x86_64")]
    const LOOKS_UP: bool = true;

    #[inline]
    fn signed(&self) -> [i8; 32] {
        std::array::from_fn(|i| T::VALUES[usize::from(self.0[i % 16] >> (i / 16 * 4) & 15)])
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    unsafe fn unpack_512(blocks: [&Self; 4]) -> (__m512i, __m512i) {
        look_up_512(&T::UNSIGNED, halves_512(blocks.map(|block| &block.0)))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn unpack_256(blocks: [&Self; 2]) -> (__m256i, __m256i) {
        let table = if T::SIGNED { &T::VALUES } else { &T::UNSIGNED };
        look_up_256(table, halves_256(blocks.map(|block| &block.0)))
    }

    #[cfg(target_arch = "aarch64")]
    #[inline]
    fn unpack(&self) -> (int8x16_t, int8x16_t) {
        let (first, second) = halves(&self.0);
        // SAFETY: NEON is part of the architecture; sixteen values.
        unsafe {
            let values = vld1q_s8(T::VALUES.as_ptr());
            (vqtbl1q_s8(values, first), vqtbl1q_s8(values, second))
        }
    }
}

/// The values of codes, one in each byte.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn look_up_512(
    values: &'static [i8; 16],
    (first, second): (__m512i, __m512i),
) -> (__m512i, __m512i) {
    // SAFETY: sixteen bytes.
    let values = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
    (
        _mm512_shuffle_epi8(values, first),
        _mm512_shuffle_epi8(values, second),
    )
}

/// The values of codes, one in each byte.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn look_up_256(
    values: &'static [i8; 16],
    (first, second): (__m256i, __m256i),
) -> (__m256i, __m256i) {
    // SAFETY: sixteen bytes.
    let values = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(values.as_ptr().cast()) });
    (
        _mm256_shuffle_epi8(values, first),
        _mm256_shuffle_epi8(values, second),
    )
}
