//! F16: half precision.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 16-bit floats with 5 exponent bits (IEEE 754 binary16), rounded to nearest even.
pub static F16: Format = with_inputs(None);

/// F16 with the inputs of products rounded to f16, as ggml rounds them, for matrices in a quantized file whose rows are not a multiple of a
/// block.
pub static F16_IN_F16: Format = with_inputs(Some(Rounding::Halves));

const fn with_inputs(rounding: Option<Rounding>) -> Format {
    Format {
        name: "F16",
        ggml_type: 1,
        block_len: 1,
        block_bytes: size_of::<Half>(),
        rounding,
        device_apart: 0..0,
        code_tiles: false,
        slot_tiles: false,
        reordered: None,
        encode: Some(|src, _, dst| encode_blocks(src, dst, |&[x]| Half::from_f32(x))),
        decode: |src, dst| decode_blocks(src, dst, |number: &Half| [number.to_f32()]),
        kernel: kernel::float::<Half>,
    }
}

const _: () = assert!(size_of::<Half>() == 2);

impl scalar::Dot for Half {
    fn dot(row: &[u8], x: Row) -> f32 {
        let row: &[Half] = bytemuck::cast_slice(row);
        row.iter().zip(x.values).map(|(w, x)| w.to_f32() * x).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Half;
    use crate::simd::{avx2, avx512};

    impl avx512::Float for Half {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load(at: *const Half) -> __m512 {
            // SAFETY: `at` is valid for 16 values.
            _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(at.cast()) })
        }
    }

    impl avx2::Float for Half {
        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn load(at: *const Half) -> __m256 {
            // SAFETY: `at` is valid for 8 values.
            _mm256_cvtph_ps(unsafe { _mm_loadu_si128(at.cast()) })
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Half;
    use crate::simd::neon;

    impl neon::Float for Half {
        #[inline]
        unsafe fn load(at: *const Half) -> float32x4_t {
            // SAFETY: `at` is valid for 4 values.
            unsafe { neon::load_halves(at.cast()) }
        }
    }
}
