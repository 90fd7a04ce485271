//! Kernels of each CPU level, independent of number formats: tiles of a product, and rounding of inputs to 8 bits. A format supplies only
//! the step that differs: unpacking one chunk of its blocks into registers.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx_floats;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_panel;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_lanes;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_panel;
#[cfg(target_arch = "x86_64")]
pub(crate) mod float_panel;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_panel;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_register;
pub(crate) mod register;
pub(crate) mod scalar;

use crate::activations::RowMut;
use crate::cpu::Simd;
use crate::rounding::Rounding;

/// Rounds one row of inputs, `[stride]` values, to 8 bits.
///
/// # Safety
/// The CPU must have the instructions of the function's level, the lengths must be as stated, and the stride must be a multiple of 256.
pub(crate) type Quantize = unsafe fn(&[f32], RowMut, Rounding);

/// Returns the rounding function for a level.
pub(crate) fn quantize(simd: Simd) -> Quantize {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512Vnni | Simd::Amx => avx512::quantize,
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 | Simd::AvxVnni => avx2::quantize,
        #[cfg(target_arch = "aarch64")]
        Simd::Neon | Simd::NeonDotprod | Simd::NeonI8mm => neon::quantize,
        _ => scalar::quantize,
    }
}

/// Number of consecutive columns of a row of inputs in a level's panels.
pub(crate) fn panel_columns(simd: Simd) -> usize {
    match simd {
        Simd::NeonI8mm => 8,
        _ => 4,
    }
}
