//! Q4_1: blocks of 32 numbers, an f16 scale, an f16 least number and 4-bit codes: `x = d * q + m`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::format::Format;
use crate::formats::affine::Affine;
use crate::formats::codes::Nibbles;
use crate::formats::{decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 5 bits per number: blocks of 32 with a scale and a least number.
pub static Q4_1: Format = Format {
    name: "Q4_1",
    ggml_type: 3,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..4,
    reordered: None,
    encode: |src, importance, dst| match importance {
        Some(importance) => Block::encode_row(src, importance, dst, pack),
        None => encode_blocks(src, dst, |x| Block::encode(x, pack)),
    },
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

type Block = Affine<Nibbles<0>>;

const _: () = assert!(size_of::<Block>() == 20);

fn pack(codes: [u8; 32]) -> Nibbles<0> {
    Nibbles::pack(codes.map(|code| (code as i8).min(15) as u8))
}
