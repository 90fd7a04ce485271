//! 64-bit ARM: NEON, with or without the `dotprod` extension.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::activations::{BLOCK, GROUP, RowMut};
use crate::kernel::{self, Product};
use crate::panel::Minima;
use crate::rounding::Rounding;

/// Loading of a float format.
pub(crate) trait Float: Pod {
    /// Loads 4 values as f32.
    ///
    /// # Safety
    /// `at` must be valid for 4 values, with any alignment.
    unsafe fn load(at: *const Self) -> float32x4_t;
}

/// Unpacking of an integer format.
pub(crate) trait Integer: Pod {
    /// Values shared by the 32-value blocks of a stored block.
    type Header: Copy;

    /// Number of 32-value blocks in a stored block.
    const BLOCKS: usize;
    /// Whether the two halves of each block of 32 have separate scales.
    const HALF_SCALES: bool = false;
    /// Which of `mins`, `half_mins` and `min` the format implements.
    const MINIMA: Minima = Minima::None;

    fn header(&self) -> Self::Header;

    /// Unpacks 32-value block `block`, below `BLOCKS`.
    fn unpack(&self, header: Self::Header, block: usize) -> Block;

    /// Returns the minima of the eight blocks, for formats that have them.
    fn mins(_: Self::Header) -> Option<[float32x4_t; 2]> {
        None
    }

    /// Returns the minima of the halves of the eight blocks.
    fn half_mins(_: Self::Header) -> Option<[float32x4_t; 4]> {
        None
    }

    /// Returns the minimum of a stored block of 32.
    fn min(_: Self::Header) -> Option<f32> {
        None
    }
}

/// 32 unpacked weights.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Signed codes of the first 16 values.
    pub(crate) first: int8x16_t,
    /// Signed codes of the last 16 values.
    pub(crate) second: int8x16_t,
    /// Scale of `first`, and of `second` unless `second` has a separate scale.
    pub(crate) scale: f32,
    /// Scale of `second`.
    pub(crate) second_scale: f32,
}

impl Block {
    /// Creates a block whose halves share one scale.
    #[inline(always)]
    pub(crate) fn new(first: int8x16_t, second: int8x16_t, scale: f32) -> Self {
        Block {
            first,
            second,
            scale,
            second_scale: scale,
        }
    }
}

/// Loads the 16 bytes at `bytes[16 * index..]`.
#[inline]
pub(crate) fn load(bytes: &[u8], index: usize) -> uint8x16_t {
    let bytes = &bytes.as_chunks::<16>().0[index];
    // SAFETY: 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

/// Returns the value of a half-precision number. `std` has no stable intrinsic for the instruction.
#[inline]
pub(crate) fn half(bits: u16) -> f32 {
    let value: f32;
    // SAFETY: a conversion between registers.
    unsafe {
        asm!("fmov {t:s}, {bits:w}", "fcvt {t:s}, {t:h}", bits = in(reg) u32::from(bits), t = out(vreg) value,
            options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Loads four half-precision numbers as f32.
///
/// # Safety
/// `at` must be valid for four numbers.
#[inline]
pub(crate) unsafe fn load_halves(at: *const u16) -> float32x4_t {
    let value: float32x4_t;
    // SAFETY: the caller guarantees the load; the rest is a conversion between registers.
    unsafe {
        let halves = vld1_u16(at);
        asm!("fcvtl {value:v}.4s, {halves:v}.4h", halves = in(vreg) halves, value = out(vreg) value,
            options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Adds sums of 4 consecutive products to `sum`.
#[inline]
fn dot<const DOTPROD: bool>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    if DOTPROD {
        // SAFETY: arithmetic between registers; tiles with DOTPROD are created only for CPUs that have the instruction. Its intrinsic,
        // vdotq_s32, is not stable.
        unsafe {
            asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        return sum;
    }
    // SAFETY: NEON is part of the architecture.
    unsafe {
        let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        vpadalq_s16(sum, vmull_high_s8(w, x))
    }
}

pub(crate) struct FloatTile<F>(PhantomData<F>);

impl<F: Float> kernel::Tile for FloatTile<F> {
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        const STEP: usize = 4;
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
        // SAFETY: NEON is part of the architecture.
        let mut sum = [[unsafe { vdupq_n_f32(0.0) }; T]; R];
        for step in 0..product.cols.div_ceil(STEP) {
            // SAFETY: the step is within the row, or the padded end of the row is read; rows of inputs are padded to a multiple of 256.
            unsafe {
                let mut w = [vdupq_n_f32(0.0); R];
                for r in 0..R {
                    w[r] = F::load(if step < whole {
                        weights[r].add(step * STEP)
                    } else {
                        last[r].as_ptr()
                    });
                }
                for t in 0..T {
                    let x = vld1q_f32(x[t].add(step * STEP));
                    for r in 0..R {
                        sum[r][t] = vfmaq_f32(sum[r][t], w[r], x);
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
                unsafe { out.write(vaddvq_f32(sum[r][t])) };
            }
        }
    }
}

pub(crate) struct IntegerTile<B, const DOTPROD: bool>(PhantomData<B>);

impl<B: Integer, const DOTPROD: bool> kernel::Tile for IntegerTile<B, DOTPROD> {
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize) {
        let mut weights: [&[B]; R] = [&[]; R];
        for r in 0..R {
            let bytes = &product.weights[(row + r) * product.row_bytes..][..product.row_bytes];
            weights[r] = bytemuck::cast_slice(bytes);
        }
        let mut x = [product.input(token); T];
        for t in 1..T {
            x[t] = product.input(token + t);
        }
        // SAFETY: NEON is part of the architecture.
        let (zero, mut sum) = unsafe { (vdupq_n_s32(0), [[vdupq_n_f32(0.0); T]; R]) };
        for step in 0..product.row_bytes / size_of::<B>() {
            let mut header = [weights[0][step].header(); R];
            for r in 1..R {
                header[r] = weights[r][step].header();
            }
            for b in 0..B::BLOCKS {
                let mut w = [weights[0][step].unpack(header[0], b); R];
                for r in 1..R {
                    w[r] = weights[r][step].unpack(header[r], b);
                }
                let block = step * B::BLOCKS + b;
                for t in 0..T {
                    let scale = x[t].scales[block];
                    // SAFETY: rows of inputs are padded to a multiple of 256: complete groups of four blocks.
                    let (first, second) = unsafe {
                        let codes = x[t].codes.as_ptr().add(block / 4 * GROUP + block % 4 * 16);
                        (vld1q_s8(codes), vld1q_s8(codes.add(64)))
                    };
                    for r in 0..R {
                        let dot_1 = dot::<DOTPROD>(zero, w[r].first, first);
                        // SAFETY: NEON is part of the architecture.
                        unsafe {
                            if B::HALF_SCALES {
                                let dot_2 = dot::<DOTPROD>(zero, w[r].second, second);
                                let scaled = vmulq_n_f32(vcvtq_f32_s32(dot_1), w[r].scale);
                                let scaled =
                                    vfmaq_n_f32(scaled, vcvtq_f32_s32(dot_2), w[r].second_scale);
                                sum[r][t] = vfmaq_n_f32(sum[r][t], scaled, scale);
                            } else {
                                let dot = dot::<DOTPROD>(dot_1, w[r].second, second);
                                sum[r][t] =
                                    vfmaq_n_f32(sum[r][t], vcvtq_f32_s32(dot), w[r].scale * scale);
                            }
                        }
                    }
                }
            }
            for r in 0..R {
                if let Some([low, high]) = B::mins(header[r]) {
                    for t in 0..T {
                        let sums = &x[t].sums[step * 8..][..8];
                        // SAFETY: eight sums.
                        unsafe {
                            let less = vfmsq_f32(sum[r][t], low, vld1q_f32(sums.as_ptr()));
                            sum[r][t] = vfmsq_f32(less, high, vld1q_f32(sums.as_ptr().add(4)));
                        }
                    }
                }
                if let Some(mins) = B::half_mins(header[r]) {
                    for t in 0..T {
                        let sums = &x[t].half_sums[step * 16..][..16];
                        for (min, sums) in mins.into_iter().zip(sums.as_chunks::<4>().0) {
                            // SAFETY: four sums.
                            unsafe {
                                sum[r][t] = vfmsq_f32(sum[r][t], min, vld1q_f32(sums.as_ptr()));
                            }
                        }
                    }
                }
                if let Some(min) = B::min(header[r]) {
                    for t in 0..T {
                        // SAFETY: NEON is part of the architecture.
                        unsafe {
                            let less = vsetq_lane_f32::<0>(min * x[t].sums[step], vdupq_n_f32(0.0));
                            sum[r][t] = vsubq_f32(sum[r][t], less);
                        }
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
                unsafe { out.write(vaddvq_f32(sum[r][t])) };
            }
        }
    }
}

/// Rounds inputs to 8 bits. See [`Activations`](crate::Activations) for the layout.
///
/// # Safety
/// As for [`Quantize`](super::Quantize).
pub(crate) unsafe fn quantize(values: &[f32], mut rounded: RowMut, rounding: Rounding) {
    let blocks = rounding.blocks();
    for (index, x) in values.chunks_exact(blocks * BLOCK).enumerate() {
        // SAFETY: every CPU of this architecture has NEON.
        let scale = rounding.scale(unsafe { magnitude(x) });
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let block = index * blocks + block;
            let codes = &mut rounded.codes[block / 4 * GROUP..][..GROUP];
            // SAFETY: loads of 4 of 32 values; stores of 16 bytes at offsets of at most 48, and 64 bytes later, within 128.
            unsafe {
                let mut whole = [vdupq_n_s16(0); 4];
                let mut sums = [0; 2];
                for i in 0..4 {
                    let part = |j: usize| vld1q_f32(x.as_ptr().add(8 * i + 4 * j));
                    let low = vcvtnq_s32_f32(vmulq_n_f32(part(0), scale.inverse));
                    let high = vcvtnq_s32_f32(vmulq_n_f32(part(1), scale.inverse));
                    whole[i] = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
                    sums[i / 2] += vaddvq_s32(vaddq_s32(low, high));
                }
                let first = codes.as_mut_ptr().add(block % 4 * 16);
                vst1q_s8(first, vcombine_s8(vmovn_s16(whole[0]), vmovn_s16(whole[1])));
                vst1q_s8(
                    first.add(64),
                    vcombine_s8(vmovn_s16(whole[2]), vmovn_s16(whole[3])),
                );
                rounded.set(block, scale, sums);
            }
        }
    }
}

/// Returns the bits of the largest magnitude in complete blocks.
unsafe fn magnitude(values: &[f32]) -> u32 {
    // SAFETY: each load reads 4 values.
    unsafe {
        let mut largest = vdupq_n_u32(0);
        for x in values.as_chunks::<4>().0 {
            let bits = vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x.as_ptr())));
            largest = vmaxq_u32(largest, bits);
        }
        vmaxvq_u32(largest)
    }
}
