//! F32: single precision.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::{decode_blocks, encode_blocks};
use crate::kernel;
use crate::simd::scalar;

/// 32-bit floats.
pub static F32: Format = Format {
    name: "F32",
    ggml_type: 0,
    block_len: 1,
    block_bytes: size_of::<Number>(),
    rounding: None,
    device_apart: 0..0,
    code_tiles: false,
    slot_tiles: false,
    reordered: None,
    encode: Some(|src, _, dst| encode_blocks(src, dst, |&[x]| Number(x.to_le_bytes()))),
    decode: |src, dst| decode_blocks(src, dst, |number: &Number| [number.to_f32()]),
    kernel: kernel::float::<Number>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Number([u8; 4]);

const _: () = assert!(size_of::<Number>() == 4);

impl Number {
    fn to_f32(self) -> f32 {
        f32::from_le_bytes(self.0)
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

    use super::Number;
    use crate::simd::{avx2, avx512};

    impl avx512::Float for Number {
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn load(at: *const Number) -> __m512 {
            // SAFETY: `at` is valid for 16 values.
            unsafe { _mm512_loadu_ps(at.cast()) }
        }
    }

    impl avx2::Float for Number {
        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn load(at: *const Number) -> __m256 {
            // SAFETY: `at` is valid for 8 values.
            unsafe { _mm256_loadu_ps(at.cast()) }
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
            unsafe { vld1q_f32(at.cast()) }
        }
    }
}
