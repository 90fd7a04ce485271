//! Scores of keys.

use crate::cpu::simd;
use crate::weights::Vector;

/// Scores a key from itself and the direction of the mean query so far: two layers with relu, then a sum.
pub struct Scorer {
    /// Weights of each layer, transposed `[2 width, 2 width]`.
    pub(in crate::ops) weights: [Vector; 2],
    pub(in crate::ops) biases: [Vector; 2],
    pub(in crate::ops) last: Vector,
    pub(in crate::ops) last_bias: f32,
}

impl Scorer {
    /// From a checkpoint's matrices `[out, in]` and biases.
    pub fn new(layers: [(Vector, Vector); 2], last: Vector, last_bias: f32) -> Self {
        let transpose = |weight: &Vector, n: usize| -> Vector {
            (0..n * n).map(|i| weight[i % n * n + i / n]).collect()
        };
        let [(first, first_bias), (second, second_bias)] = layers;
        let n = last.len();
        Scorer {
            weights: [transpose(&first, n), transpose(&second, n)],
            biases: [first_bias, second_bias],
            last,
            last_bias,
        }
    }

    /// The score of `key`, given the mean query.
    #[inline(always)]
    pub(super) fn score(&self, key: &[f32], mean_query: &[f32], scratch: &mut [f32]) -> f32 {
        let n = self.last.len();
        let (x, rest) = scratch.split_at_mut(n);
        let y = &mut rest[..n];
        let (copy, direction) = x.split_at_mut(key.len());
        copy.copy_from_slice(key);
        direction.copy_from_slice(mean_query);
        // The mean has the same direction as the sum.
        let length = simd::dot(mean_query, mean_query).sqrt();
        simd::scale(1.0 / length.max(1e-12), direction);
        for (weight, bias) in self.weights.iter().zip(&self.biases) {
            y.copy_from_slice(bias);
            simd::gemm([1, n, n], x, [n, 1], weight, n, y, n);
            for (x, y) in x.iter_mut().zip(y.iter()) {
                *x = y.max(0.0);
            }
        }
        simd::dot(x, &self.last) + self.last_bias
    }
}
