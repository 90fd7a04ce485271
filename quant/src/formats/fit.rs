//! The search for scales during encoding. Follows ggml step by step, so that the bits are equal.
//!
//! The sums of a sub-block are taken in the order of its numbers, so a single sub-block leaves nothing to vectorise. Instead eight
//! sub-blocks are fitted at once, one per lane.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// Sub-blocks fitted at the same time.
pub(crate) const LANES: usize = 8;

/// Sub-blocks whose largest magnitude is below this are stored as zeros.
pub(crate) const LEAST_MAGNITUDE: f32 = 1e-15;

/// One number of each of eight sub-blocks.
#[derive(Clone, Copy)]
pub(crate) struct Lanes(pub(crate) [f32; LANES]);

/// One condition per lane.
type Mask = [bool; LANES];

impl Lanes {
    pub(crate) fn all(value: f32) -> Lanes {
        Lanes([value; LANES])
    }

    #[inline(always)]
    pub(crate) fn map(self, f: impl Fn(f32) -> f32) -> Lanes {
        Lanes(std::array::from_fn(|j| f(self.0[j])))
    }

    #[inline(always)]
    fn zip(self, other: Lanes, f: impl Fn(f32, f32) -> f32) -> Lanes {
        Lanes(std::array::from_fn(|j| f(self.0[j], other.0[j])))
    }

    #[inline(always)]
    fn above(self, other: Lanes) -> Mask {
        std::array::from_fn(|j| self.0[j] > other.0[j])
    }

    /// Returns `self` where the mask holds, otherwise `other`.
    #[inline(always)]
    fn where_or(self, mask: Mask, other: Lanes) -> Lanes {
        Lanes(std::array::from_fn(|j| {
            if mask[j] { self.0[j] } else { other.0[j] }
        }))
    }

    /// The nearest code in `low..=high`.
    #[inline(always)]
    fn code(self, low: i32, high: i32) -> Lanes {
        self.map(|x| nearest_int(x).clamp(low, high) as f32)
    }
}

#[inline(always)]
fn both(a: Mask, b: Mask) -> Mask {
    std::array::from_fn(|j| a[j] & b[j])
}

impl Add for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn add(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn sub(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn mul(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| a * b)
    }
}

impl Div for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn div(self, other: Lanes) -> Lanes {
        self.zip(other, |a, b| a / b)
    }
}

impl Neg for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn neg(self) -> Lanes {
        self.map(|a| -a)
    }
}

/// The nearest integer, ties to even. Beyond 2^22 the result depends on the bits of `x`, as in ggml.
#[inline(always)]
pub(crate) fn nearest_int(x: f32) -> i32 {
    const TWO_TO_23_AND_22: f32 = 12_582_912.0; // floats near it are spaced by 1
    ((x + TWO_TO_23_AND_22).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// The low byte of `x` truncated to an integer, or zero if `x` is beyond the range of 32-bit integers. x86-64 CPUs give this result when C
/// code converts a float to a byte.
#[inline]
pub(crate) fn low_byte(x: f32) -> u8 {
    if x.abs() < 2_147_483_648.0 {
        x as i32 as u8
    } else {
        0
    }
}

/// Arranges eight sub-blocks of N numbers each in lanes.
pub(crate) fn columns<const N: usize>(x: &[f32]) -> [Lanes; N] {
    std::array::from_fn(|i| Lanes(std::array::from_fn(|j| x[N * j + i])))
}

/// The number of largest magnitude, the first one among equals.
pub(crate) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(
        0.0,
        |max: f32, &x| if x.abs() > max.abs() { x } else { max },
    )
}

/// The number of largest magnitude in each sub-block, the first one among equals.
fn extremes<const N: usize>(x: &[Lanes; N]) -> Lanes {
    x.iter().fold(Lanes::all(0.0), |max, &x| {
        x.zip(max, |x, max| if x.abs() > max.abs() { x } else { max })
    })
}

/// Fitted scales, with the codes that they were fitted to.
pub(crate) struct Fit<const N: usize> {
    pub(crate) scale: Lanes,
    pub(crate) min: Lanes,
    pub(crate) codes: [Lanes; N],
}

impl<const N: usize> Fit<N> {
    /// The codes of sub-block `j`.
    pub(crate) fn codes_of(&self, j: usize) -> [u8; N] {
        self.codes.map(|codes| codes.0[j] as u8)
    }
}

/// The spacings that [`fit_affine`] tries: `max_code + first + stride * step` codes over the range of the numbers.
#[derive(Clone, Copy)]
pub(crate) struct Spacings {
    pub(crate) max_code: u8,
    pub(crate) first: f32,
    pub(crate) stride: f32,
    pub(crate) steps: u8,
}

/// Fits scale and minimum of `x = scale * code - min`, with codes `0..=max_code` and `min >= 0`.
///
/// Each candidate spacing gives codes, and the codes give a line by weighted linear regression. The result is the line with the least
/// weighted error: of magnitudes if `ABSOLUTE`, otherwise of squares.
pub(crate) fn fit_affine<const N: usize, const ABSOLUTE: bool>(
    x: &[Lanes; N],
    weight: &[Lanes; N],
    spacings: Spacings,
) -> Fit<N> {
    let zero = Lanes::all(0.0);
    let top = f32::from(spacings.max_code);
    let code = |x: Lanes| x.code(0, i32::from(spacings.max_code));
    let (mut low, mut high) = (x[0], x[0]);
    let (mut sum_w, mut sum_wx) = (weight[0], weight[0] * x[0]);
    for i in 1..N {
        low = x[i].zip(low, |x, low| if x < low { x } else { low });
        high = x[i].zip(high, |x, high| if x > high { x } else { high });
        sum_w = sum_w + weight[i];
        sum_wx = sum_wx + weight[i] * x[i];
    }
    low = low.map(|low| if low > 0.0 { 0.0 } else { low });
    let error = |scale: Lanes, low: Lanes, codes: &[Lanes; N]| {
        let mut error = zero;
        for i in 0..N {
            let difference = scale * codes[i] + low - x[i];
            let distance = if ABSOLUTE {
                difference.map(f32::abs)
            } else {
                difference * difference
            };
            error = error + weight[i] * distance;
        }
        error
    };
    // The spacing and the lowest number that gave the best codes so far.
    let (mut inverse, mut base) = (Lanes::all(top) / (high - low), low);
    let mut scale = Lanes::all(1.0) / inverse;
    let mut best = error(scale, low, &x.map(|x| code(inverse * (x - low))));
    for step in 0..=spacings.steps {
        let count = Lanes::all(spacings.first + spacings.stride * f32::from(step) + top);
        let candidate = count / (high - low);
        let mut codes = [zero; N];
        let (mut sum_q, mut sum_qq, mut sum_qx) = (zero, zero, zero);
        for i in 0..N {
            let q = code(candidate * (x[i] - low));
            let wq = weight[i] * q;
            sum_q = sum_q + wq;
            sum_qq = sum_qq + wq * q;
            sum_qx = sum_qx + wq * x[i];
            codes[i] = q;
        }
        let determinant = sum_w * sum_qq - sum_q * sum_q;
        let line_scale = (sum_w * sum_qx - sum_wx * sum_q) / determinant;
        let line_low = (sum_qq * sum_wx - sum_q * sum_qx) / determinant;
        let positive = line_low.above(zero);
        let line_scale = (sum_qx / sum_qq).where_or(positive, line_scale);
        let line_low = zero.where_or(positive, line_low);
        let line_error = error(line_scale, line_low, &codes);
        let better = both(determinant.above(zero), best.above(line_error));
        (inverse, base) = (
            candidate.where_or(better, inverse),
            low.where_or(better, base),
        );
        (scale, low) = (
            line_scale.where_or(better, scale),
            line_low.where_or(better, low),
        );
        best = line_error.where_or(better, best);
    }
    Fit {
        scale,
        min: -low,
        codes: x.map(|x| code(inverse * (x - base))),
    }
}

/// The squares of the numbers: weights for use without an importance matrix.
pub(crate) fn squares<const N: usize>(x: &[Lanes; N]) -> [Lanes; N] {
    x.map(|x| x * x)
}

/// Fits the scale of `x = scale * (code - half)`, with codes `0..2 * half`.
///
/// Candidate scales around the scale that maps the extreme number to code 0 give codes. For each set of codes the best scale is `sum w q x
/// / sum w q q`, and its gain over storing zeros is `(sum w q x)^2 / sum w q q`.
pub(crate) fn fit_symmetric<const N: usize>(
    x: &[Lanes; N],
    weight: &[Lanes; N],
    half: u8,
) -> Fit<N> {
    let zero = Lanes::all(0.0);
    let half = f32::from(half);
    let code = |x: Lanes| x.code(-half as i32, half as i32 - 1);
    let extreme = extremes(x);
    let sums = |inverse: Lanes| {
        let (mut sum_qx, mut sum_qq) = (zero, zero);
        for (&x, &weight) in x.iter().zip(weight) {
            let q = code(inverse * x);
            sum_qx = sum_qx + weight * x * q;
            sum_qq = sum_qq + weight * q * q;
        }
        (sum_qx, sum_qq)
    };
    let mut inverse = Lanes::all(-half) / extreme;
    let (sum_qx, sum_qq) = sums(inverse);
    let mut scale = (sum_qx / sum_qq).zip(sum_qq, |s, qq| if qq == 0.0 { 0.0 } else { s });
    let mut best = scale * sum_qx;
    for step in (-9..=9).filter(|&step| step != 0) {
        let candidate = Lanes::all(-(half + 0.1 * step as f32)) / extreme;
        let (sum_qx, sum_qq) = sums(candidate);
        let gains = (sum_qx * sum_qx).above(best * sum_qq);
        let better = both(sum_qq.above(zero), gains);
        scale = (sum_qx / sum_qq).where_or(better, scale);
        best = (scale * sum_qx).where_or(better, best);
        inverse = candidate.where_or(better, inverse);
    }
    let codes = x.map(|x| code(inverse * x) + Lanes::all(half));
    without_tiny(extreme, scale, codes)
}

/// Like [`fit_symmetric`], but starts from the codes of the scale that maps the extreme number to code 0. Then replaces one code after
/// another by the code nearest under the scale of the others, as long as that reduces the error, in at most five passes.
pub(crate) fn fit_one_by_one<const N: usize>(x: &[Lanes; N], half: u8) -> Fit<N> {
    let zero = Lanes::all(0.0);
    let half = f32::from(half);
    let code = |x: Lanes| x.code(-half as i32, half as i32 - 1);
    let extreme = extremes(x);
    let inverse = Lanes::all(-half) / extreme;
    let mut codes = x.map(|x| code(inverse * x));
    let (mut sum_qx, mut sum_qq) = (zero, zero);
    for (&x, &q) in x.iter().zip(&codes) {
        let weight = x * x;
        sum_qx = sum_qx + weight * x * q;
        sum_qq = sum_qq + weight * q * q;
    }
    for _ in 0..5 {
        let mut changed = [false; LANES];
        for (&x, q) in x.iter().zip(&mut codes) {
            let weight = x * x;
            let other_qx = sum_qx - weight * x * *q;
            let other_qq = sum_qq - weight * *q * *q;
            let new = code(x * other_qq / other_qx);
            let new_qx = other_qx + weight * x * new;
            let new_qq = other_qq + weight * new * new;
            let gains = (new_qx * new_qx * sum_qq).above(sum_qx * sum_qx * new_qq);
            let differs: Mask = std::array::from_fn(|j| new.0[j] != q.0[j]);
            let possible = both(other_qx.above(zero), new_qq.above(zero));
            let better = both(both(gains, differs), possible);
            *q = new.where_or(better, *q);
            (sum_qx, sum_qq) = (
                new_qx.where_or(better, sum_qx),
                new_qq.where_or(better, sum_qq),
            );
            changed = std::array::from_fn(|j| changed[j] | better[j]);
        }
        if changed == [false; LANES] {
            break;
        }
    }
    let scale = (sum_qx / sum_qq).where_or(sum_qq.above(zero), zero);
    without_tiny(extreme, scale, codes.map(|q| q + Lanes::all(half)))
}

/// Sets scale and codes to 0 in sub-blocks of tiny numbers.
fn without_tiny<const N: usize>(extreme: Lanes, scale: Lanes, codes: [Lanes; N]) -> Fit<N> {
    let keep = |x: Lanes| {
        x.zip(extreme, |x, extreme| {
            if extreme.abs() < LEAST_MAGNITUDE {
                0.0
            } else {
                x
            }
        })
    };
    Fit {
        scale: keep(scale),
        min: Lanes::all(0.0),
        codes: codes.map(keep),
    }
}

/// Fits the scale of `x = scale * values[code]`, for values that rise with the code and start with a negative one, with the same search.
pub(crate) fn fit_to_values<const N: usize>(
    x: &[Lanes; N],
    weight: &[Lanes; N],
    values: &[i8; 16],
) -> Lanes {
    let zero = Lanes::all(0.0);
    let first = f32::from(values[0]);
    let extreme = extremes(x);
    let sums = |inverse: Lanes| {
        let (mut sum_qx, mut sum_qq) = (zero, zero);
        for (&x, &weight) in x.iter().zip(weight) {
            let q = nearest_value(inverse * x, values);
            sum_qx = sum_qx + weight * q * x;
            sum_qq = sum_qq + weight * q * q;
        }
        (sum_qx, sum_qq)
    };
    let start = -extreme / Lanes::all(first);
    let (sum_qx, sum_qq) = sums(Lanes::all(1.0) / start);
    let mut scale = (sum_qx / sum_qq).where_or(sum_qq.above(zero), zero);
    let mut best = scale * sum_qx;
    for step in -7..=7 {
        let (sum_qx, sum_qq) = sums(Lanes::all(step as f32 + first) / extreme);
        let gains = (sum_qx * sum_qx).above(best * sum_qq);
        let better = both(sum_qq.above(zero), gains);
        scale = (sum_qx / sum_qq).where_or(better, scale);
        best = (scale * sum_qx).where_or(better, best);
    }
    without_tiny(extreme, scale, []).scale
}

/// The values nearest to `x`; the larger one of two equally near values.
#[inline(always)]
fn nearest_value(x: Lanes, values: &[i8; 16]) -> Lanes {
    let mut nearest = Lanes::all(f32::from(values[0]));
    for pair in values.windows(2) {
        let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
        let middle = 0.5 * (low + high);
        nearest = nearest + x.map(|x| if x < middle { 0.0 } else { high - low });
    }
    nearest
}

/// The code of the value nearest to `x`; the larger one of two equally near values.
pub(crate) fn nearest_value_code(x: f32, values: &[i8; 16]) -> u8 {
    let middles = values
        .windows(2)
        .map(|pair| 0.5 * (f32::from(pair[0]) + f32::from(pair[1])));
    // Comparisons with NaN are false, so NaN gets the largest code.
    16 - 1 - middles.filter(|&middle| x < middle).count() as u8
}
