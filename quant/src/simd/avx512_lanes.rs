//! Products of few tokens with formats whose blocks of 32 numbers lie in the 32-bit lanes of a register: no code is moved between lanes, and scales
//! and minima are multiplied for sixteen blocks at once.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use bytemuck::Pod;

use super::avx2::prefetch;
use super::avx512::{constant, write_sums};
use crate::activations::GROUP;
use crate::kernel::{self, Product};

/// Blocks in a register.
const LANES: usize = 16;

/// Sixteen blocks of 32 4-bit codes: `x = scale * (code - OFFSET) - min`.
pub(crate) trait Lanes: Pod {
    /// What is subtracted from each code.
    const OFFSET: i8;

    /// Scale of each block, and minimum if the format has any.
    ///
    /// # Safety
    /// `wide` is valid for reading, of any alignment.
    unsafe fn spacing(wide: *const Self) -> (__m512, Option<__m512>);

    /// Four times 64 bytes: lane b of the j-th has codes 4 j to 4 j + 3 of block b in its low halves, and those sixteen further on in its
    /// high halves.
    fn codes(wide: *const Self) -> *const [u8; 64];
}

/// Dword j of lane b becomes dword b of lane j.
pub(crate) const TRANSPOSED: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// The codes of sixteen blocks of inputs, from the order of [`Activations`](crate::Activations) into lanes: register j of each half has
/// codes 4 j to 4 j + 3.
///
/// # Safety
/// `codes` is valid for 512 bytes, and the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn in_lanes(codes: *const i8) -> [[__m512i; 4]; 2] {
    [0, 64].map(|half| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|group| {
            // SAFETY: 64 bytes of a group.
            let codes = unsafe { _mm512_loadu_si512(codes.add(group * GROUP + half).cast()) };
            _mm512_permutexvar_epi32(constant(&TRANSPOSED), codes)
        });
        let low = (
            _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d),
        );
        let high = (
            _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d),
        );
        // low has lanes 0 and 2 of each, high 1 and 3.
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(high.0, high.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(high.0, high.1),
        ]
    })
}

pub(crate) struct LaneTile<B>(PhantomData<B>);

impl<B: Lanes> kernel::Tile for LaneTile<B> {
    // Inputs are brought into lanes once for eight rows.
    #[inline]
    unsafe fn eight_rows(product: &Product, row: usize, token: usize) -> bool {
        // As for other formats, eight rows and the next eight must fit in the nearest cache.
        const LONGEST: usize = 1200;
        let fit = product.row_bytes <= LONGEST;
        if fit {
            // SAFETY: as the caller vouches.
            unsafe { Self::tile::<8, 1>(product, row, token) };
        }
        fit
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        let rows = &product.weights[row * product.row_bytes..][..R * product.row_bytes];
        let weights: [*const B; R] =
            std::array::from_fn(|r| rows[r * product.row_bytes..].as_ptr().cast());
        let x: [_; T] = std::array::from_fn(|t| product.input(token + t));
        let ahead = product.least_ahead.max(R * product.row_bytes);
        let low = _mm512_set1_epi8(15);
        let mut sum = [[_mm512_setzero_ps(); T]; R];
        for step in 0..product.row_bytes / size_of::<B>() {
            if T == 1 {
                let ahead = weights[0].wrapping_byte_add(ahead);
                prefetch(ahead.wrapping_add(step * R), R);
            }
            for t in 0..T {
                // SAFETY: rows of inputs are padded to a multiple of 256, and those of this format have a multiple of 512.
                let (codes, scales, sums) = unsafe {
                    (
                        in_lanes(x[t].codes.as_ptr().add(step * 32 * LANES)),
                        _mm512_loadu_ps(x[t].scales.as_ptr().add(step * LANES)),
                        _mm512_loadu_ps(x[t].sums.as_ptr().add(step * LANES)),
                    )
                };
                // The offset's share of every row's products.
                let mut start = _mm512_setzero_si512();
                if B::OFFSET != 0 {
                    let offset = _mm512_set1_epi8(B::OFFSET);
                    let all = codes.as_flattened().iter();
                    let below = all.fold(start, |sum, x| _mm512_dpbusd_epi32(sum, offset, *x));
                    start = _mm512_sub_epi32(start, below);
                }
                for r in 0..R {
                    let wide = weights[r].wrapping_add(step);
                    // SAFETY: the block is within its row.
                    let (scale, min) = unsafe { B::spacing(wide) };
                    let mut dots = [start, _mm512_setzero_si512()];
                    for j in 0..4 {
                        // SAFETY: as above.
                        let q = unsafe { _mm512_loadu_si512(B::codes(wide).add(j).cast()) };
                        let first = _mm512_and_si512(q, low);
                        let second = _mm512_and_si512(_mm512_srli_epi16::<4>(q), low);
                        dots[0] = _mm512_dpbusd_epi32(dots[0], first, codes[0][j]);
                        dots[1] = _mm512_dpbusd_epi32(dots[1], second, codes[1][j]);
                    }
                    let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
                    sum[r][t] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scales), sum[r][t]);
                    if let Some(min) = min {
                        sum[r][t] = _mm512_fnmadd_ps(min, sums, sum[r][t]);
                    }
                }
            }
        }
        for t in 0..T {
            let out = product
                .out
                .wrapping_add((token + t) * product.out_stride + row);
            // SAFETY: the caller vouches for these R elements.
            unsafe { write_sums(&sum.map(|sums| sums[t]), out) };
        }
    }
}
