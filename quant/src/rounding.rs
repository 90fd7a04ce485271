//! The rounding of a product's inputs.

use half::{bf16, f16};

use crate::activations::{BLOCK, PAD};
use crate::format::Format;

/// The rounding of a product's inputs. It follows ggml's choice for the format of the weights: the slightest difference could change a
/// router's choice of experts, and then every logit differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rounding {
    /// To bf16, for weights in bf16.
    Bf16,
    /// To f16, for weights in f16.
    Halves,
    // To 8 bits:
    /// One scale per 256 values (ggml's Q8_K).
    SuperBlocks,
    /// One scale per 32 values, rounded to f16. The sums that minima multiply (unrounded scale times sum of codes) are rounded to f16 too
    /// (ggml's Q8_0 and Q8_1).
    Blocks,
}

impl Rounding {
    /// Number of 32-value blocks that share a scale.
    pub(crate) fn blocks(self) -> usize {
        match self {
            Rounding::SuperBlocks => PAD / BLOCK,
            _ => 1,
        }
    }

    /// Whether inputs are rounded to 8 bits.
    pub fn is_integer(self) -> bool {
        !matches!(self, Rounding::Bf16 | Rounding::Halves)
    }

    /// Rounds values to 16 bits.
    pub(crate) fn round_short(self, values: &mut [f32]) {
        match self {
            Rounding::Bf16 => values
                .iter_mut()
                .for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            _ => values
                .iter_mut()
                .for_each(|x| *x = f16::from_f32(*x).to_f32()),
        }
    }

    /// The rounding of the inputs of a matrix in `format` when matrices in the formats `all` read the same inputs. Inputs may be kept in
    /// f32 together with one 8-bit form, the finest one needed. Matrices with equal results share one prepared copy.
    pub fn for_shared_input<'a>(
        format: &Format,
        all: impl IntoIterator<Item = &'a Format>,
    ) -> Option<Rounding> {
        let of_codes = |format: &Format| format.rounding().filter(|rounding| rounding.is_integer());
        let finest = || all.into_iter().filter_map(of_codes).max();
        format.rounding().or_else(finest)
    }

    /// The number of a rounding in kernels.
    pub fn device_number(rounding: Option<Rounding>) -> i32 {
        rounding.map_or(-1, |rounding| rounding as i32)
    }

    /// Returns the scale for values, from the bits of the largest magnitude among them.
    ///
    /// The magnitude is found by comparing bits as integers: NaN exceeds infinity, and neither is lost, as it could be in a float maximum.
    pub(crate) fn scale(self, magnitude: u32) -> Scale {
        let magnitude = f32::from_bits(magnitude);
        let (exact, inverse) = match magnitude {
            _ if !magnitude.is_finite() => (f32::NAN, 0.0),
            // Below this the reciprocal overflows; such values are rounded to zero.
            _ if magnitude <= 1e-36 => (0.0, 0.0),
            _ if self == Rounding::SuperBlocks => (1.0 / (127.0 / magnitude), 127.0 / magnitude),
            _ => (magnitude / 127.0, 127.0 / magnitude),
        };
        Scale {
            exact,
            inverse,
            is_short: self == Rounding::Blocks,
        }
    }
}

/// The scale of values that are rounded to 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    exact: f32,
    /// code = round(inverse * value)
    pub(crate) inverse: f32,
    /// Whether the scale and its products are rounded to f16.
    is_short: bool,
}

impl Scale {
    /// Returns the scale times a sum of codes. A result outside f16's range stays f32.
    pub(crate) fn times(self, sum: i32) -> f32 {
        let product = self.exact * sum as f32;
        if !self.is_short {
            return product;
        }
        let short = f16::from_f32(product).to_f32();
        if short.is_finite() { short } else { product }
    }
}

#[cfg(test)]
mod tests {
    /// Like `quotient` in rounding.cu.
    fn quotient(a: f32, b: f32, reciprocal: f32) -> f32 {
        let q = a * reciprocal;
        (-b).mul_add(q, a).mul_add(reciprocal, q)
    }

    #[test]
    fn kernels_scale_as_ieee_divides_whatever_the_mantissa() {
        for mantissa in 0..1 << 23 {
            let x = f32::from_bits(1f32.to_bits() | mantissa);
            assert_eq!(quotient(x, 127.0, 1.0 / 127.0), x / 127.0, "{x}");
            // A GPU's reciprocal may be off by one unit in the last place; a refinement step follows.
            for off in [u32::MAX, 0, 1] {
                let y = f32::from_bits((1.0 / x).to_bits().wrapping_add(off));
                let y = (-x).mul_add(y, 1.0).mul_add(y, y);
                assert_eq!(quotient(127.0, x, y), 127.0 / x, "{x}");
            }
        }
    }
}
