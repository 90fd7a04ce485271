//! Encoding with an importance matrix: numbers that large inputs multiply lose the least. Follows ggml step by step, so that the bits are
//! equal.

use bytemuck::{AnyBitPattern, NoUninit};

use super::fit::{self, LANES, LEAST_MAGNITUDE, Lanes, Spacings, nearest_int};

/// Returns the spacings that are tried for `x = scale * code - min`.
pub(crate) fn spacings(max_code: u8) -> Spacings {
    Spacings {
        max_code,
        first: -0.9,
        stride: 0.05,
        steps: 36,
    }
}

/// The mean of the squares, summed in order.
pub(crate) fn mean_square(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, &x| sum + x * x) / x.len() as f32
}

/// The sum of each sub-block, in order.
pub(crate) fn sums<const N: usize>(x: &[Lanes; N]) -> Lanes {
    x.iter().fold(Lanes::all(0.0), |sum, &x| sum + x)
}

/// Returns the weights of numbers whose inputs have the mean squares `importance`: `importance * sqrt(spread + x^2)`.
pub(crate) fn weights<const N: usize>(
    x: &[Lanes; N],
    importance: &[f32],
    spread: Lanes,
) -> [Lanes; N] {
    let importance = fit::columns::<N>(importance);
    std::array::from_fn(|i| importance[i] * (spread + x[i] * x[i]).map(f32::sqrt))
}

/// Fits one scale for the scales or minima of sub-blocks, and their codes `0..=max`. Starts from the codes of the best of nine spacings.
/// Then replaces one code after another by the code nearest under the scale of the others, as long as that reduces the error, in at most
/// five passes.
pub(crate) fn fit_scales<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    max: u8,
) -> (super::Half, [u8; N]) {
    let (scale, codes) = fit_positive(x, weights, i32::from(max));
    (super::Half::from_f32(scale), codes)
}

fn fit_positive<const N: usize>(x: &[f32; N], weights: &[f32; N], max: i32) -> (f32, [u8; N]) {
    let largest = x.iter().fold(0.0, |max, &x| if max > x { max } else { x });
    if largest < LEAST_MAGNITUDE {
        return (0.0, [0; N]);
    }
    let numbers = || x.iter().zip(weights);
    let mut inverse = max as f32 / largest;
    let scale = 1.0 / inverse;
    let mut best = 0.0;
    for (&x, &w) in numbers() {
        let difference = x - scale * f32::from(nearest_int(inverse * x) as u8);
        best += w * difference * difference;
    }
    for step in (-4..=4).filter(|&step| step != 0) {
        let candidate = (0.1 * step as f32 + max as f32) / largest;
        let scale = 1.0 / candidate;
        let mut error = 0.0;
        for (&x, &w) in numbers() {
            let difference = x - scale * nearest_int(candidate * x).min(max) as f32;
            error += w * difference * difference;
        }
        if error < best {
            (best, inverse) = (error, candidate);
        }
    }
    let (mut sum_qx, mut sum_qq) = (0.0, 0.0);
    // The code of a negative number wraps, as in ggml.
    let mut codes = [0_u8; N];
    for ((&x, &w), code) in numbers().zip(&mut codes) {
        let q = nearest_int(inverse * x).min(max);
        *code = q as u8;
        sum_qx += w * x * q as f32;
        sum_qq += w * q as f32 * q as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((&x, &w), code) in numbers().zip(&mut codes) {
            let q = f32::from(*code);
            let other_qx = sum_qx - w * x * q;
            let other_qq = sum_qq - w * q * q;
            if !(other_qx > 0.0 && other_qq > 0.0) {
                continue;
            }
            let new = nearest_int(x * other_qq / other_qx).min(max);
            if new == i32::from(*code) {
                continue;
            }
            let new_qx = other_qx + w * x * new as f32;
            let new_qq = other_qq + w * new as f32 * new as f32;
            if new_qx * new_qx * sum_qq > sum_qx * sum_qx * new_qq {
                (*code, sum_qx, sum_qq) = (new as u8, new_qx, new_qq);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    (if sum_qq > 0.0 { sum_qx / sum_qq } else { 0.0 }, codes)
}

/// Encodes blocks of 32 numbers, eight at a time; the last group may be smaller.
pub(crate) fn encode_eights<B: NoUninit + AnyBitPattern>(
    row: &[f32],
    importance: Option<&[f32]>,
    dst: &mut [u8],
    encode: impl Fn(&[f32; 32 * LANES], Option<&[f32]>) -> [B; LANES],
) {
    const MANY: usize = 32 * LANES;
    let padded = |numbers: &[f32], first: usize| {
        let (mut padded, numbers) = ([0.0; MANY], &numbers[first..]);
        let count = numbers.len().min(MANY);
        padded[..count].copy_from_slice(&numbers[..count]);
        padded
    };
    let blocks = bytemuck::cast_slice_mut::<u8, B>(dst).chunks_mut(LANES);
    for (i, blocks) in blocks.enumerate() {
        let inputs = importance.map(|importance| padded(importance, i * MANY));
        let encoded = encode(&padded(row, i * MANY), inputs.as_ref().map(|all| &all[..]));
        blocks.copy_from_slice(&encoded[..blocks.len()]);
    }
}
