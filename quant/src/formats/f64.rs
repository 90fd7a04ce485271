//! F64: double precision. Tensors of a file are rounded to F32 when they are read.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::{decode_blocks, encode_blocks};
use crate::simd::scalar;

/// 64-bit floats.
pub static F64: Format = Format {
    name: "F64",
    ggml_type: 28,
    block_len: 1,
    block_bytes: size_of::<Number>(),
    rounding: None,
    device_apart: 0..0,
    code_tiles: false,
    slot_tiles: false,
    reordered: None,
    encode: Some(|src, _, dst| {
        encode_blocks(src, dst, |&[x]| Number(f64::from(x).to_le_bytes()));
    }),
    decode: |src, dst| decode_blocks(src, dst, |number: &Number| [number.to_f32()]),
    kernel: |_| scalar::multiply::<Number>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Number([u8; 8]);

const _: () = assert!(size_of::<Number>() == 8);

impl Number {
    fn to_f32(self) -> f32 {
        f64::from_le_bytes(self.0) as f32
    }
}

impl scalar::Dot for Number {
    fn dot(row: &[u8], x: Row) -> f32 {
        let row: &[Number] = bytemuck::cast_slice(row);
        row.iter().zip(x.values).map(|(w, x)| w.to_f32() * x).sum()
    }
}
