//! One file per number format: block layout, encoder, decoder, dot products.

mod affine;
pub(crate) mod bf16;
mod codes;
pub(crate) mod f16;
pub(crate) mod f32;
mod fit;
mod five_bits;
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
pub(crate) mod q6_k;
pub(crate) mod q8_0;
mod scaled;

use bytemuck::{AnyBitPattern, NoUninit};

/// A half-precision number inside a block, which need not be aligned.
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

/// Encodes block by block. Lengths were checked by [`Format`](crate::Format).
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

/// Encodes a row, in which the input of each number has the mean square `importance`, block by block.
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

/// Decodes block by block. Lengths were checked by [`Format`](crate::Format).
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
