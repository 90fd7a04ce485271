//! Q5_0: blocks of 32 numbers, an f16 scale and 5-bit codes: `x = d * (q - 16)`.

use crate::format::Format;
use crate::formats::fit::{self, low_byte};
use crate::formats::five_bits::FiveBits;
use crate::formats::scaled::Scaled;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;

/// 5.5 bits per number: blocks of 32 with one scale.
pub static Q5_0: Format = Format {
    name: "Q5_0",
    ggml_type: 6,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..6,
    reordered: None,
    encode: |src, importance, dst| match importance {
        Some(importance) => Block::encode_row(src, importance, dst, 16, FiveBits::pack),
        None => encode_blocks(src, dst, encode),
    },
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

type Block = Scaled<Half, FiveBits<16>>;

const _: () = assert!(size_of::<Block>() == 22);

fn encode(x: &[f32; 32]) -> Block {
    // The number of largest magnitude (the first of equals) becomes code 0, that is -16, exactly.
    let d = fit::extreme(x) / -16.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let code = |x: f32| (low_byte(x * inverse + 16.5) as i8).min(31) as u8;
    Block {
        d: Half::from_f32(d),
        q: FiveBits::pack(x.map(code)),
    }
}
