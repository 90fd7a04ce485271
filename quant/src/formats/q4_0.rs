//! Q4_0: blocks of 32 numbers with an f16 scale and 4-bit codes: `x = d * (q - 8)`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::format::Format;
use crate::formats::Half;
use crate::formats::codes::Nibbles;
use crate::formats::scaled::Scaled;

/// 4.5 bits per number: blocks of 32 with one scale.
pub static Q4_0: Format = Format {
    code_tiles: true,
    slot_tiles: true,
    ..Block::format("Q4_0", 2, Block::encode)
};

pub(crate) type Block = Scaled<Half, Nibbles<8>>;

const _: () = assert!(size_of::<Block>() == 18);
