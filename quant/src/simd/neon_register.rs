//! The NEON register of a block for unpacking codes.

use std::arch::aarch64::*;

use super::register::{Register, half_of};

/// One block.
#[derive(Clone, Copy)]
pub(crate) struct Neon(uint8x16_t);

impl Neon {
    /// The register.
    #[inline(always)]
    pub(crate) fn register(self) -> int8x16_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vreinterpretq_s8_u8(self.0) }
    }
}

// SAFETY of all functions below: NEON is part of the architecture.
impl Register<1> for Neon {
    #[inline(always)]
    unsafe fn load([block]: [[u8; 16]; 1]) -> Self {
        // SAFETY: sixteen bytes.
        Neon(unsafe { vld1q_u8(block.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn words([[low, high]]: [[u64; 2]; 1]) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high))) })
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

    #[inline(always)]
    fn right_each(self, [count]: [u32; 1]) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vshlq_u8(self.0, vdupq_n_s8(-(count as i8))) })
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vmulq_u8(self.0, other.0) })
    }

    #[inline(always)]
    fn negate_where(self, mask: Self) -> Self {
        // SAFETY: NEON.
        Neon(unsafe { vsubq_u8(veorq_u8(self.0, mask.0), mask.0) })
    }

    #[inline(always)]
    fn triple_high(self) -> Self {
        // SAFETY: NEON.
        unsafe {
            // 255 where the triple is at least 256, and where it is at least 512.
            let is_least = |least| vcgeq_u8(self.0, vdupq_n_u8(least));
            let negative = vaddq_u8(is_least(86), is_least(171));
            Neon(vsubq_u8(vdupq_n_u8(0), negative))
        }
    }

    #[inline(always)]
    fn join_halves(self, other: Self) -> (Self, Self) {
        // SAFETY: NEON.
        unsafe {
            (
                Neon(vcombine_u8(vget_low_u8(self.0), vget_low_u8(other.0))),
                Neon(vcombine_u8(vget_high_u8(self.0), vget_high_u8(other.0))),
            )
        }
    }

    #[inline(always)]
    unsafe fn two_bits([block]: [[u8; 4]; 1]) -> Self {
        const FOURS: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
        const RIGHT: [i8; 16] = [0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6];
        // SAFETY: NEON, and sixteen bytes per load.
        unsafe {
            let bytes = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(block)));
            let fours = vqtbl1q_u8(bytes, vld1q_u8(FOURS.as_ptr()));
            let codes = vshlq_u8(fours, vld1q_s8(RIGHT.as_ptr()));
            Neon(vandq_u8(codes, vdupq_n_u8(3)))
        }
    }
}
