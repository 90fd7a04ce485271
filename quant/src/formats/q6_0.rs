//! Q6_0 of ik_llama.cpp: blocks of 32 numbers with an f16 scale and 6-bit codes: `x = d * (q - 32)`.

use bytemuck::{Pod, Zeroable};

use crate::format::Format;
use crate::formats::Half;
use crate::formats::codes::{Codes, low_bits};
use crate::formats::scaled::Scaled;
use crate::simd::register::Register;

/// 6.5 bits per number: blocks of 32 with one scale.
pub static Q6_0: Format = Block::format("Q6_0", 133, Block::fit);

type Block = Scaled<Half, SixBits>;

const _: () = assert!(size_of::<Block>() == 26);

/// Byte i of `high` has the upper two bits of codes i, i + 16, i + 8 and i + 24, lowest bits first.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SixBits {
    high: [u8; 8],
    low: [u8; 16],
}

impl Codes for SixBits {
    const OFFSET: i8 = 32;

    fn pack(codes: [u8; 32]) -> Self {
        let high = |i: usize| codes[i] >> 4 | codes[i + 16] >> 4 << 2;
        SixBits {
            high: std::array::from_fn(|i| high(i) | high(i + 8) << 4),
            low: low_bits(codes),
        }
    }

    #[inline(always)]
    unsafe fn unpack<R: Register<N>, const N: usize>(blocks: [&Self; N]) -> (R, R) {
        let twice =
            |high: [u8; 8]| u128::from_le_bytes(bytemuck::cast([high, high.map(|bits| bits >> 4)]));
        // SAFETY: guaranteed by the caller.
        let high = unsafe { R::load(blocks.map(|block| twice(block.high).to_le_bytes())) };
        // SAFETY: guaranteed by the caller.
        let (first, second) = unsafe { R::load(blocks.map(|block| block.low)) }.nibbles();
        (
            first.or(high.left::<4>().and(0x30)),
            second.or(high.left::<2>().and(0x30)),
        )
    }
}
