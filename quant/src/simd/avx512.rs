//! AVX-512 with VNNI.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};

use super::avx2::{prefetch, prefetch_into};
use crate::activations::{BLOCK, GROUP, RowMut};
use crate::kernel::{self, Product};
use crate::panel::Minima;
use crate::rounding::Rounding;

/// Loading of a float format.
pub(crate) trait Float: Pod {
    /// Loads 16 values as f32.
    ///
    /// # Safety
    /// `at` must be valid for 16 values, with any alignment.
    unsafe fn load(at: *const Self) -> __m512;
}

/// Unpacking of an integer format.
pub(crate) trait Integer {
    /// Unit of unpacking: blocks that hold [`Integer::GROUPS`] groups of 128 values.
    type Chunk: Pod;
    /// Values shared by the groups of a chunk, in registers.
    type Header: Copy;

    /// Groups in a chunk.
    const GROUPS: usize;
    /// Subtracted from each unpacked code.
    const OFFSET: i8 = 0;
    /// Whether the two halves of each block of 32 have separate scales.
    const HALF_SCALES: bool = false;
    /// Which of `mins` and `half_mins` the format implements.
    const MINIMA: Minima = Minima::None;

    /// # Safety
    /// `chunk` must be valid for reading, with any alignment.
    unsafe fn header(chunk: *const Self::Chunk) -> Self::Header;

    /// # Safety
    /// As for `header`; `group` must be below `GROUPS`.
    unsafe fn group(chunk: *const Self::Chunk, header: Self::Header, group: usize) -> Group;

    /// Returns the minima of the chunk's eight blocks, for formats that have them.
    fn mins(_: Self::Header) -> Option<__m256> {
        None
    }

    /// Returns the minima of the halves of the eight blocks.
    fn half_mins(_: Self::Header) -> Option<__m512> {
        None
    }
}

/// 128 unpacked weights in the order of [`Activations`](crate::Activations): 128-bit lane j belongs to block j.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    /// Unsigned codes of the first 16 values of each block.
    pub(crate) first: __m512i,
    /// Unsigned codes of the last 16 values of each block.
    pub(crate) second: __m512i,
    /// Scale of each lane of `first`, and of `second` unless `second` has separate scales.
    pub(crate) scale: __m512,
    /// Scale of each lane of `second`.
    pub(crate) second_scale: __m512,
}

impl Group {
    /// Creates a group of blocks whose halves share one scale.
    #[inline(always)]
    pub(crate) fn new(first: __m512i, second: __m512i, scale: __m512) -> Self {
        Group {
            first,
            second,
            scale,
            second_scale: scale,
        }
    }
}

/// For each f32 lane, the index of its source when four consecutive f32 are broadcast to the 128-bit lanes.
pub(crate) const SPREAD: [i32; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];

/// Loads a constant into a register.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn constant<T: Pod>(value: &'static T) -> __m512i {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: the reference is valid for 64 bytes.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(value).cast()) }
}

/// Joins four 128-bit lanes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn join(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    let (low, high) = (_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Converts four half-precision numbers and broadcasts each to one 128-bit lane.
#[target_feature(enable = "avx512f,f16c")]
#[inline]
pub(crate) fn spread_halves(a: u16, b: u16, c: u16, d: u16) -> __m512 {
    let bits = u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48;
    let floats = _mm_cvtph_ps(_mm_cvtsi64_si128(bits as i64));
    _mm512_permutexvar_ps(constant(&SPREAD), _mm512_castps128_ps512(floats))
}

/// Unpacks two runs of 32 bytes of a K format: the low halves of a run's bytes are the codes of one block, the high halves those of the
/// next block. Returns the first and the second 16 codes of each of the four blocks.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(crate) fn nibbles(runs: __m512i) -> (__m512i, __m512i) {
    const ODD_LANES: u32 = 0xff00_ff00;
    let low = _mm512_set1_epi8(15);
    let first = _mm512_shuffle_i64x2::<0b10_10_00_00>(runs, runs);
    let second = _mm512_shuffle_i64x2::<0b11_11_01_01>(runs, runs);
    (
        _mm512_and_si512(_mm512_mask_srli_epi16::<4>(first, ODD_LANES, first), low),
        _mm512_and_si512(_mm512_mask_srli_epi16::<4>(second, ODD_LANES, second), low),
    )
}

/// Length of a long row in bytes: only a few long rows fit in the L1 cache.
const LONG: usize = 2048;
/// Prefetch distance for long rows of floats, into the L2 cache, in bytes.
const FAR_AHEAD: usize = 16 << 10;

pub(crate) struct FloatTile<F>(PhantomData<F>);

impl<F: Float> kernel::Tile for FloatTile<F> {
    // Four long rows of 16-bit values and the next four, which are prefetched, do not fit in the L1 cache. So rows are read in pairs, and
    // later pairs are prefetched into L2: 18 of 18.6 GB/s on a Xeon, against 16 to 17 with a prefetch of 8 KiB ahead into L1. A Zen 5 is
    // equally fast with both.
    #[inline]
    unsafe fn eight_rows(product: &Product, row: usize, token: usize) -> bool {
        let is_long = size_of::<F>() == 2 && product.row_bytes >= LONG;
        if is_long {
            for pair in (0..8).step_by(2) {
                // SAFETY: guaranteed by the caller.
                unsafe { Self::tile::<2, 1>(product, row + pair, token) };
            }
        }
        is_long
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        const STEP: usize = 16;
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
        let mut sum = [[_mm512_setzero_ps(); T]; R];
        for step in 0..product.cols.div_ceil(STEP) {
            let ahead = weights[0].wrapping_add(step * R * STEP);
            if T == 1 && R == 2 {
                prefetch_into::<_MM_HINT_T1, F>(ahead.wrapping_byte_add(FAR_AHEAD), R * STEP);
            } else if T == 1 {
                // As for integer formats below.
                let least = product.simd.least_ahead();
                let ahead = ahead.wrapping_byte_add(least.max(R * product.row_bytes));
                prefetch(ahead, R * STEP);
            }
            let mut w = [_mm512_setzero_ps(); R];
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
                let x = unsafe { _mm512_loadu_ps(x[t].add(step * STEP)) };
                for r in 0..R {
                    sum[r][t] = _mm512_fmadd_ps(w[r], x, sum[r][t]);
                }
            }
        }
        for t in 0..T {
            let out = product
                .out
                .wrapping_add((token + t) * product.out_stride + row);
            // SAFETY: the caller guarantees that these R elements are valid.
            unsafe { write_sums(&sum.map(|sums| sums[t]), out) };
        }
    }
}

pub(crate) struct IntegerTile<B>(PhantomData<B>);

impl<B: Integer> kernel::Tile for IntegerTile<B> {
    // If a chunk has shared values, they occupy a register per row, and eight rows would need too many registers. Eight rows are also too
    // many if they and the next eight, which are prefetched, fill the L1 cache: Mamba-2 in Q8_0 then loses a quarter of its speed on an
    // EPYC.
    #[inline]
    unsafe fn eight_rows(product: &Product, row: usize, token: usize) -> bool {
        const LONGEST: usize = 1024;
        let fit = size_of::<B::Header>() == 0 && product.row_bytes <= LONGEST;
        let one_by_one = product.row_bytes >= LONG && product.simd.reads_rows_one_by_one();
        if fit {
            // SAFETY: guaranteed by the caller.
            unsafe { Self::tile::<8, 1>(product, row, token) };
        } else if one_by_one {
            for row in row..row + 8 {
                // SAFETY: as above.
                unsafe { Self::tile::<1, 1>(product, row, token) };
            }
        }
        fit || one_by_one
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        let chunk_bytes = size_of::<B::Chunk>();
        let whole = product.row_bytes / chunk_bytes;
        let mut weights = [std::ptr::null::<B::Chunk>(); R];
        let mut codes = [std::ptr::null::<i8>(); T];
        let mut scales = [std::ptr::null::<f32>(); T];
        let mut sums = [std::ptr::null::<f32>(); T];
        let mut half_sums = [std::ptr::null::<f32>(); T];
        // The blocks after the last complete chunk, padded with zeros; inputs are already padded.
        let mut last = [MaybeUninit::<B::Chunk>::uninit(); R];
        let rest = product.row_bytes - whole * chunk_bytes;
        let rows = &product.weights[row * product.row_bytes..][..R * product.row_bytes];
        for r in 0..R {
            let bytes = &rows[r * product.row_bytes..][..product.row_bytes];
            weights[r] = bytes.as_ptr().cast();
            if rest > 0 {
                let last = last[r].write(B::Chunk::zeroed());
                bytemuck::bytes_of_mut(last)[..rest].copy_from_slice(&bytes[whole * chunk_bytes..]);
            }
        }
        for t in 0..T {
            let x = product.input(token + t);
            (codes[t], scales[t]) = (x.codes.as_ptr(), x.scales.as_ptr());
            (sums[t], half_sums[t]) = (x.sums.as_ptr(), x.half_sums.as_ptr());
        }
        let ahead = product.simd.least_ahead().max(R * product.row_bytes);
        let spread = constant(&SPREAD);
        let offset = _mm512_set1_epi8(B::OFFSET);
        let zero = _mm512_setzero_si512();
        let mut sum = [[_mm512_setzero_ps(); T]; R];
        for step in 0..product.row_bytes.div_ceil(chunk_bytes) {
            let mut chunk = [std::ptr::null::<B::Chunk>(); R];
            for r in 0..R {
                chunk[r] = if step < whole {
                    weights[r].wrapping_add(step)
                } else {
                    last[r].as_ptr()
                };
            }
            // SAFETY: each chunk is within its row, or is the padded end of the row, which was written above if the row has such an end.
            let mut header = [unsafe { B::header(chunk[0]) }; R];
            for r in 1..R {
                // SAFETY: as above.
                header[r] = unsafe { B::header(chunk[r]) };
            }
            // Prefetch the next R rows, in memory order, while these are read from R places. With many tokens, rows are read repeatedly,
            // and the first load hardly matters.
            if T == 1 {
                let ahead = weights[0].wrapping_byte_add(ahead);
                prefetch(ahead.wrapping_add(step * R), R);
            }
            for g in 0..B::GROUPS {
                // SAFETY: as above; g < GROUPS.
                let mut w = [unsafe { B::group(chunk[0], header[0], g) }; R];
                for r in 1..R {
                    // SAFETY: as above.
                    w[r] = unsafe { B::group(chunk[r], header[r], g) };
                }
                let group = step * B::GROUPS + g;
                for t in 0..T {
                    // SAFETY: rows of inputs are padded to a multiple of 256: complete groups, in pairs.
                    let (first, second, scale) = unsafe {
                        let codes = codes[t].add(group * GROUP);
                        (
                            _mm512_loadu_si512(codes.cast()),
                            _mm512_loadu_si512(codes.add(64).cast()),
                            _mm_loadu_ps(scales[t].add(group * 4)),
                        )
                    };
                    let scale = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(scale));
                    let (mut start, mut second_start) = (zero, zero);
                    if B::OFFSET != 0 {
                        let below = _mm512_dpbusd_epi32(zero, offset, first);
                        if B::HALF_SCALES {
                            start = _mm512_sub_epi32(zero, below);
                            second_start =
                                _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(zero, offset, second));
                        } else {
                            start =
                                _mm512_sub_epi32(zero, _mm512_dpbusd_epi32(below, offset, second));
                        }
                    }
                    for r in 0..R {
                        let dot = _mm512_dpbusd_epi32(start, w[r].first, first);
                        if B::HALF_SCALES {
                            let second_dot = _mm512_dpbusd_epi32(second_start, w[r].second, second);
                            let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), w[r].scale);
                            let scaled = _mm512_fmadd_ps(
                                _mm512_cvtepi32_ps(second_dot),
                                w[r].second_scale,
                                scaled,
                            );
                            sum[r][t] = _mm512_fmadd_ps(scaled, scale, sum[r][t]);
                        } else {
                            let dot = _mm512_dpbusd_epi32(dot, w[r].second, second);
                            let scale = _mm512_mul_ps(w[r].scale, scale);
                            sum[r][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, sum[r][t]);
                        }
                    }
                }
            }
            for r in 0..R {
                if let Some(mins) = B::mins(header[r]) {
                    let mins = _mm512_zextps256_ps512(mins);
                    for t in 0..T {
                        // SAFETY: a chunk with minima has eight blocks, and each block has its sum.
                        let sums = unsafe { _mm256_loadu_ps(sums[t].add(step * 8)) };
                        sum[r][t] = _mm512_fnmadd_ps(mins, _mm512_zextps256_ps512(sums), sum[r][t]);
                    }
                }
                if let Some(mins) = B::half_mins(header[r]) {
                    for t in 0..T {
                        // SAFETY: as above, and each half block has its sum.
                        let sums = unsafe { _mm512_loadu_ps(half_sums[t].add(step * 16)) };
                        sum[r][t] = _mm512_fnmadd_ps(mins, sums, sum[r][t]);
                    }
                }
            }
        }
        for t in 0..T {
            let out = product
                .out
                .wrapping_add((token + t) * product.out_stride + row);
            // SAFETY: the caller guarantees that these R elements are valid.
            unsafe { write_sums(&sum.map(|sums| sums[t]), out) };
        }
    }
}

/// Writes the sum of each register's lanes, four registers at a time. Lanes are added in the order of `_mm512_reduce_add_ps`.
///
/// # Safety
/// `out` must be valid for R values.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
unsafe fn write_sums<const R: usize>(sums: &[__m512; R], out: *mut f32) {
    let (fours, rest) = sums.as_chunks::<4>();
    for (i, four) in fours.iter().enumerate() {
        let [a, b, c, d] = four.map(|sum| {
            let halves = _mm256_add_ps(
                _mm512_castps512_ps256(sum),
                _mm512_extractf32x8_ps::<1>(sum),
            );
            _mm_add_ps(
                _mm256_castps256_ps128(halves),
                _mm256_extractf128_ps::<1>(halves),
            )
        });
        let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
        let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
        let even = _mm_shuffle_ps::<0b10_00_10_00>(ab, cd);
        let odd = _mm_shuffle_ps::<0b11_01_11_01>(ab, cd);
        // SAFETY: the caller guarantees four values at offset 4 i.
        unsafe { _mm_storeu_ps(out.add(4 * i), _mm_add_ps(even, odd)) };
    }
    for (i, sum) in rest.iter().enumerate() {
        // SAFETY: as above.
        unsafe {
            out.add(fours.len() * 4 + i)
                .write(_mm512_reduce_add_ps(*sum))
        };
    }
}

/// Rounds inputs to 8 bits. See [`Activations`](crate::Activations) for the layout.
///
/// # Safety
/// As for [`Quantize`](super::Quantize).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn quantize(values: &[f32], mut rounded: RowMut, rounding: Rounding) {
    let blocks = rounding.blocks();
    for (index, x) in values.chunks_exact(blocks * BLOCK).enumerate() {
        let scale = rounding.scale(magnitude(x));
        let inverse = _mm512_set1_ps(scale.inverse);
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let block = index * blocks + block;
            // SAFETY: x has 32 values.
            let (a, b) = unsafe {
                (
                    _mm512_loadu_ps(x.as_ptr()),
                    _mm512_loadu_ps(x.as_ptr().add(16)),
                )
            };
            let a = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
            let b = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
            let codes = &mut rounded.codes[block / 4 * GROUP..][..GROUP];
            // SAFETY: stores of 16 bytes at offsets of at most 48, and 64 bytes later, within 128.
            unsafe {
                let first = codes.as_mut_ptr().add(block % 4 * 16);
                _mm_storeu_si128(first.cast(), _mm512_cvtsepi32_epi8(a));
                _mm_storeu_si128(first.add(64).cast(), _mm512_cvtsepi32_epi8(b));
            }
            let sums = [_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(b)];
            rounded.set(block, scale, sums);
        }
    }
}

/// Returns the bits of the largest magnitude in complete blocks.
#[target_feature(enable = "avx512f")]
fn magnitude(values: &[f32]) -> u32 {
    let bits = _mm512_set1_epi32(0x7fff_ffff);
    let mut largest = _mm512_setzero_si512();
    for x in values.as_chunks::<16>().0 {
        // SAFETY: x has 16 values.
        let x = unsafe { _mm512_loadu_ps(x.as_ptr()) };
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(x), bits));
    }
    _mm512_reduce_max_epu32(largest)
}
