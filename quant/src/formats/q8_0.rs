//! Q8_0: blocks of 32 numbers with an f16 scale and 8-bit codes: `x = d * q`.

use crate::format::Format;
use crate::formats::codes::SignedBytes;
use crate::formats::fit::low_byte;
use crate::formats::scaled::Scaled;
use crate::formats::{Half, encode_blocks};

/// 8.5 bits per number: blocks of 32 with one scale.
pub static Q8_0: Format = Format {
    code_tiles: true,
    slot_tiles: true,
    ..Block::format("Q8_0", 8, |src, _, dst| encode_blocks(src, dst, encode))
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
