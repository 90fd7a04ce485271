//! Softmax over keys in tiles, and the number types of cached keys and values.

use bytemuck::Pod;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::cpu::simd;

/// Keys per tile.
pub(super) const TILE: usize = 32;

/// A number type of cached keys and values.
pub(super) trait Element: Pod + Sync {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);

    /// [`simd::vectorize`] for the default number type of the cache. Ops over f32, for runs that are compared, have only the
    /// plain form, which gives the same bits.
    fn vectorize<R>(body: impl FnOnce() -> R) -> R;
}

impl Element for f32 {
    #[inline(always)]
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn vectorize<R>(body: impl FnOnce() -> R) -> R {
        body()
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(from: &[f16], to: &mut [f32]) {
        simd::widen(from, to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }

    #[inline(always)]
    fn vectorize<R>(body: impl FnOnce() -> R) -> R {
        simd::vectorize(body)
    }
}

/// Softmax in place.
#[inline(always)]
pub(super) fn softmax(values: &mut [f32]) {
    let max = simd::max(values);
    let mut sum = 0.0;
    for x in values.iter_mut() {
        *x = simd::exp(*x - max);
        sum += *x;
    }
    simd::scale(1.0 / sum, values);
}

/// The running softmax of one query, kept in `head_dim + 2` values: the largest score so far, the sum of
/// `exp(score - largest)`, and the weighted sum of the values.
pub(super) struct Running<'a> {
    largest: &'a mut f32,
    sum: &'a mut f32,
    weighted: &'a mut [f32],
}

impl<'a> Running<'a> {
    /// Continues from `entry`.
    #[inline(always)]
    pub fn new(entry: &'a mut [f32]) -> Self {
        let (largest, rest) = entry.split_first_mut().expect("an entry");
        let (sum, weighted) = rest.split_first_mut().expect("an entry");
        Running {
            largest,
            sum,
            weighted,
        }
    }

    /// Resets `entry` to a softmax over no keys.
    #[inline(always)]
    pub fn clear(entry: &mut [f32]) {
        entry.fill(0.0);
        entry[0] = f32::NEG_INFINITY;
    }

    /// Adds `n` keys and values. Not inlined: a tile is long enough to amortize the call.
    #[inline(never)]
    pub fn add(
        self,
        query: &[f32],
        scale: f32,
        n: usize,
        keys: &[f32],
        values: &[f32],
        scores: &mut [f32],
    ) {
        simd::vectorize(
            #[inline(always)]
            || self.add_keys(query, scale, n, keys, values, scores),
        );
    }

    #[inline(always)]
    fn add_keys(
        self,
        query: &[f32],
        scale: f32,
        n: usize,
        keys: &[f32],
        values: &[f32],
        scores: &mut [f32],
    ) {
        let dim = query.len();
        let scores = &mut scores[..n];
        for (i, score) in scores.iter_mut().enumerate() {
            *score = scale * simd::dot(query, &keys[i * dim..][..dim]);
        }
        let largest = self.largest.max(simd::max(scores));
        let shrink = simd::exp(*self.largest - largest);
        scores
            .iter_mut()
            .for_each(|score| *score = simd::exp(*score - largest));
        *self.largest = largest;
        *self.sum = *self.sum * shrink + simd::sum(scores);
        simd::scale(shrink, self.weighted);
        simd::add_rows(scores, values, self.weighted);
    }
}
