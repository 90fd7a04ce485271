//! Q4_1: blocks of 32 numbers with an f16 scale, an f16 minimum and 4-bit codes: `x = d * q + m`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::format::Format;
use crate::formats::affine::Affine;
use crate::formats::codes::Nibbles;

/// 5 bits per number: blocks of 32 with a scale and a minimum.
pub static Q4_1: Format = Format {
    code_tiles: true,
    ..Block::format("Q4_1", 3)
};

type Block = Affine<Nibbles<0>>;

const _: () = assert!(size_of::<Block>() == 20);
