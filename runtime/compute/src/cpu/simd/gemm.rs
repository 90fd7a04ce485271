//! Products of small f32 matrices, computed tile by tile.

use super::{Level, level};

/// `C += A B`. C `[m, n]` and B `[k, n]` are row-major with row strides `c_row` and `b_row`. A's value (i, p) is at `i * a_row + p *
/// a_col`, so that a transposed A needs no copy.
///
/// Compiled once for each vector unit, with fused multiply-adds where the unit has them.
pub fn gemm(
    size: [usize; 3],
    a: &[f32],
    a_steps: [usize; 2],
    b: &[f32],
    b_row: usize,
    c: &mut [f32],
    c_row: usize,
) {
    scaled_gemm(size, 1.0, (a, a_steps), (b, b_row), (c, c_row));
}

/// `C <- keep C + A B`; otherwise like [`gemm`].
pub(crate) fn scaled_gemm(
    size: [usize; 3],
    keep: f32,
    (a, a_steps): (&[f32], [usize; 2]),
    (b, b_row): (&[f32], usize),
    (c, c_row): (&mut [f32], usize),
) {
    let product = Gemm {
        size,
        keep,
        a,
        a_steps,
        b,
        b_row,
        c_row,
    };
    match level() {
        // SAFETY: the features were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { product.on_avx512(c) },
        // SAFETY: the features were detected.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { product.on_avx2(c) },
        // Every 64-bit ARM processor has fused multiply-adds.
        Level::Base if cfg!(target_arch = "aarch64") => product.run::<16, true>(c),
        Level::Base => product.run::<8, false>(c),
    }
}

/// The arguments of [`scaled_gemm`], without C.
struct Gemm<'a> {
    size: [usize; 3],
    keep: f32,
    a: &'a [f32],
    a_steps: [usize; 2],
    b: &'a [f32],
    b_row: usize,
    c_row: usize,
}

impl Gemm<'_> {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn on_avx512(&self, c: &mut [f32]) {
        self.run::<32, true>(c);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn on_avx2(&self, c: &mut [f32]) {
        self.run::<16, true>(c);
    }

    /// Computes C tile by tile. The sums of four rows by `WIDE` columns fit into the unit's registers.
    #[inline(always)]
    fn run<const WIDE: usize, const FUSED: bool>(&self, c: &mut [f32]) {
        let [m, n, _] = self.size;
        let mut j = 0;
        while j < n {
            // With few rows, B is read straight from memory: in wide tiles, which have enough independent sums.
            let width = match n - j {
                64.. if m < 4 => 64,
                rest if rest >= WIDE => WIDE,
                16.. => 16,
                8.. => 8,
                _ => 1,
            };
            let mut i = 0;
            while i < m {
                let tall = m - i >= 4;
                match (tall, width) {
                    (true, 32) => self.tile::<4, 32, FUSED>(i, j, c),
                    (true, 16) => self.tile::<4, 16, FUSED>(i, j, c),
                    (true, 8) => self.tile::<4, 8, FUSED>(i, j, c),
                    (true, _) => self.tile::<4, 1, FUSED>(i, j, c),
                    (false, 64) => self.tile::<1, 64, FUSED>(i, j, c),
                    (false, 32) => self.tile::<1, 32, FUSED>(i, j, c),
                    (false, 16) => self.tile::<1, 16, FUSED>(i, j, c),
                    (false, 8) => self.tile::<1, 8, FUSED>(i, j, c),
                    (false, _) => self.tile::<1, 1, FUSED>(i, j, c),
                }
                i += if tall { 4 } else { 1 };
            }
            j += width;
        }
    }

    /// Computes `M` rows by `N` columns of C, from row i and column j on.
    #[inline(always)]
    fn tile<const M: usize, const N: usize, const FUSED: bool>(
        &self,
        i: usize,
        j: usize,
        c: &mut [f32],
    ) {
        let [a_row, a_col] = self.a_steps;
        let (a, b, c) = (
            &self.a[i * a_row..],
            &self.b[j..],
            &mut c[i * self.c_row + j..],
        );
        let mut sums = [[0.0f32; N]; M];
        for p in 0..self.size[2] {
            let row: &[f32; N] = b[p * self.b_row..].first_chunk().expect("a row of B");
            let factors: [f32; M] = std::array::from_fn(|i| a[i * a_row + p * a_col]);
            // Lanes in the outer loop, and nothing that can panic inside: otherwise not all sums stay in vector registers.
            for l in 0..N {
                for i in 0..M {
                    sums[i][l] = if FUSED {
                        factors[i].mul_add(row[l], sums[i][l])
                    } else {
                        sums[i][l] + factors[i] * row[l]
                    };
                }
            }
        }
        for i in 0..M {
            let row: &mut [f32; N] = c[i * self.c_row..].first_chunk_mut().expect("a row of C");
            for l in 0..N {
                row[l] = self.keep * row[l] + sums[i][l];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gemm_matches_the_triple_loop() {
        let value = |i: usize| ((i * 7919 + 13) % 101) as f32 / 50.0 - 1.0;
        for [m, n, k] in [
            [1, 1, 1],
            [4, 32, 8],
            [5, 45, 3],
            [6, 16, 33],
            [9, 70, 17],
            [3, 7, 64],
            [2, 130, 9],
        ] {
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..k * n).map(|i| value(i + 5)).collect();
            let mut c: Vec<f32> = (0..m * n).map(|i| value(i + 9)).collect();
            let mut expected = c.clone();
            for i in 0..m {
                for j in 0..n {
                    for p in 0..k {
                        // A is given transposed.
                        expected[i * n + j] += a[p * m + i] * b[p * n + j];
                    }
                }
            }
            let mut kept = c.clone();
            gemm([m, n, k], &a, [1, m], &b, n, &mut c, n);
            scaled_gemm([m, n, k], 0.5, (&a, [1, m]), (&b, n), (&mut kept, n));
            for (i, (x, y)) in c.iter().zip(&expected).enumerate() {
                assert!((x - y).abs() < 1e-4, "{m} {n} {k}: {x} {y}");
                let y = y - 0.5 * value(i + 9);
                assert!((kept[i] - y).abs() < 1e-4, "{m} {n} {k}: {} {y}", kept[i]);
            }
        }
    }
}
