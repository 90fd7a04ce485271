//! IQ4_NL: blocks of 32 numbers with an f16 scale and 4-bit codes of sixteen values, spaced more closely near zero: `x = d * VALUES[q]`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::format::Format;
use crate::formats::Half;
use crate::formats::codes::{Codes, Lookup, Table};
use crate::formats::fit::{self, Lanes};
use crate::formats::importance;
use crate::formats::scaled::Scaled;

/// 4.5 bits per number: blocks of 32 with one scale, and values spaced more closely near zero.
pub static IQ4_NL: Format = Block::format("IQ4_NL", 20, encode);

/// The values of the codes, as in ggml.
#[derive(Clone, Copy)]
pub(crate) struct Values;

impl Table for Values {
    const VALUES: [i8; 16] = [
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    ];
    const OFFSET: i8 = -128;
    const SIGNED: bool = true;
}

type Block = Scaled<Half, Lookup<Values>>;

const _: () = assert!(size_of::<Block>() == 18);

fn encode(src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
    importance::encode_eights(src, importance, dst, |x, importance| {
        let columns = fit::columns::<32>(x);
        let weights = match importance {
            // The spread is that of each block, where other formats use that of the row.
            Some(inputs) => {
                let squares = importance::sums(&fit::squares(&columns));
                let spread = squares * Lanes::all(2.0 / 32.0);
                importance::weights(&columns, inputs, spread)
            }
            None => fit::squares(&columns),
        };
        let scales = fit::fit_to_values(&columns, &weights, &Values::VALUES).0;
        std::array::from_fn(|j| Block {
            d: Half::from_f32(scales[j]),
            q: Lookup::pack(nearest_codes(&x.as_chunks().0[j], scales[j])),
        })
    });
}

/// The codes of the values nearest to `x / scale`.
pub(crate) fn nearest_codes(x: &[f32; 32], scale: f32) -> [u8; 32] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    x.map(|x| fit::nearest_value_code(inverse * x, &Values::VALUES))
}
