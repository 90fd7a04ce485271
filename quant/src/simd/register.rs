//! Registers for unpacking codes, so that a format defines its unpacking once for all CPUs: a 128-bit lane for each of N blocks.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Sixteen bytes of each of N blocks. Values exist only on CPUs that have the instructions, so all functions but `load` are safe.
pub(crate) trait Register<const N: usize>: Copy {
    /// Loads sixteen bytes of each block.
    ///
    /// # Safety
    /// The CPU must have the level's instructions.
    unsafe fn load(blocks: [[u8; 16]; N]) -> Self;
    /// Loads two words, the lower first, as sixteen bytes of each block.
    ///
    /// # Safety
    /// As for [`Register::load`].
    unsafe fn words(blocks: [[u64; 2]; N]) -> Self;
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
    /// Shifts each block towards lower bits by its own count; bits of a neighbouring byte may enter a byte from above.
    fn right_each(self, counts: [u32; N]) -> Self;
    /// Multiplies bytes, modulo 256.
    fn times(self, other: Self) -> Self;
    /// Negates the bytes whose byte in `mask` is 255, modulo 256; the other bytes of `mask` are zero.
    fn negate_where(self, mask: Self) -> Self;
    /// Returns the upper eight bits of three times each byte: 0, 1 or 2.
    fn triple_high(self) -> Self;
    /// Returns the first eight bytes of both registers' blocks, and the last eight bytes of both.
    fn join_halves(self, other: Self) -> (Self, Self);
    /// Unpacks sixteen 2-bit numbers of each block, the lowest bits of a byte first.
    ///
    /// # Safety
    /// As for [`Register::load`].
    unsafe fn two_bits(blocks: [[u8; 4]; N]) -> Self;

    /// Splits each byte into its low and its high half.
    #[inline(always)]
    fn nibbles(self) -> (Self, Self) {
        (self.and(15), self.right::<4>().and(15))
    }
}

/// Returns the lower or the upper sixteen bits.
#[inline(always)]
pub(super) fn half_of<const HALF: usize>(bits: &[u8; 4]) -> u16 {
    u16::from_le_bytes([bits[2 * HALF], bits[2 * HALF + 1]])
}

/// The scalar counterpart.
impl Register<1> for [u8; 16] {
    #[inline(always)]
    unsafe fn load([block]: [[u8; 16]; 1]) -> Self {
        block
    }

    #[inline(always)]
    unsafe fn words([block]: [[u64; 2]; 1]) -> Self {
        bytemuck::cast(block.map(u64::to_le))
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

    #[inline(always)]
    fn right_each(self, [count]: [u32; 1]) -> Self {
        self.map(|byte| byte >> count)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_mul(other[i]))
    }

    #[inline(always)]
    fn negate_where(self, mask: Self) -> Self {
        std::array::from_fn(|i| (self[i] ^ mask[i]).wrapping_sub(mask[i]))
    }

    #[inline(always)]
    fn triple_high(self) -> Self {
        self.map(|byte| ((u16::from(byte) * 3) >> 8) as u8)
    }

    #[inline(always)]
    fn join_halves(self, other: Self) -> (Self, Self) {
        let join = |from: usize| std::array::from_fn(|i| [self, other][i / 8][from + i % 8]);
        (join(0), join(8))
    }

    #[inline(always)]
    unsafe fn two_bits([block]: [[u8; 4]; 1]) -> Self {
        std::array::from_fn(|i| block[i / 4] >> (2 * (i % 4)) & 3)
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
    unsafe fn words([[a, b], [c, d]]: [[u64; 2]; 2]) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64) })
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

    #[inline(always)]
    fn right_each(self, counts: [u32; 2]) -> Self {
        // SAFETY: AVX2.
        unsafe {
            let [a, b] = counts.map(i64::from);
            Avx2(_mm256_srlv_epi64(self.0, _mm256_set_epi64x(b, b, a, a)))
        }
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        // SAFETY: AVX2.
        unsafe {
            let low = _mm256_set1_epi16(255);
            let even = _mm256_mullo_epi16(self.0, other.0);
            let odd = _mm256_mullo_epi16(
                _mm256_srli_epi16::<8>(self.0),
                _mm256_andnot_si256(low, other.0),
            );
            Avx2(_mm256_or_si256(_mm256_and_si256(even, low), odd))
        }
    }

    #[inline(always)]
    fn negate_where(self, mask: Self) -> Self {
        // SAFETY: AVX2.
        Avx2(unsafe { _mm256_sub_epi8(_mm256_xor_si256(self.0, mask.0), mask.0) })
    }

    #[inline(always)]
    fn triple_high(self) -> Self {
        // SAFETY: AVX2.
        unsafe {
            // 255 where the triple is at least 256, and where it is at least 512.
            let (one, two) = (_mm256_set1_epi8(86), _mm256_set1_epi8(171_u8 as i8));
            let is_one = _mm256_cmpeq_epi8(_mm256_subs_epu8(one, self.0), _mm256_setzero_si256());
            let is_two = _mm256_cmpeq_epi8(_mm256_subs_epu8(two, self.0), _mm256_setzero_si256());
            Avx2(_mm256_abs_epi8(_mm256_add_epi8(is_one, is_two)))
        }
    }

    #[inline(always)]
    fn join_halves(self, other: Self) -> (Self, Self) {
        // SAFETY: AVX2.
        unsafe {
            (
                Avx2(_mm256_unpacklo_epi64(self.0, other.0)),
                Avx2(_mm256_unpackhi_epi64(self.0, other.0)),
            )
        }
    }

    #[inline(always)]
    unsafe fn two_bits([a, b]: [[u8; 4]; 2]) -> Self {
        let [a, b] = [a, b].map(i32::from_le_bytes);
        // SAFETY: AVX2.
        unsafe {
            // Each byte in 32 bits; a number moves by six bits for every place that it moves up from the lowest byte.
            let bytes = _mm256_cvtepu8_epi32(_mm_insert_epi32::<1>(_mm_cvtsi32_si128(a), b));
            let pairs = _mm256_or_si256(bytes, _mm256_slli_epi32::<6>(bytes));
            let fours = _mm256_or_si256(pairs, _mm256_slli_epi32::<12>(pairs));
            Avx2(_mm256_and_si256(fours, _mm256_set1_epi8(3)))
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
    unsafe fn words([a, b, c, d]: [[u64; 2]; 4]) -> Self {
        // SAFETY: AVX-512.
        unsafe {
            Avx512(_mm512_setr_epi64(
                a[0] as i64,
                a[1] as i64,
                b[0] as i64,
                b[1] as i64,
                c[0] as i64,
                c[1] as i64,
                d[0] as i64,
                d[1] as i64,
            ))
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

    #[inline(always)]
    fn right_each(self, counts: [u32; 4]) -> Self {
        // SAFETY: AVX-512.
        unsafe {
            let [a, b, c, d] = counts.map(i64::from);
            Avx512(_mm512_srlv_epi64(
                self.0,
                _mm512_setr_epi64(a, a, b, b, c, c, d, d),
            ))
        }
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        // SAFETY: AVX-512.
        unsafe {
            let low = _mm512_set1_epi16(255);
            let even = _mm512_mullo_epi16(self.0, other.0);
            let odd = _mm512_mullo_epi16(
                _mm512_srli_epi16::<8>(self.0),
                _mm512_andnot_si512(low, other.0),
            );
            Avx512(_mm512_or_si512(_mm512_and_si512(even, low), odd))
        }
    }

    #[inline(always)]
    fn negate_where(self, mask: Self) -> Self {
        // SAFETY: AVX-512.
        Avx512(unsafe { _mm512_sub_epi8(_mm512_xor_si512(self.0, mask.0), mask.0) })
    }

    #[inline(always)]
    fn triple_high(self) -> Self {
        // SAFETY: AVX-512.
        unsafe {
            // The triple is at least 256, and at least 512.
            let one = _mm512_set1_epi8(1);
            let is_one = _mm512_cmpge_epu8_mask(self.0, _mm512_set1_epi8(86));
            let is_two = _mm512_cmpge_epu8_mask(self.0, _mm512_set1_epi8(171_u8 as i8));
            let high = _mm512_maskz_mov_epi8(is_one, one);
            Avx512(_mm512_mask_add_epi8(high, is_two, high, one))
        }
    }

    #[inline(always)]
    fn join_halves(self, other: Self) -> (Self, Self) {
        // SAFETY: AVX-512.
        unsafe {
            (
                Avx512(_mm512_unpacklo_epi64(self.0, other.0)),
                Avx512(_mm512_unpackhi_epi64(self.0, other.0)),
            )
        }
    }

    #[inline(always)]
    unsafe fn two_bits(blocks: [[u8; 4]; 4]) -> Self {
        let [a, b, c, d] = blocks.map(i32::from_le_bytes);
        // SAFETY: AVX-512.
        unsafe {
            // As for AVX2.
            let bytes = _mm512_cvtepu8_epi32(_mm_setr_epi32(a, b, c, d));
            let pairs = _mm512_or_si512(bytes, _mm512_slli_epi32::<6>(bytes));
            let fours = _mm512_or_si512(pairs, _mm512_slli_epi32::<12>(pairs));
            Avx512(_mm512_and_si512(fours, _mm512_set1_epi8(3)))
        }
    }
}
