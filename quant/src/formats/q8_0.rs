//! Q8_0: blocks of 32 numbers, an f16 scale and 8-bit codes: `x = d * q`.

use crate::format::Format;
use crate::formats::codes::SignedBytes;
use crate::formats::fit::low_byte;
use crate::formats::scaled::Scaled;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 8.5 bits per number: blocks of 32 with one scale.
pub static Q8_0: Format = Format {
    name: "Q8_0",
    ggml_type: 8,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..2,
    reordered: None,
    encode: |src, _, dst| encode_blocks(src, dst, encode),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

type Block = Scaled<Half, SignedBytes>;

const _: () = assert!(size_of::<Block>() == 34);

fn encode(x: &[f32; 32]) -> Block {
    let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    Block {
        d: Half::from_f32(d),
        q: SignedBytes(x.map(|x| low_byte((x * inverse).round()) as i8)),
    }
}
