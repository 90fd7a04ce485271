//! BF16: the upper half of an f32.

use crate::activations::Row;
#[cfg(target_arch = "x86_64")]
use crate::cpu::Simd;
use crate::format::Format;
use crate::formats::{decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 16-bit floats with 8 exponent bits, rounded to nearest even.
pub static BF16: Format = with_inputs(None);

/// BF16 with the inputs of products rounded to bf16, as ggml rounds them, for bf16 matrices in a quantized file.
pub static BF16_IN_BF16: Format = with_inputs(Some(Rounding::Bf16));

const fn with_inputs(rounding: Option<Rounding>) -> Format {
    Format {
        name: "BF16",
        ggml_type: 30,
        block_len: 1,
        block_bytes: size_of::<Number>(),
        rounding,
        device_apart: 0..0,
        code_tiles: false,
        slot_tiles: true,
        reordered: None,
        encode: Some(|src, _, dst| encode_blocks(src, dst, |&[x]| Number::from_f32(x))),
        decode: |src, dst| decode_blocks(src, dst, |number: &Number| [number.to_f32()]),
        kernel: |simd| match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Amx => x86::multiply,
            _ => kernel::float::<Number>(simd),
        },
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Number([u8; 2]);

const _: () = assert!(size_of::<Number>() == 2);

impl Number {
    fn from_f32(value: f32) -> Number {
        Number(half::bf16::from_f32(value).to_le_bytes())
    }

    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self.0)) << 16)
    }
}

impl scalar::Dot for Number {
    fn dot(row: &[u8], x: Row) -> f32 {
        let row: &[Number] = bytemuck::cast_slice(row);
        row.iter().zip(x.values).map(|(w, x)| w.to_f32() * x).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::Number;
    use crate::cpu::Simd;
    use crate::kernel::{self, Product};
    use crate::simd::{amx_floats, avx2, avx512};

    /// Multiplies on AMX: in bf16 tiles if there are enough tokens to fill them, otherwise as on AVX-512.
    ///
    /// # Safety
    /// As for [`Kernel`](kernel::Kernel).
    pub(super) unsafe fn multiply(product: &Product, rows: Range<usize>) {
        let x = product.x;
        let is_in_tiles =
            product.picked.is_none() && x.are_many() && x.rows() >= amx_floats::LEAST_TOKENS;
        // SAFETY: guaranteed by the caller.
        unsafe {
            if is_in_tiles {
                amx_floats::multiply(product, rows)
            } else {
                kernel::float::<Number>(Simd::Avx512Vnni)(product, rows)
            }
        }
    }

    impl avx512::Float for Number {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load(at: *const Number) -> __m512 {
            // SAFETY: `at` is valid for 16 values.
            let halves = _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(at.cast()) });
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }

    impl avx2::Float for Number {
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn load(at: *const Number) -> __m256 {
            // SAFETY: `at` is valid for 8 values.
            let halves = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(at.cast()) });
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Number;
    use crate::simd::neon;

    impl neon::Float for Number {
        #[inline]
        unsafe fn load(at: *const Number) -> float32x4_t {
            // SAFETY: `at` is valid for 4 values.
            unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.cast()))) }
        }
    }
}
