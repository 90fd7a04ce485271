//! Registers for unpacking codes, so that a format defines its unpacking once for all CPUs: a 128-bit lane for each of N blocks.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Sixteen bytes of each of N blocks. Values exist only on CPUs that have the instructions, so all functions but `load` are safe.
pub(crate) trait Register<const N: usize>: Copy {
    /// Loads sixteen bytes of each block.
    ///
    /// # Safety
    /// The CPU must have the level's instructions.
    unsafe fn load(blocks: [[u8; 16]; N]) -> Self;
    /// Clears the bits of each byte that are not set in `mask`.
    fn and(self, mask: u8) -> Self;
    /// Combines the bits of both registers.
    fn or(self, other: Self) -> Self;
    /// Subtracts `number` from each byte, modulo 256.
    fn minus(self, number: u8) -> Self;
    /// Shifts towards lower bits; bits of a neighbouring byte may enter a byte from above.
    fn right<const BITS: i32>(self) -> Self;
    /// Shifts towards higher bits; bits of a neighbouring byte may enter a byte from below.
    fn left<const BITS: i32>(self) -> Self;
    /// Adds `number` to the bytes whose bit is set in the lower (`HALF` 0) or upper (`HALF` 1) sixteen bits of `bits`.
    fn plus_where<const HALF: usize>(self, bits: [&[u8; 4]; N], number: u8) -> Self;
    /// Replaces bytes below sixteen with the values that they index.
    fn look_up(self, values: &'static [i8; 16]) -> Self;

    /// Splits each byte into its low and its high half.
    #[inline(always)]
    fn nibbles(self) -> (Self, Self) {
        (self.and(15), self.right::<4>().and(15))
    }
}

/// Returns the lower or the upper sixteen bits.
#[inline(always)]
fn half_of<const HALF: usize>(bits: &[u8; 4]) -> u16 {
    u16::from_le_bytes([bits[2 * HALF], bits[2 * HALF + 1]])
}

/// The scalar counterpart.
impl Register<1> for [u8; 16] {
    #[inline(always)]
    unsafe fn load([block]: [[u8; 16]; 1]) -> Self {
        block
    }

    #[inline(always)]
    fn and(self, mask: u8) -> Self {
        self.map(|byte| byte & mask)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] | other[i])
    }

    #[inline(always)]
    fn minus(self, number: u8) -> Self {
        self.map(|byte| byte.wrapping_sub(number))
    }

    #[inline(always)]
    fn right<const BITS: i32>(self) -> Self {
        self.map(|byte| byte >> BITS)
    }

    #[inline(always)]
    fn left<const BITS: i32>(self) -> Self {
        self.map(|byte| byte << BITS)
    }

    #[inline(always)]
    fn plus_where<const HALF: usize>(self, [bits]: [&[u8; 4]; 1], number: u8) -> Self {
        let bits = half_of::<HALF>(bits);
        std::array::from_fn(|i| self[i].wrapping_add((bits >> i & 1) as u8 * number))
    }

    #[inline(always)]
    fn look_up(self, values: &'static [i8; 16]) -> Self {
        self.map(|code| values[usize::from(code % 16)] as u8)
    }
}

/// Two blocks.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256i);

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The register.
    #[inline(always)]
    pub(crate) fn register(self) -> __m256i {
        self.0
    }
}

// SAFETY of all functions below: the caller of `load` has checked that the CPU has AVX2.
#[cfg(target_arch = "x86_64")]
impl Register<2> for Avx2 {
    #[inline(always)]
    unsafe fn load([a, b]: [[u8; 16]; 2]) -> Self {
        // SAFETY: sixteen bytes per load, and AVX2.
        Avx2(unsafe { _mm256_loadu2_m128i(b.as_ptr().cast(), a.as_ptr().cast()) })
    }

    #[inline(always)]
    fn and(self, mask: u8) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_and_si256(self.0, _mm256_set1_epi8(mask as i8)) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn minus(self, number: u8) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_sub_epi8(self.0, _mm256_set1_epi8(number as i8)) })
    }

    #[inline(always)]
    fn right<const BITS: i32>(self) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_srli_epi16::<BITS>(self.0) })
    }

    #[inline(always)]
    fn left<const BITS: i32>(self) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_slli_epi16::<BITS>(self.0) })
    }

    #[inline(always)]
    fn plus_where<const HALF: usize>(self, bits: [&[u8; 4]; 2], number: u8) -> Self {
        const ONES: i64 = 0x0101_0101_0101_0101;
        // SAFETY: AVX2.
        unsafe {
            let [a, b] = bits.map(|bits| _mm_set1_epi32(i32::from_le_bytes(*bits)));
            // Byte i of a lane gets the eight bits that contain its own.
            let first = 2 * HALF as i64;
            let eights = _mm_set_epi64x(ONES * (first + 1), ONES * first);
            let bits =
                _mm256_shuffle_epi8(_mm256_set_m128i(b, a), _mm256_set_m128i(eights, eights));
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, own), own);
            let number = _mm256_and_si256(is_set, _mm256_set1_epi8(number as i8));
            Avx2(_mm256_add_epi8(self.0, number))
        }
    }

    #[inline(always)]
    fn look_up(self, values: &'static [i8; 16]) -> Self {
        // SAFETY: AVX2, and sixteen bytes.
        unsafe {
            let values = _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()));
            Avx2(_mm256_shuffle_epi8(values, self.0))
        }
    }
}

/// Four blocks.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512i);

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// Loads four adjacent blocks.
    ///
    /// # Safety
    /// The CPU has AVX-512 F and BW.
    #[inline(always)]
    pub(crate) unsafe fn load_adjacent(blocks: &[u8; 64]) -> Self {
        // SAFETY: 64 bytes, and AVX-512.
        Avx512(unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) })
    }

    /// The register.
    #[inline(always)]
    pub(crate) fn register(self) -> __m512i {
        self.0
    }
}

// SAFETY of all functions below: the caller of `load` has checked that the CPU has AVX-512 F and BW.
#[cfg(target_arch = "x86_64")]
impl Register<4> for Avx512 {
    #[inline(always)]
    unsafe fn load(blocks: [[u8; 16]; 4]) -> Self {
        // SAFETY: sixteen bytes per load, and AVX-512.
        unsafe {
            let [a, b, c, d] = blocks.map(|block| _mm_loadu_si128(block.as_ptr().cast()));
            Avx512(super::avx512::join(a, b, c, d))
        }
    }

    #[inline(always)]
    fn and(self, mask: u8) -> Self {
        // SAFETY: AVX-512.
        Avx512(unsafe { _mm512_and_si512(self.0, _mm512_set1_epi8(mask as i8)) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: AVX-512.
        Avx512(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn minus(self, number: u8) -> Self {
        // SAFETY: AVX-512.
        Avx512(unsafe { _mm512_sub_epi8(self.0, _mm512_set1_epi8(number as i8)) })
    }

    #[inline(always)]
    fn right<const BITS: i32>(self) -> Self {
        // SAFETY: AVX-512. This form takes the count in a register, since the immediate of the other intrinsic is unsigned.
        Avx512(unsafe { _mm512_srl_epi16(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn left<const BITS: i32>(self) -> Self {
        // SAFETY: AVX-512. This form takes the count in a register, since the immediate of the other intrinsic is unsigned.
        Avx512(unsafe { _mm512_sll_epi16(self.0, _mm_cvtsi32_si128(BITS)) })
    }

    #[inline(always)]
    fn plus_where<const HALF: usize>(self, bits: [&[u8; 4]; 4], number: u8) -> Self {
        let halves = bits.map(|bits| u64::from(half_of::<HALF>(bits)));
        let bits = (halves.iter().enumerate()).fold(0, |bits, (i, half)| bits | half << (16 * i));
        // SAFETY: AVX-512.
        Avx512(unsafe {
            _mm512_mask_add_epi8(self.0, bits, self.0, _mm512_set1_epi8(number as i8))
        })
    }

    #[inline(always)]
    fn look_up(self, values: &'static [i8; 16]) -> Self {
        // SAFETY: AVX-512, and sixteen bytes.
        unsafe {
            let values = _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast()));
            Avx512(_mm512_shuffle_epi8(values, self.0))
        }
    }
}

/// One block.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy)]
pub(crate) struct Neon(uint8x16_t);

#[cfg(target_arch = "aarch64")]
impl Neon {
    /// The register.
    #[inline(always)]
    pub(crate) fn register(self) -> int8x16_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vreinterpretq_s8_u8(self.0) }
    }
}

// SAFETY of all functions below: NEON is part of the architecture.
#[cfg(target_arch = "aarch64")]
impl Register<1> for Neon {
    #[inline(always)]
    unsafe fn load([block]: [[u8; 16]; 1]) -> Self {
        // SAFETY: sixteen bytes.
        Neon(unsafe { vld1q_u8(block.as_ptr()) })
    }

    #[inline(always)]
    fn and(self, mask: u8) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vandq_u8(self.0, vdupq_n_u8(mask)) })
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vorrq_u8(self.0, other.0) })
    }

    #[inline(always)]
    fn minus(self, number: u8) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vsubq_u8(self.0, vdupq_n_u8(number)) })
    }

    #[inline(always)]
    fn right<const BITS: i32>(self) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vshrq_n_u8::<BITS>(self.0) })
    }

    #[inline(always)]
    fn left<const BITS: i32>(self) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vshlq_n_u8::<BITS>(self.0) })
    }

    #[inline(always)]
    fn plus_where<const HALF: usize>(self, [bits]: [&[u8; 4]; 1], number: u8) -> Self {
        const OWN: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        let [low, high] = half_of::<HALF>(bits).to_le_bytes();
        // SAFETY: NEON, and sixteen bytes.
        unsafe {
            let bits = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
            let is_set = vtstq_u8(bits, vld1q_u8(OWN.as_ptr()));
            Neon(vaddq_u8(self.0, vandq_u8(is_set, vdupq_n_u8(number))))
        }
    }

    #[inline(always)]
    fn look_up(self, values: &'static [i8; 16]) -> Self {
        // SAFETY: NEON, and sixteen bytes.
        unsafe {
            let values = vld1q_u8(values.as_ptr().cast());
            Neon(vqtbl1q_u8(values, self.0))
        }
    }
}
