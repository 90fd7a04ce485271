//! One file per number format: block layout, encoder, decoder, dot products.

mod affine;
pub(crate) mod bf16;
mod codes;
pub(crate) mod f16;
pub(crate) mod f32;
mod fit;
mod importance;
pub(crate) mod iq4_nl;
pub(crate) mod iq4_xs;
mod k_quants;
pub(crate) mod mxfp4;
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

use bytemuck::{AnyBitPattern, NoUninit};

use crate::cpu::Simd;
use crate::format::{Decode, Encode, Format};
use crate::kernel::Kernel;
use crate::rounding::Rounding;

/// All formats except [`REORDERED`](crate::REORDERED), most precise first. The CUDA file of a format has the name of its Rust file.
pub static FORMATS: [&Format; 17] = [
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
    &q3_k::Q3_K,
    &q2_k::Q2_K,
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
        encode,
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

    #[inline]
    pub(crate) fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
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
