//! Q5_0: blocks of 32 numbers with an f16 scale and 5-bit codes: `x = d * (q - 16)`.

use crate::format::Format;
use crate::formats::Half;
use crate::formats::codes::FiveBits;
use crate::formats::scaled::Scaled;

/// 5.5 bits per number: blocks of 32 with one scale.
pub static Q5_0: Format = Block::format("Q5_0", 6, Block::encode);

type Block = Scaled<Half, FiveBits<16>>;

const _: () = assert!(size_of::<Block>() == 22);
