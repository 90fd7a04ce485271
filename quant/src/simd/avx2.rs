//! AVX2 with FMA and F16C.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use crate::activations::{BLOCK, GROUP, RowMut};
use crate::kernel::{self, Product};
use crate::panel::Minima;
use crate::rounding::Rounding;

/// Loading of a float format.
pub(crate) trait Float: Pod {
    /// Loads 8 values as f32.
    ///
    /// # Safety
    /// `at` must be valid for 8 values, with any alignment.
    unsafe fn load(at: *const Self) -> __m256;
}

/// Unpacking of an integer format.
pub(crate) trait Integer {
    /// Unit of unpacking: blocks that hold [`Integer::PAIRS`] pairs of 32-value blocks.
    type Chunk: Pod;
    /// Values shared by the pairs of a chunk, in registers.
    type Header: Copy;

    /// Pairs of blocks in a chunk.
    const PAIRS: usize;
    /// Subtracted from each unpacked code. Codes are unsigned and below 64.
    const OFFSET: i8 = 0;
    /// The largest unpacked code, unless codes are signed.
    const LARGEST: u8 = 63;
    /// Whether unpacked codes are signed.
    const SIGNED: bool = false;
    /// Whether the two halves of each block of 32 have separate scales.
    const HALF_SCALES: bool = false;
    /// Which of `mins` and `half_mins` the format implements.
    const MINIMA: Minima = Minima::None;

    /// # Safety
    /// `chunk` must be valid for reading, with any alignment.
    unsafe fn header(chunk: *const Self::Chunk) -> Self::Header;

    /// # Safety
    /// As for `header`; `pair` must be below `PAIRS`.
    unsafe fn pair(chunk: *const Self::Chunk, header: Self::Header, pair: usize) -> Pair;

    /// Returns the minima of the chunk's eight blocks, for formats that have them.
    fn mins(_: Self::Header) -> Option<__m256> {
        None
    }

    /// Returns the minima of the halves of the eight blocks.
    fn half_mins(_: Self::Header) -> Option<[__m256; 2]> {
        None
    }
}

/// Two blocks of 32 unpacked weights, one in each 128-bit lane.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// Codes of the first 16 values of each block.
    pub(crate) first: __m256i,
    /// Codes of the last 16 values of each block.
    pub(crate) second: __m256i,
    /// Scale of each lane of `first`, and of `second` unless `second` has separate scales.
    pub(crate) scale: __m256,
    /// Scale of each lane of `second`.
    pub(crate) second_scale: __m256,
}

impl Pair {
    /// Creates a pair of blocks whose halves share one scale.
    #[inline(always)]
    pub(crate) fn new(first: __m256i, second: __m256i, scale: __m256) -> Self {
        Pair {
            first,
            second,
            scale,
            second_scale: scale,
        }
    }
}

/// Broadcasts two f32 from memory, each to one 128-bit lane.
///
/// # Safety
/// `at` must be valid for two f32.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) unsafe fn spread(at: *const f32) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe { lanes(*at, *at.add(1)) }
}

/// Broadcasts two f32, each to one 128-bit lane.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn lanes(low: f32, high: f32) -> __m256 {
    _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low))
}

/// Returns the value of a half-precision number.
#[target_feature(enable = "f16c")]
#[inline]
pub(crate) fn half(bits: u16) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits.into())))
}

/// Unpacks a run of 32 bytes of a K format: the low halves of the bytes are the codes of one block, the high halves those of the next
/// block.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn nibbles(run: __m256i) -> (__m256i, __m256i) {
    let low = _mm256_and_si256(run, _mm256_set1_epi8(15));
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(run), _mm256_set1_epi8(15));
    (
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

#[target_feature(enable = "avx2")]
#[inline]
fn horizontal_sum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// Returns sums of 4 consecutive products, in i32.
#[target_feature(enable = "avx2")]
#[inline]
fn dot<const SIGNED: bool>(w: __m256i, x: __m256i) -> __m256i {
    // The instruction multiplies unsigned by signed values. |w| <= 128 and |x| <= 127, so sums of pairs do not saturate.
    let pairs = if SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
    } else {
        _mm256_maddubs_epi16(w, x)
    };
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

/// Starts to load `count` items into the L1 cache. (The hint for data that is read once, NTA, bypasses the L2 cache. Measured: it halves
/// the speed or worse wherever weights come from a cache, and gains nothing where they come from memory.)
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T, count: usize) {
    prefetch_into::<_MM_HINT_T0, T>(at, count);
}

/// Like [`prefetch`], but into the cache that the hint names.
#[inline(always)]
pub(crate) fn prefetch_into<const HINT: i32, T>(at: *const T, count: usize) {
    for i in (0..count * size_of::<T>()).step_by(64) {
        // SAFETY: any address may be prefetched.
        unsafe { _mm_prefetch::<HINT>(at.cast::<i8>().wrapping_add(i)) };
    }
}

pub(crate) struct FloatTile<F>(PhantomData<F>);

impl<F: Float> kernel::Tile for FloatTile<F> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        const STEP: usize = 8;
        let whole = product.cols / STEP;
        let rest = product.cols % STEP;
        let mut weights = [std::ptr::null::<F>(); R];
        let mut x = [std::ptr::null::<f32>(); T];
        // The values after the last complete step, padded with zeros; inputs are already padded.
        let mut last = [[F::zeroed(); STEP]; R];
        for r in 0..R {
            let bytes = &product.weights[(row + r) * product.row_bytes..][..product.row_bytes];
            weights[r] = bytes.as_ptr().cast();
            let from = whole * STEP * size_of::<F>();
            bytemuck::cast_slice_mut::<F, u8>(&mut last[r])[..rest * size_of::<F>()]
                .copy_from_slice(&bytes[from..]);
        }
        for t in 0..T {
            x[t] = product.input(token + t).values.as_ptr();
        }
        let mut sum = [[_mm256_setzero_ps(); T]; R];
        for step in 0..product.cols.div_ceil(STEP) {
            if T == 1 {
                // As for integer formats below.
                let ahead = weights[0].wrapping_byte_add(R * product.row_bytes);
                prefetch(ahead.wrapping_add(step * R * STEP), R * STEP);
            }
            let mut w = [_mm256_setzero_ps(); R];
            for r in 0..R {
                // SAFETY: the step is within the row, or the padded end of the row is read.
                w[r] = unsafe {
                    F::load(if step < whole {
                        weights[r].add(step * STEP)
                    } else {
                        last[r].as_ptr()
                    })
                };
            }
            for t in 0..T {
                // SAFETY: rows of inputs are padded to a multiple of 256.
                let x = unsafe { _mm256_loadu_ps(x[t].add(step * STEP)) };
                for r in 0..R {
                    sum[r][t] = _mm256_fmadd_ps(w[r], x, sum[r][t]);
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                let out = product
                    .out
                    .wrapping_add((token + t) * product.out_stride + row + r);
                // SAFETY: the caller guarantees that this element is valid.
                unsafe { out.write(horizontal_sum(sum[r][t])) };
            }
        }
    }
}

pub(crate) struct IntegerTile<B>(PhantomData<B>);

impl<B: Integer> kernel::Tile for IntegerTile<B> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        let chunk_bytes = size_of::<B::Chunk>();
        let whole = product.row_bytes / chunk_bytes;
        let mut weights = [std::ptr::null::<B::Chunk>(); R];
        let mut codes = [std::ptr::null::<i8>(); T];
        let mut scales = [std::ptr::null::<f32>(); T];
        let mut sums = [std::ptr::null::<f32>(); T];
        let mut half_sums = [std::ptr::null::<f32>(); T];
        // The blocks after the last complete chunk, padded with zeros; inputs are already padded.
        let mut last = [B::Chunk::zeroed(); R];
        for r in 0..R {
            let bytes = &product.weights[(row + r) * product.row_bytes..][..product.row_bytes];
            weights[r] = bytes.as_ptr().cast();
            let rest = &bytes[whole * chunk_bytes..];
            bytemuck::bytes_of_mut(&mut last[r])[..rest.len()].copy_from_slice(rest);
        }
        for t in 0..T {
            let x = product.input(token + t);
            (codes[t], scales[t]) = (x.codes.as_ptr(), x.scales.as_ptr());
            (sums[t], half_sums[t]) = (x.sums.as_ptr(), x.half_sums.as_ptr());
        }
        let offset = _mm256_set1_epi8(B::OFFSET);
        let mut sum = [[_mm256_setzero_ps(); T]; R];
        for step in 0..product.row_bytes.div_ceil(chunk_bytes) {
            let mut chunk = [std::ptr::null::<B::Chunk>(); R];
            for r in 0..R {
                chunk[r] = if step < whole {
                    weights[r].wrapping_add(step)
                } else {
                    &raw const last[r]
                };
            }
            // SAFETY: each chunk is within its row, or is the padded end of the row.
            let mut header = [unsafe { B::header(chunk[0]) }; R];
            for r in 1..R {
                // SAFETY: as above.
                header[r] = unsafe { B::header(chunk[r]) };
            }
            // Prefetch the next R rows, in memory order, while these are read from R places. With many tokens, rows are read repeatedly,
            // and the first load hardly matters.
            if T == 1 {
                prefetch(
                    weights[0]
                        .wrapping_byte_add(R * product.row_bytes)
                        .wrapping_add(step * R),
                    R,
                );
            }
            for p in 0..B::PAIRS {
                // SAFETY: as above; p < PAIRS.
                let mut w = [unsafe { B::pair(chunk[0], header[0], p) }; R];
                for r in 1..R {
                    // SAFETY: as above.
                    w[r] = unsafe { B::pair(chunk[r], header[r], p) };
                }
                let pair = step * B::PAIRS + p;
                for t in 0..T {
                    // SAFETY: rows of inputs are padded to a multiple of 256: complete groups of two pairs.
                    let (first, second, scale) = unsafe {
                        let codes = codes[t].add(pair / 2 * GROUP + pair % 2 * 32);
                        (
                            _mm256_loadu_si256(codes.cast()),
                            _mm256_loadu_si256(codes.add(64).cast()),
                            spread(scales[t].add(pair * 2)),
                        )
                    };
                    let (mut below, mut second_below) =
                        (_mm256_setzero_si256(), _mm256_setzero_si256());
                    if B::OFFSET != 0 {
                        below = dot::<false>(offset, first);
                        second_below = dot::<false>(offset, second);
                        if !B::HALF_SCALES {
                            below = _mm256_add_epi32(below, second_below);
                        }
                    }
                    for r in 0..R {
                        if B::HALF_SCALES {
                            let dot_1 = _mm256_sub_epi32(dot::<false>(w[r].first, first), below);
                            let dot_2 =
                                _mm256_sub_epi32(dot::<false>(w[r].second, second), second_below);
                            let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot_1), w[r].scale);
                            let scaled = _mm256_fmadd_ps(
                                _mm256_cvtepi32_ps(dot_2),
                                w[r].second_scale,
                                scaled,
                            );
                            sum[r][t] = _mm256_fmadd_ps(scaled, scale, sum[r][t]);
                        } else {
                            let dot = if B::SIGNED {
                                let first = dot::<true>(w[r].first, first);
                                _mm256_add_epi32(first, dot::<true>(w[r].second, second))
                            } else {
                                // Codes are below 64, so sums of four products still fit in 16 bits.
                                let pairs = _mm256_add_epi16(
                                    _mm256_maddubs_epi16(w[r].first, first),
                                    _mm256_maddubs_epi16(w[r].second, second),
                                );
                                _mm256_sub_epi32(
                                    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)),
                                    below,
                                )
                            };
                            let scale = _mm256_mul_ps(w[r].scale, scale);
                            sum[r][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum[r][t]);
                        }
                    }
                }
            }
            for r in 0..R {
                if let Some(mins) = B::mins(header[r]) {
                    for t in 0..T {
                        // SAFETY: a chunk with minima has eight blocks, and each block has its sum.
                        let sums = unsafe { _mm256_loadu_ps(sums[t].add(step * 8)) };
                        sum[r][t] = _mm256_fnmadd_ps(mins, sums, sum[r][t]);
                    }
                }
                if let Some([low, high]) = B::half_mins(header[r]) {
                    for t in 0..T {
                        // SAFETY: as above, and each half block has its sum.
                        let [low_sums, high_sums] = unsafe {
                            let sums = half_sums[t].add(step * 16);
                            [_mm256_loadu_ps(sums), _mm256_loadu_ps(sums.add(8))]
                        };
                        sum[r][t] = _mm256_fnmadd_ps(low, low_sums, sum[r][t]);
                        sum[r][t] = _mm256_fnmadd_ps(high, high_sums, sum[r][t]);
                    }
                }
            }
        }
        for r in 0..R {
            for t in 0..T {
                let out = product
                    .out
                    .wrapping_add((token + t) * product.out_stride + row + r);
                // SAFETY: the caller guarantees that this element is valid.
                unsafe { out.write(horizontal_sum(sum[r][t])) };
            }
        }
    }
}

/// Rounds inputs to 8 bits. See [`Activations`](crate::Activations) for the layout.
///
/// # Safety
/// As for [`Quantize`](super::Quantize).
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn quantize(values: &[f32], mut rounded: RowMut, rounding: Rounding) {
    let blocks = rounding.blocks();
    for (index, x) in values.chunks_exact(blocks * BLOCK).enumerate() {
        let scale = rounding.scale(magnitude(x));
        let inverse = _mm256_set1_ps(scale.inverse);
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let block = index * blocks + block;
            let mut whole = [_mm256_setzero_si256(); 4];
            for (whole, x) in whole.iter_mut().zip(x.as_chunks::<8>().0) {
                // SAFETY: x has 8 values.
                let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
                *whole = _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse));
            }
            // Packing interleaves the 128-bit lanes; the permutation restores the order.
            let narrow = _mm256_packs_epi16(
                _mm256_packs_epi32(whole[0], whole[1]),
                _mm256_packs_epi32(whole[2], whole[3]),
            );
            let narrow =
                _mm256_permutevar8x32_epi32(narrow, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            let codes = &mut rounded.codes[block / 4 * GROUP..][..GROUP];
            // SAFETY: stores of 16 bytes at offsets of at most 48, and 64 bytes later, within 128.
            unsafe {
                let first = codes.as_mut_ptr().add(block % 4 * 16);
                _mm_storeu_si128(first.cast(), _mm256_castsi256_si128(narrow));
                _mm_storeu_si128(first.add(64).cast(), _mm256_extracti128_si256::<1>(narrow));
            }
            // Four partial sums of each half, then two of each, then both sums in one register.
            let first = _mm256_add_epi32(whole[0], whole[1]);
            let second = _mm256_add_epi32(whole[2], whole[3]);
            let sums = _mm256_hadd_epi32(first, second);
            let sums = _mm_add_epi32(
                _mm256_castsi256_si128(sums),
                _mm256_extracti128_si256::<1>(sums),
            );
            let sums = _mm_cvtsi128_si64(_mm_hadd_epi32(sums, sums));
            rounded.set(block, scale, [sums as i32, (sums >> 32) as i32]);
        }
    }
}

/// Returns the bits of the largest magnitude in complete blocks.
#[target_feature(enable = "avx2")]
fn magnitude(values: &[f32]) -> u32 {
    let bits = _mm256_set1_epi32(0x7fff_ffff);
    let mut largest = _mm256_setzero_si256();
    for x in values.as_chunks::<8>().0 {
        // SAFETY: x has 8 values.
        let x = unsafe { _mm256_loadu_ps(x.as_ptr()) };
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(x), bits));
    }
    let largest = _mm_max_epu32(
        _mm256_castsi256_si128(largest),
        _mm256_extracti128_si256::<1>(largest),
    );
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    _mm_cvtsi128_si32(largest) as u32
}
