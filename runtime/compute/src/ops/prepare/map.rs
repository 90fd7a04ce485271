//! Maps of one head: feature maps, norms, choices.

use serde::{Deserialize, Serialize};

use super::rope::rotate;
use crate::cpu::simd;
use crate::functions::{Activation, Norm};
use crate::operands::View;
use crate::ops::softmax::softmax;
use crate::weights::Vector;

/// A map of one head's values.
pub enum HeadOp {
    /// A function of each value.
    Activation(Activation),
    /// `x / sqrt(sum x^2 + 1e-6)`.
    L2Norm,
    /// `x / sum |x|`.
    SumNorm,
    /// Softmax over the head.
    Softmax,
    /// Keeps the head's values of the largest magnitude and zeroes the others. The lower index wins a tie.
    Largest(usize),
    /// Zeroes values where these columns of another buffer are zero.
    Where(View),
    /// The product with a matrix `[head_dim, head_dim]`.
    Linear(Vector),
    /// The sum with these columns of another buffer.
    Add(View),
    /// The product with these columns, which no head group changes.
    Multiply(View),
    /// The product with a function of one of these columns, one column per head.
    Gate(View, Activation),
    /// The product with one of these columns, one column per head.
    Weigh(View),
    /// The product with a number.
    Scale(f32),
    /// Replaces the values by these columns of another buffer.
    Copy(View),
    /// The strength of a write from the logarithm of the decay that it complements, `1 - e^x`.
    WriteStrength,
    /// Root-mean-square norm.
    Rms(Norm),
    /// Rotary position, with the angles of [`super::Prepare::rope`].
    Rope,
    /// The product with a factor that grows with the token's position.
    Grow(Growth),
}

/// A factor that grows with the position, `1 + rate ln(1 + floor(position / period))`, so that scores in long contexts stay sharp.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Multiplies the logarithm.
    pub rate: f32,
    /// Positions between two values of the factor; at least 1.
    pub period: u32,
}

impl Growth {
    fn factor(self, position: u64) -> f32 {
        let periods = position / u64::from(self.period.max(1));
        1.0 + self.rate * (1.0 + periods as f32).ln()
    }
}

impl HeadOp {
    pub(super) fn source(&self) -> Option<&View> {
        match self {
            HeadOp::Add(view)
            | HeadOp::Multiply(view)
            | HeadOp::Gate(view, _)
            | HeadOp::Weigh(view)
            | HeadOp::Copy(view)
            | HeadOp::Where(view) => Some(view),
            _ => None,
        }
    }

    /// The columns of the source that head `head` of `head_dim` values reads: the first column, and the number of columns.
    pub(super) fn source_columns(&self, head: usize, head_dim: usize) -> (usize, usize) {
        match self {
            HeadOp::Gate(..) | HeadOp::Weigh(_) => (head, 1),
            _ => (head * head_dim, head_dim),
        }
    }

    #[inline(always)]
    pub(super) fn apply(
        &self,
        (position, angles): (u64, &[f32]),
        source: &[f32],
        head: &mut [f32],
        scratch: &mut [f32],
    ) {
        match self {
            HeadOp::Add(_) => simd::add(source, head),
            HeadOp::Multiply(_) => simd::multiply(source, head),
            HeadOp::Gate(_, function) => {
                let mut factor = [source[0]];
                function.apply(&mut factor);
                simd::scale(factor[0], head);
            }
            HeadOp::Weigh(_) => simd::scale(source[0], head),
            HeadOp::Scale(factor) => simd::scale(*factor, head),
            HeadOp::Copy(_) => head.copy_from_slice(source),
            HeadOp::Softmax => softmax(head),
            HeadOp::Where(_) => {
                for (x, source) in head.iter_mut().zip(source) {
                    *x = if *source == 0.0 { 0.0 } else { *x };
                }
            }
            HeadOp::Largest(count) => {
                const CHOSEN: f32 = -1.0;
                let sizes = &mut scratch[..head.len()];
                for (size, x) in sizes.iter_mut().zip(&*head) {
                    *size = x.abs();
                }
                for _ in 0..*count {
                    let mut best = 0;
                    for (i, size) in sizes.iter().enumerate() {
                        if *size > sizes[best] {
                            best = i;
                        }
                    }
                    sizes[best] = CHOSEN;
                }
                for (x, size) in head.iter_mut().zip(&*sizes) {
                    *x = if *size == CHOSEN { *x } else { 0.0 };
                }
            }
            HeadOp::Linear(matrix) => {
                let input = &mut scratch[..head.len()];
                input.copy_from_slice(head);
                for (x, row) in head.iter_mut().zip(matrix.chunks_exact(input.len())) {
                    *x = simd::dot(row, input);
                }
            }
            HeadOp::Activation(function) => function.apply(head),
            HeadOp::L2Norm => simd::scale(1.0 / (simd::dot(head, head) + 1e-6).sqrt(), head),
            HeadOp::SumNorm => {
                let sum: f32 = head.iter().map(|x| x.abs()).sum();
                simd::scale(1.0 / sum.max(1e-6), head);
            }
            HeadOp::WriteStrength => head.iter_mut().for_each(|x| *x = 1.0 - simd::exp(*x)),
            HeadOp::Rms(norm) => norm.apply_in_place(head),
            HeadOp::Rope => rotate(angles, head),
            HeadOp::Grow(growth) => simd::scale(growth.factor(position), head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_values_stay_whatever_their_sign() {
        let mut head = [-0.5, 2.0, -3.0, 2.0, 0.0];
        HeadOp::Largest(2).apply((0, &[]), &[], &mut head, &mut [0.0; 5]);
        assert_eq!(head, [0.0, 2.0, -3.0, 0.0, 0.0]);
    }

    #[test]
    fn growth_is_a_step_function_of_the_position() {
        let growth = Growth {
            rate: 0.5,
            period: 4,
        };
        for (position, periods) in [(0, 0.0), (3, 0.0), (4, 1.0), (11, 2.0)] {
            let mut head = [2.0, -1.0];
            HeadOp::Grow(growth).apply((position, &[]), &[], &mut head, &mut []);
            let factor = 1.0 + 0.5 * f32::ln(1.0 + periods);
            assert_eq!(head, [2.0 * factor, -factor], "position {position}");
        }
    }

    #[test]
    fn a_sum_norm_divides_by_absolute_values() {
        let mut head = [1.0, -3.0, 0.0];
        HeadOp::SumNorm.apply((0, &[]), &[], &mut head, &mut []);
        assert_eq!(head, [0.25, -0.75, 0.0]);
        let mut zeros = [0.0; 3];
        HeadOp::SumNorm.apply((0, &[]), &[], &mut zeros, &mut []);
        assert_eq!(zeros, [0.0; 3]);
    }
}
