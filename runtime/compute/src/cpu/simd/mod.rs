//! Vector primitives on f32, written as plain loops that the compiler vectorises for the widest vector unit of this CPU.

mod gemm;

use half::f16;

pub use gemm::gemm;
pub(crate) use gemm::scaled_gemm;

/// Values in flight per loop iteration: four AVX-512 registers, or eight AVX2 registers.
const LANES: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Base,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

fn level() -> Level {
    static LEVEL: once_cell::sync::OnceCell<Level> = once_cell::sync::OnceCell::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let has_avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if has_avx2 && has_avx512 {
                return Level::Avx512;
            }
            if has_avx2 {
                return Level::Avx2;
            }
        }
        Level::Base
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn on_avx512<R>(body: impl FnOnce() -> R) -> R {
    body()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_avx2<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// Runs `body` compiled for this CPU's vector unit. Only inlined code is compiled for the unit: mark the closure itself,
/// `vectorize(#[inline(always)] || ...)`, its callees, and closures inside it, unless they are tiny. Each call is compiled three times: put
/// large code with several callers into an `#[inline(never)]` function. The results do not depend on the unit, since no operation is fused
/// or reordered, except in [`gemm`].
#[inline(always)]
pub fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    match level() {
        // SAFETY: the features were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512(body) },
        // SAFETY: the features were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { on_avx2(body) },
        Level::Base => body(),
    }
}

/// Sums all lanes by adding halves. The halves have constant widths: a loop over widths would stay scalar.
#[inline(always)]
fn fold(lanes: [f32; LANES]) -> f32 {
    let quarter: [f32; 16] = halve::<32, 16>(halve::<LANES, 32>(lanes));
    let [a, b, c, d] = halve::<8, 4>(halve::<16, 8>(quarter));
    (a + c) + (b + d)
}

/// Adds the second half of `N` values to the first half, lane by lane.
#[inline(always)]
fn halve<const N: usize, const HALF: usize>(x: [f32; N]) -> [f32; HALF] {
    const { assert!(N == 2 * HALF) };
    let mut sums = [0.0; HALF];
    for l in 0..HALF {
        sums[l] = x[l] + x[l + HALF];
    }
    sums
}

/// Sum of squares: each square in f32, the sum in f64.
#[inline(always)]
pub(crate) fn square_sum(x: &[f32]) -> f64 {
    let mut sums = [0.0f64; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for x in chunks {
        for l in 0..16 {
            sums[l] += f64::from(x[l] * x[l]);
        }
    }
    let rest: f64 = rest.iter().map(|x| f64::from(x * x)).sum();
    sums.iter().sum::<f64>() + rest
}

/// Sum of products.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for l in 0..LANES {
            sums[l] += x[l] * y[l];
        }
    }
    let mut sum = fold(sums);
    if a_rest.is_empty() {
        return sum;
    }
    let (a_chunks, a_rest) = a_rest.as_chunks::<8>();
    let (b_chunks, b_rest) = b_rest.as_chunks::<8>();
    let mut small = [0.0f32; 8];
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for l in 0..8 {
            small[l] += x[l] * y[l];
        }
    }
    for l in 0..8 {
        sum += small[l];
    }
    for (x, y) in a_rest.iter().zip(b_rest) {
        sum += x * y;
    }
    sum
}

/// `y += a x`.
#[inline(always)]
pub(crate) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `y *= a`.
#[inline(always)]
pub fn scale(a: f32, y: &mut [f32]) {
    for y in y {
        *y *= a;
    }
}

/// `y *= x`.
#[inline(always)]
pub fn multiply(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y *= x;
    }
}

/// `y += x`.
#[inline(always)]
pub fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// Sum.
#[inline(always)]
pub fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for x in chunks {
        for l in 0..16 {
            sums[l] += x[l];
        }
    }
    let [a, b, c, d] = halve::<8, 4>(halve::<16, 8>(sums));
    rest.iter().fold((a + c) + (b + d), |sum, x| sum + x)
}

/// Largest value; negative infinity if `x` is empty.
#[inline(always)]
pub fn max(x: &[f32]) -> f32 {
    let larger = |m: f32, v: f32| if v > m { v } else { m };
    let mut largest = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for x in chunks {
        for l in 0..16 {
            largest[l] = larger(largest[l], x[l]);
        }
    }
    let lanes = largest.iter().chain(rest);
    lanes.fold(f32::NEG_INFINITY, |m, &v| larger(m, v))
}

/// `y += sum_i weights[i] rows[i]`; each row has the length of `y`.
#[inline(always)]
pub(crate) fn add_rows(weights: &[f32], rows: &[f32], y: &mut [f32]) {
    const WIDTH: usize = 64;
    let width = y.len();
    let mut column = 0;
    // A group of columns stays in registers across all rows.
    let (groups, rest) = y.as_chunks_mut::<WIDTH>();
    for y in groups {
        let mut sums = *y;
        for (weight, row) in weights.iter().zip(rows.chunks_exact(width)) {
            let row: &[f32; WIDTH] = row[column..].first_chunk().expect("columns of a row");
            for l in 0..WIDTH {
                sums[l] += weight * row[l];
            }
        }
        *y = sums;
        column += WIDTH;
    }
    if !rest.is_empty() {
        for (weight, row) in weights.iter().zip(rows.chunks_exact(width)) {
            axpy(*weight, &row[column..], rest);
        }
    }
}

/// `e^x` to about two units in the last place; 0 below -87.3, infinity above 88.7.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let clamped = x.clamp(-87.336_54, 88.722_83);
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts, so that n * ln 2 is exact enough.
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 0.166_666_65;
    p = p * r + 0.5;
    let y = (p * r * r + r) + 1.0;
    // 2^n in two factors: 2^128 alone is not a float.
    let half = (n * 0.5) as i32;
    let rest = n as i32 - half;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let result = y * power(half) * power(rest);
    if x < -87.336_54 {
        0.0
    } else if x > 88.722_83 {
        f32::INFINITY
    } else if x.is_nan() {
        x
    } else {
        result
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + e^x)`, with a small relative error even where the result is tiny.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    // max(x, 0) + ln(1 + u) with u = e^-|x| at most 1, and ln(1 + u) = 2 artanh(s) with s at most 1/3.
    let u = exp(-x.abs());
    let s = u / (2.0 + u);
    let square = s * s;
    let mut p = 1.0 / 13.0;
    for i in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * square + 1.0 / i;
    }
    x.max(0.0) + 2.0 * s * p
}

/// Sine and cosine with an error of about 1e-7, for angles up to 100.
#[inline(always)]
pub fn sin_cos(x: f32) -> (f32, f32) {
    const ROUND: f32 = 12_582_912.0; // as in `exp`
    // x = n pi/2 + r, with pi/2 in three parts, so that n * pi/2 is exact enough. The low bits of the rounded sum are those of n.
    let rounded = x * std::f32::consts::FRAC_2_PI + ROUND;
    // All bits of a NaN may be set.
    let (n, quarter) = (rounded - ROUND, rounded.to_bits());
    let r = ((x - n * 1.570_312_5) - n * 4.837_513e-4) - n * 7.549_79e-8;
    let square = r * r;
    let sin = ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 0.166_666_55) * square * r + r;
    let cos = (2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2;
    let cos = cos * square * square - 0.5 * square + 1.0;
    let choose = |a, b| if quarter & 1 == 0 { a } else { b };
    let signed = |x: f32, quarter: u32| f32::from_bits(x.to_bits() ^ (quarter & 2) << 30);
    (
        signed(choose(sin, cos), quarter),
        signed(choose(cos, sin), quarter.wrapping_add(1)),
    )
}

/// Converts half-precision numbers to f32.
#[inline(always)]
pub fn widen(from: &[f16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        let bits = u32::from(from.to_bits());
        // The exponent bias of halves is 15 and that of floats 127, so the product with 2^112 is the number, including subnormal ones.
        // Infinities and NaN have the highest exponent in both formats.
        let rest = (bits & 0x7fff) << 13;
        let finite = (f32::from_bits(rest) * f32::from_bits((112 + 127) << 23)).to_bits();
        let magnitude = if rest >= 0x0f80_0000 {
            rest | 0x7f80_0000
        } else {
            finite
        };
        *to = f32::from_bits(magnitude | (bits & 0x8000) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_ends_well() {
        let mut worst = 0.0f64;
        for i in -87_000..88_000 {
            let x = i as f32 * 1e-3;
            let exact = (x as f64).exp();
            worst = worst.max(((exp(x) as f64 - exact) / exact).abs());
        }
        assert!(worst < 2.5e-7, "{worst}");
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_is_accurate_at_both_ends() {
        for i in -80_000..80_000 {
            let x = i as f32 * 1e-3;
            let exact = (x as f64).exp().ln_1p();
            let error = (softplus(x) as f64 - exact).abs() / exact;
            assert!(error < 5e-7, "{x}: {error}");
        }
        assert_eq!(softplus(200.0), 200.0);
        assert_eq!(softplus(-200.0), 0.0);
    }

    #[test]
    fn sin_cos_is_accurate() {
        for i in -100_000..100_000 {
            let x = i as f32 * 1e-3;
            let (sin, cos) = sin_cos(x);
            let exact = f64::from(x).sin_cos();
            let error = (f64::from(sin) - exact.0).abs() + (f64::from(cos) - exact.1).abs();
            assert!(error < 2e-7, "{x}: {error}");
        }
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }

    #[test]
    fn sum_max_and_add_rows_handle_every_length() {
        for n in 0..200 {
            let x: Vec<f32> = (0..n).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            assert_eq!(sum(&x), x.iter().sum::<f32>(), "{n}");
            let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&x), largest, "{n}");
            let rows: Vec<f32> = (0..3 * n).map(|i| (i % 11) as f32).collect();
            let mut y = x.clone();
            if n > 0 {
                add_rows(&[1.0, -2.0, 3.0], &rows, &mut y);
            }
            for i in 0..n {
                let expected = x[i] + rows[i] - 2.0 * rows[n + i] + 3.0 * rows[2 * n + i];
                assert_eq!(y[i], expected, "{n} {i}");
            }
        }
    }

    /// Calls most of the primitives and returns the bits of the results.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn everything(a: &[f32], b: &[f32]) -> Vec<u32> {
        let mut out = vec![0.0; a.len()];
        add_rows(&a[..5], b, &mut out[..77]);
        for (out, x) in out.iter_mut().zip(a) {
            *out += exp(*x) + silu(*x) + softplus(*x) + sin_cos(*x).0;
        }
        out.extend([dot(a, b), sum(a), max(b)]);
        out.iter().map(|x| x.to_bits()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_unit_gives_the_same_bits() {
        let value = |i: usize| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0;
        let (a, b): (Vec<f32>, Vec<f32>) = (0..5 * 77).map(|i| (value(i), value(i + 31))).unzip();
        let plain = everything(&a, &b);
        if level() != Level::Base {
            // SAFETY: both wider levels have AVX2.
            let found = unsafe {
                on_avx2(
                    #[inline(always)]
                    || everything(&a, &b),
                )
            };
            assert_eq!(found, plain);
        }
        if level() == Level::Avx512 {
            // SAFETY: the level was detected.
            let found = unsafe {
                on_avx512(
                    #[inline(always)]
                    || everything(&a, &b),
                )
            };
            assert_eq!(found, plain);
        }
    }

    #[test]
    fn every_half_is_widened_exactly() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; halves.len()];
        vectorize(
            #[inline(always)]
            || widen(&halves, &mut wide),
        );
        for (half, wide) in halves.iter().zip(wide) {
            let same = wide.to_bits() == half.to_f32().to_bits();
            assert!(same || half.is_nan() && wide.is_nan(), "{half:?} {wide}");
        }
    }

    #[test]
    fn dot_handles_every_length() {
        for n in 0..200 {
            let a: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
            let b: Vec<f32> = (0..n).map(|i| (i % 5) as f32 - 2.0).collect();
            let expected: f32 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
            assert_eq!(
                vectorize(
                    #[inline(always)]
                    || dot(&a, &b)
                ),
                expected,
                "{n}"
            );
        }
    }
}
