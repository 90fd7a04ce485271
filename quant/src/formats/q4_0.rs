//! Q4_0: blocks of 32 numbers, an f16 scale and 4-bit codes: `x = d * (q - 8)`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::format::Format;
use crate::formats::codes::Nibbles;
use crate::formats::fit::{self, low_byte};
use crate::formats::scaled::Scaled;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 4.5 bits per number: blocks of 32 with one scale.
pub static Q4_0: Format = Format {
    name: "Q4_0",
    ggml_type: 2,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..2,
    reordered: None,
    encode: |src, importance, dst| match importance {
        Some(importance) => Block::encode_row(src, importance, dst, 8, Nibbles::pack),
        None => encode_blocks(src, dst, encode),
    },
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

pub(crate) type Block = Scaled<Half, Nibbles<8>>;

const _: () = assert!(size_of::<Block>() == 18);

pub(super) fn encode(x: &[f32; 32]) -> Block {
    // The number of largest magnitude (the first of equals) becomes code 0, that is -8, exactly.
    let d = fit::extreme(x) / -8.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |x: f32| (low_byte(x * inverse + 8.5) as i8).min(15) as u8;
    Block {
        d: Half::from_f32(d),
        q: Nibbles::pack(x.map(code)),
    }
}
