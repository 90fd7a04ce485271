//! Panels on 64-bit ARM: four rows by eight tokens in registers, with `sdot`, or with `smmla` where the CPU has the `i8mm` extension.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::neon::Integer;
use crate::activations::{BLOCK, TokenPanel};
use crate::panel::{DEPTH, LANES, Minima, Panel, Panels, ROWS, Sums};

/// Rows whose sums are in registers at the same time.
const TILE: usize = 4;
/// Tokens whose sums are in registers at the same time.
const WIDTH: usize = 8;
/// Number of registers, with four sums each.
const REGISTERS: usize = TILE * WIDTH / 4;

/// With `SQUARES`, a register holds two rows by two tokens, as `smmla` computes them; otherwise one row by four tokens.
///
/// `smmla` reads eight columns of a row and then eight columns of the next row. The panel's codes and the inputs are laid out in this order
/// ([`Activations`](crate::Activations)).
pub(crate) struct NeonPanel<B, const SQUARES: bool>(PhantomData<B>);

/// Adds to `sum`, for each of four tokens, the products of its four codes with codes `4 * FOUR..` of `w`.
#[inline(always)]
fn sdot<const FOUR: usize>(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: arithmetic between registers; only CPUs with the instruction use these panels. Its intrinsic is not stable.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sum:v}.4s, {x:v}.16b, {w:v}.4b[{four}]",
            sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x, four = const FOUR,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Adds to `sum` the products of two rows of eight codes with two tokens.
#[inline(always)]
fn smmla(mut sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: as for `sdot`.
    unsafe {
        asm!(".arch_extension i8mm", "smmla {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// Adds the products of codes `4 * FOUR..` of four rows with eight tokens.
#[inline(always)]
fn add_fours<const FOUR: usize>(
    dots: &mut [int32x4_t; REGISTERS],
    w: [int8x16_t; TILE],
    x: [int8x16_t; 2],
) {
    for r in 0..TILE {
        for q in 0..2 {
            dots[2 * r + q] = sdot::<FOUR>(dots[2 * r + q], w[r], x[q]);
        }
    }
}

impl<B: Integer, const SQUARES: bool> NeonPanel<B, SQUARES> {
    /// Returns the row and the token, within a tile, of the first sum in a register.
    const fn place(register: usize) -> [usize; 2] {
        if SQUARES {
            [register / 4 * 2, register % 4 * 2]
        } else {
            [register / 2, register % 2 * 4]
        }
    }

    /// Loads a value of each row, repeated for every sum of a register.
    #[inline(always)]
    fn load_rows(
        values: &[[f32; DEPTH / BLOCK]; ROWS],
        row: usize,
        block: usize,
        register: usize,
    ) -> float32x4_t {
        let row = row + Self::place(register)[0];
        // SAFETY: NEON is part of the architecture.
        unsafe {
            let first = vdupq_n_f32(values[row][block]);
            if SQUARES {
                let next = vdupq_n_f32(values[row + 1][block]);
                return vcombine_f32(vget_low_f32(first), vget_low_f32(next));
            }
            first
        }
    }

    /// Loads a value of each token, repeated for every sum of a register.
    ///
    /// # Safety
    /// `values` must be valid for the tokens of a tile.
    #[inline(always)]
    unsafe fn load_tokens(values: *const f32, register: usize) -> float32x4_t {
        // SAFETY: the loads read two or four of the tokens.
        unsafe {
            let values = values.add(Self::place(register)[1]);
            if SQUARES {
                let two = vld1_f32(values);
                return vcombine_f32(two, two);
            }
            vld1q_f32(values)
        }
    }

    /// Returns the products of `COLUMNS` columns from `column` on, of the rows from `row` on and the tokens from `lane` on.
    ///
    /// # Safety
    /// Both panels must contain the columns.
    #[inline(always)]
    unsafe fn dots<const COLUMNS: usize>(
        panel: &Panel,
        x: &TokenPanel,
        [row, lane, column]: [usize; 3],
    ) -> [int32x4_t; REGISTERS] {
        let codes = panel.codes.as_ptr().cast::<i8>();
        // SAFETY: a panel has a line of DEPTH codes for each row, and LANES codes of the inputs for each column.
        unsafe {
            let mut dots = [vdupq_n_s32(0); REGISTERS];
            let x = x.codes.add(column * LANES);
            if SQUARES {
                let codes = codes.add(row * DEPTH + 2 * column);
                for eight in 0..COLUMNS / 8 {
                    let x = x.add(eight * 8 * LANES + lane * 8);
                    let w = [0, 1].map(|pair| vld1q_s8(codes.add(pair * 2 * DEPTH + eight * 16)));
                    for (i, dots) in dots.iter_mut().enumerate() {
                        *dots = smmla(*dots, w[i / 4], vld1q_s8(x.add(i % 4 * 16)));
                    }
                }
                return dots;
            }
            for sixteen in 0..COLUMNS / 16 {
                let x = x.add(sixteen * 16 * LANES + lane * 4);
                let w = [0, 1, 2, 3]
                    .map(|r| vld1q_s8(codes.add((row + r) * DEPTH + column + sixteen * 16)));
                // Groups of four consecutive columns, so that each register of inputs is multiplied with all rows.
                let x = |four: usize| [0, 16].map(|t| vld1q_s8(x.add(four * 4 * LANES + t)));
                add_fours::<0>(&mut dots, w, x(0));
                add_fours::<1>(&mut dots, w, x(1));
                add_fours::<2>(&mut dots, w, x(2));
                add_fours::<3>(&mut dots, w, x(3));
            }
            dots
        }
    }

    /// Adds the products of all blocks, for the rows from `row` on and the tokens from `lane` on.
    ///
    /// # Safety
    /// Both panels must have `x.blocks` blocks.
    #[inline(always)]
    unsafe fn tile(panel: &Panel, x: &TokenPanel, [row, lane]: [usize; 2], sums: &mut Sums) {
        let at = |register: usize| {
            let [r, t] = Self::place(register);
            [row + r, lane + t]
        };
        // SAFETY: the rows and lanes are within the sums, and the blocks within the panels.
        unsafe {
            let mut sum = [vdupq_n_f32(0.0); REGISTERS];
            for (i, sum) in sum.iter_mut().enumerate() {
                let [r, t] = at(i);
                let line = |r: usize| sums.0[r][t..].as_ptr();
                *sum = if SQUARES {
                    vcombine_f32(vld1_f32(line(r)), vld1_f32(line(r + 1)))
                } else {
                    vld1q_f32(line(r))
                };
            }
            for block in 0..x.blocks {
                let column = block * BLOCK;
                let load_rows = |values, i| Self::load_rows(values, row, block, i);
                let tokens = block * LANES + lane;
                let scale = |i| Self::load_tokens(x.scales.add(tokens), i);
                if B::HALF_SCALES {
                    const HALF: usize = BLOCK / 2;
                    let first = Self::dots::<HALF>(panel, x, [row, lane, column]);
                    let second = Self::dots::<HALF>(panel, x, [row, lane, column + HALF]);
                    for i in 0..REGISTERS {
                        let first = vmulq_f32(vcvtq_f32_s32(first[i]), load_rows(&panel.scales, i));
                        let both = vfmaq_f32(
                            first,
                            vcvtq_f32_s32(second[i]),
                            load_rows(&panel.second_scales, i),
                        );
                        sum[i] = vfmaq_f32(sum[i], both, scale(i));
                    }
                } else {
                    let dots = Self::dots::<BLOCK>(panel, x, [row, lane, column]);
                    for i in 0..REGISTERS {
                        let scale = vmulq_f32(load_rows(&panel.scales, i), scale(i));
                        sum[i] = vfmaq_f32(sum[i], vcvtq_f32_s32(dots[i]), scale);
                    }
                }
                match B::MINIMA {
                    Minima::None => (),
                    Minima::Blocks => {
                        for i in 0..REGISTERS {
                            let sums = Self::load_tokens(x.sums.add(tokens), i);
                            sum[i] = vfmsq_f32(sum[i], load_rows(&panel.mins, i), sums);
                        }
                    }
                    Minima::Halves => {
                        let half_sums = |half: usize, i: usize| {
                            let at = x.half_sums.add((2 * block + half) * LANES + lane);
                            // Loaded as bits, since the sums are integers.
                            let sums = vreinterpretq_s32_f32(Self::load_tokens(at.cast(), i));
                            vmulq_f32(scale(i), vcvtq_f32_s32(sums))
                        };
                        for i in 0..REGISTERS {
                            let first = load_rows(&panel.mins, i);
                            let second = load_rows(&panel.second_mins, i);
                            sum[i] = vfmsq_f32(sum[i], first, half_sums(0, i));
                            sum[i] = vfmsq_f32(sum[i], second, half_sums(1, i));
                        }
                    }
                }
            }
            for (i, sum) in sum.into_iter().enumerate() {
                let [r, t] = at(i);
                if SQUARES {
                    vst1_f32(sums.0[r][t..].as_mut_ptr(), vget_low_f32(sum));
                    vst1_f32(sums.0[r + 1][t..].as_mut_ptr(), vget_high_f32(sum));
                } else {
                    vst1q_f32(sums.0[r][t..].as_mut_ptr(), sum);
                }
            }
        }
    }
}

impl<B: Integer, const SQUARES: bool> Panels for NeonPanel<B, SQUARES> {
    const COLUMNS: usize = if SQUARES { 8 } else { 4 };

    unsafe fn unpack(row: &[u8], from: usize, index: usize, panel: &mut Panel) {
        let numbers = B::BLOCKS * BLOCK;
        let stored: &[B] = bytemuck::cast_slice(row);
        let stored = stored[from / numbers..].iter().take(DEPTH / numbers);
        let codes = panel.codes.as_flattened_mut();
        for (step, block) in stored.enumerate() {
            let header = block.header();
            for b in 0..B::BLOCKS {
                let w = block.unpack(header, b);
                let at = step * B::BLOCKS + b;
                for (half, sixteen) in [w.first, w.second].into_iter().enumerate() {
                    let column = at * BLOCK + half * BLOCK / 2;
                    // SAFETY: each store writes 8 or 16 codes to a slice of that length.
                    unsafe {
                        if SQUARES {
                            let first = index / 2 * 2 * DEPTH + column * 2 + index % 2 * 8;
                            vst1_s8(codes[first..][..8].as_mut_ptr(), vget_low_s8(sixteen));
                            let next = codes[first + 16..][..8].as_mut_ptr();
                            vst1_s8(next, vget_high_s8(sixteen));
                        } else {
                            let codes = &mut codes[index * DEPTH + column..][..16];
                            vst1q_s8(codes.as_mut_ptr(), sixteen);
                        }
                    }
                }
                panel.scales[index][at] = w.scale;
                if B::HALF_SCALES {
                    panel.second_scales[index][at] = w.second_scale;
                }
            }
            // SAFETY: a stored block with minima has eight blocks, or one; vectors are arrays of floats.
            unsafe {
                if let Some(mins) = B::mins(header) {
                    let mins: [f32; 8] = std::mem::transmute(mins);
                    panel.mins[index][step * 8..][..8].copy_from_slice(&mins);
                }
                if let Some(mins) = B::half_mins(header) {
                    let halves: [[f32; 2]; 8] = std::mem::transmute(mins);
                    for (b, [first, second]) in halves.into_iter().enumerate() {
                        panel.mins[index][step * 8 + b] = first;
                        panel.second_mins[index][step * 8 + b] = second;
                    }
                }
                if let Some(min) = B::min(header) {
                    panel.mins[index][step] = min;
                }
            }
        }
    }

    unsafe fn accumulate(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        assert!(x.blocks <= DEPTH / BLOCK);
        for lane in (0..LANES).step_by(WIDTH) {
            for row in (0..ROWS).step_by(TILE) {
                // SAFETY: the panels have these blocks.
                unsafe { Self::tile(panel, x, [row, lane], sums) };
            }
        }
    }

    unsafe fn store(sums: &Sums, [rows, tokens]: [usize; 2], out: *mut f32, stride: usize) {
        for t in 0..tokens {
            for r in 0..rows {
                // SAFETY: the caller guarantees that these elements are valid.
                unsafe { out.add(t * stride + r).write(sums.0[r][t]) };
            }
        }
    }
}
