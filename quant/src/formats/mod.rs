//! One file per number format: block layout, encoder, decoder, dot products.

mod affine;
pub(crate) mod bf16;
mod codes;
pub(crate) mod f16;
pub(crate) mod f32;
pub(crate) mod f64;
mod fit;
pub(crate) mod grids;
mod importance;
pub(crate) mod iq1_m;
pub(crate) mod iq1_s;
pub(crate) mod iq2_s;
pub(crate) mod iq2_xs;
pub(crate) mod iq2_xxs;
pub(crate) mod iq3_s;
pub(crate) mod iq3_xxs;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
mod k_quants;
pub(crate) mod mxfp4;
pub(crate) mod nvfp4;
pub(crate) mod q1_0;
pub(crate) mod q2_0;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_0x16;
pub(crate) mod q4_1;
pub(crate) mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
pub(crate) mod q5_k;
pub(crate) mod q6_0;
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod scaled;
pub(crate) mod tq1_0;
pub(crate) mod tq2_0;
mod wide;

use bytemuck::{AnyBitPattern, NoUninit};

use crate::cpu::Simd;
use crate::format::{Decode, Encode, Format};
use crate::kernel::Kernel;
use crate::rounding::Rounding;

/// All formats except [`REORDERED`](crate::REORDERED), most precise first. The CUDA file of a format has the name of its Rust file.
pub static FORMATS: [&Format; 32] = [
    &f32::F32,
    &f16::F16,
    &bf16::BF16,
    &q8_0::Q8_0,
    &q6_k::Q6_K,
    &q6_0::Q6_0,
    &q5_1::Q5_1,
    &q5_k::Q5_K,
    &q5_0::Q5_0,
    &q4_1::Q4_1,
    &q4_k::Q4_K,
    &iq4_nl::IQ4_NL,
    &iq4_xs::IQ4_XS,
    &q4_0::Q4_0,
    &mxfp4::MXFP4,
    &nvfp4::NVFP4,
    &nvfp4::NVFP4S,
    &q3_k::Q3_K,
    &iq3_s::IQ3_S,
    &iq3_xxs::IQ3_XXS,
    &q2_k::Q2_K,
    &iq2_s::IQ2_S,
    &iq2_xs::IQ2_XS,
    &q2_0::Q2_0,
    &q2_0::PQ2_0,
    &iq2_xxs::IQ2_XXS,
    &tq2_0::TQ2_0,
    &iq1_m::IQ1_M,
    &tq1_0::PTQ1_0,
    &tq1_0::TQ1_0,
    &iq1_s::IQ1_S,
    &q1_0::Q1_0,
];

/// Defines a format with blocks of 32 numbers. On a GPU, the codes of a block are a multiple of 16 bytes, and the scales before them are
/// stored apart.
const fn format_of_32<B>(
    name: &'static str,
    ggml_type: u32,
    encode: Encode,
    decode: Decode,
    kernel: fn(Simd) -> Kernel,
) -> Format {
    Format {
        name,
        ggml_type,
        block_len: 32,
        block_bytes: size_of::<B>(),
        rounding: Some(Rounding::Blocks),
        device_apart: 0..size_of::<B>() % 16,
        code_tiles: false,
        slot_tiles: false,
        reordered: None,
        encode: Some(encode),
        decode,
        kernel,
    }
}

/// A half-precision number inside a block, without alignment.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Half([u8; 2]);

impl Half {
    pub(crate) fn from_f32(value: f32) -> Half {
        Half(half::f16::from_f32(value).to_le_bytes())
    }

    #[inline]
    pub(crate) fn bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    pub(crate) fn from_bits(bits: u16) -> Half {
        Half(bits.to_le_bytes())
    }

    #[inline]
    pub(crate) fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    /// Returns the value by integer arithmetic, which a compiler may inline into vector code. [`Half::to_f32`] selects an instruction of the
    /// CPU in each call.
    #[inline(always)]
    pub(crate) fn value(self) -> f32 {
        const SMALLEST_NORMAL: u32 = 113 << 23;
        let bits = u32::from(self.bits());
        let (magnitude, sign) = ((bits & 0x7fff) << 13, (bits & 0x8000) << 16);
        let magnitude = match bits >> 10 & 31 {
            0 => f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL),
            31 => f32::from_bits(magnitude | 0x7f80_0000),
            _ => f32::from_bits(magnitude + (112 << 23)),
        };
        f32::from_bits(magnitude.to_bits() | sign)
    }
}

/// Encodes block by block. [`Format`](crate::Format) has checked the lengths.
fn encode_blocks<B: NoUninit + AnyBitPattern, const N: usize>(
    src: &[f32],
    dst: &mut [u8],
    encode: impl Fn(&[f32; N]) -> B,
) {
    for (values, block) in src
        .as_chunks::<N>()
        .0
        .iter()
        .zip(bytemuck::cast_slice_mut::<u8, B>(dst))
    {
        *block = encode(values);
    }
}

/// Encodes a row block by block. `importance` holds the mean square of each number's input.
fn encode_row<B: NoUninit + AnyBitPattern, const N: usize>(
    row: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
    encode: impl Fn(&[f32; N], Option<&[f32; N]>) -> B,
) {
    let blocks = bytemuck::cast_slice_mut::<u8, B>(dst);
    for (i, (values, block)) in row.as_chunks::<N>().0.iter().zip(blocks).enumerate() {
        *block = encode(values, importance.map(|all| &all.as_chunks().0[i]));
    }
}

/// Decodes block by block. [`Format`](crate::Format) has checked the lengths.
fn decode_blocks<B: NoUninit + AnyBitPattern, const N: usize>(
    src: &[u8],
    dst: &mut [f32],
    decode: impl Fn(&B) -> [f32; N],
) {
    for (block, values) in bytemuck::cast_slice::<u8, B>(src)
        .iter()
        .zip(dst.as_chunks_mut::<N>().0)
    {
        *values = decode(block);
    }
}
