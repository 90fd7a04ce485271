//! Q5_1: blocks of 32 numbers, an f16 scale, an f16 least number and 5-bit codes: `x = d * q + m`.

use crate::format::Format;
use crate::formats::affine::Affine;
use crate::formats::five_bits::FiveBits;
use crate::formats::{decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 6 bits per number: blocks of 32 with a scale and a least number.
pub static Q5_1: Format = Format {
    name: "Q5_1",
    ggml_type: 7,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..8,
    reordered: None,
    encode: |src, importance, dst| match importance {
        Some(importance) => Block::encode_row(src, importance, dst, FiveBits::pack),
        None => encode_blocks(src, dst, |x| Block::encode(x, FiveBits::pack)),
    },
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

type Block = Affine<FiveBits<0>>;

const _: () = assert!(size_of::<Block>() == 24);
