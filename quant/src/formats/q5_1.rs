//! Q5_1: blocks of 32 numbers with an f16 scale, an f16 minimum and 5-bit codes: `x = d * q + m`.

use crate::format::Format;
use crate::formats::affine::Affine;
use crate::formats::codes::FiveBits;

/// 6 bits per number: blocks of 32 with a scale and a minimum.
pub static Q5_1: Format = Format {
    code_tiles: true,
    ..Block::format("Q5_1", 7)
};

type Block = Affine<FiveBits<0>>;

const _: () = assert!(size_of::<Block>() == 24);
