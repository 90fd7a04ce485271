//! Float matrices times many tokens. Rows are widened to f32 once for all tokens, into a panel in which each line holds one column of the
//! panel's rows. A line is multiplied by one value of each token, so no sum crosses lanes and nothing is widened twice.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;

use super::avx512_panel::transpose;
use super::{avx2, avx2_panel, avx512};
use crate::kernel::Product;

/// Values in a panel: it stays in the L1 cache for all tokens.
const PANEL: usize = 4096;
/// Tokens whose sums are kept while a panel is in use.
const TOKENS: usize = 256;
/// Panels multiplied in sequence with the same columns of the tokens, so that these columns stay in the L2 cache; all columns would not
/// fit.
const PANELS: usize = 4;
/// Largest number of rows in a panel.
const MOST_ROWS: usize = 32;

/// Number of sums.
const SUMS: usize = PANELS * TOKENS * MOST_ROWS;
/// Bytes of working memory: a panel and the sums.
pub(crate) const ROOM: usize = (PANEL + SUMS) * size_of::<f32>();

/// Panel products of one SIMD level: the rows of a panel fill two registers.
///
/// The result for a row and a token must not depend on the other rows and tokens.
pub(crate) trait FloatPanels {
    /// The stored type of a value, at most four bytes.
    type Number: Pod;
    /// Rows of a panel: twice the lanes of a register.
    const ROWS: usize;

    /// Widens, for as many rows as a register has lanes, that many values of each row, and transposes them: value i of row r becomes lane r
    /// of line i. Lines are [`FloatPanels::ROWS`] values apart.
    ///
    /// # Safety
    /// The CPU must have the level's instructions, and all pointers must be valid, here and below.
    unsafe fn unpack(numbers: &[*const u8], lines: *mut f32);

    /// Adds the products of `depth` lines with the first tokens of `x` to `sums`, which has a line for each token. Processes as many tokens
    /// as have their sums in registers at the same time, and returns their number.
    ///
    /// # Safety
    /// As for `unpack`.
    unsafe fn accumulate(
        lines: *const f32,
        depth: usize,
        x: &[*const f32],
        sums: *mut f32,
    ) -> usize;
}

/// [`FloatPanels`] as a table of functions, so that the loops over panels are compiled once, not once for each format and level.
pub(crate) struct FloatPanelFunctions {
    rows: usize,
    number_bytes: usize,
    unpack: unsafe fn(&[*const u8], *mut f32),
    accumulate: unsafe fn(*const f32, usize, &[*const f32], *mut f32) -> usize,
}

impl FloatPanelFunctions {
    pub(crate) const fn of<K: FloatPanels>() -> Self {
        FloatPanelFunctions {
            rows: K::ROWS,
            number_bytes: size_of::<K::Number>(),
            unpack: K::unpack,
            accumulate: K::accumulate,
        }
    }
}

/// Some columns of some rows: `[height, width]` values from the first byte on.
struct PanelRows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    size: [usize; 2],
}

impl FloatPanelFunctions {
    /// Widens a part with at most as many rows as a panel has. Lanes after the last row are zero.
    ///
    /// # Safety
    /// The CPU must have the level's instructions.
    unsafe fn widen(&self, part: &PanelRows, lines: &mut [f32; PANEL]) {
        let step = self.rows / 2;
        let [height, width] = part.size;
        for half in [0, step] {
            for k in (0..width).step_by(step) {
                let whole = (width - k).min(step) * self.number_bytes;
                // Values after the last row or column are zero.
                let mut completed = [[0u32; MOST_ROWS / 2]; MOST_ROWS / 2];
                let mut numbers = [std::ptr::null(); MOST_ROWS / 2];
                for (r, completed) in completed[..step].iter_mut().enumerate() {
                    numbers[r] = completed.as_ptr().cast();
                    if half + r < height {
                        let start = (half + r) * part.row_bytes + k * self.number_bytes;
                        let bytes = &part.bytes[start..][..whole];
                        if width - k >= step {
                            numbers[r] = bytes.as_ptr();
                        } else {
                            bytemuck::cast_slice_mut::<u32, u8>(completed)[..whole]
                                .copy_from_slice(bytes);
                        }
                    }
                }
                let place = k * self.rows + half;
                // SAFETY: `numbers` points to `step` values of each of `step` rows; the caller guarantees the level.
                unsafe { (self.unpack)(&numbers[..step], lines[place..].as_mut_ptr()) };
            }
        }
    }
}

/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel), for the level of `panels`.
pub(crate) unsafe fn multiply(panels: &FloatPanelFunctions, product: &Product, rows: Range<usize>) {
    let most = panels.rows;
    let (cols, depth) = (product.cols, PANEL / most);
    let mut room = product.x.room(product.worker);
    let (lines, sums) = room.as_mut_slice::<f32>().split_at_mut(PANEL);
    let lines: &mut [f32; PANEL] = lines.try_into().expect("a panel");
    let tokens = product.tokens();
    for first_token in (0..tokens).step_by(TOKENS) {
        let count = (tokens - first_token).min(TOKENS);
        let mut inputs = [std::ptr::null::<f32>(); TOKENS];
        for first in rows.clone().step_by(PANELS * most) {
            let height = (rows.end - first).min(PANELS * most);
            let sums = &mut sums[..height.div_ceil(most) * count * most];
            sums.fill(0.0);
            for from in (0..cols).step_by(depth) {
                let columns = (cols - from).min(depth);
                for (t, input) in inputs[..count].iter_mut().enumerate() {
                    let values = product.input(first_token + t).values;
                    *input = values[from..][..columns].as_ptr();
                }
                for (panel, sums) in sums.chunks_exact_mut(count * most).enumerate() {
                    let start = (first + panel * most) * product.row_bytes;
                    let part = PanelRows {
                        bytes: &product.weights[start + from * panels.number_bytes..],
                        row_bytes: product.row_bytes,
                        size: [(height - panel * most).min(most), columns],
                    };
                    // SAFETY: the caller guarantees the level.
                    unsafe { panels.widen(&part, lines) };
                    let mut t = 0;
                    while t < count {
                        let sums = sums[t * most..].as_mut_ptr();
                        // SAFETY: each of the tokens has `columns` values and a line of sums.
                        t += unsafe {
                            (panels.accumulate)(lines.as_ptr(), columns, &inputs[t..count], sums)
                        };
                    }
                }
            }
            for (panel, sums) in sums.chunks_exact(count * most).enumerate() {
                let (row, height) = (first + panel * most, (height - panel * most).min(most));
                for (t, sums) in sums.chunks_exact(most).enumerate() {
                    let out =
                        (product.out).wrapping_add((first_token + t) * product.out_stride + row);
                    // SAFETY: the caller guarantees that these elements are valid.
                    unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), out, height) };
                }
            }
        }
    }
}

/// Panels on AVX2 with FMA: sixteen rows.
pub(crate) struct Avx2<F>(PhantomData<F>);

impl<F: avx2::Float> Avx2<F> {
    /// Adds the products of `depth` lines with `T` tokens to `sums`.
    ///
    /// # Safety
    /// As for [`FloatPanels::accumulate`].
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<const T: usize>(
        lines: *const f32,
        depth: usize,
        x: [*const f32; T],
        sums: *mut f32,
    ) {
        let mut sum = [[_mm256_setzero_ps(); 2]; T];
        // SAFETY: the caller guarantees that the accessed memory is valid.
        unsafe {
            for k in 0..depth {
                let line = lines.add(k * Self::ROWS);
                let w = [_mm256_loadu_ps(line), _mm256_loadu_ps(line.add(8))];
                for t in 0..T {
                    let x = _mm256_broadcast_ss(&*x[t].add(k));
                    sum[t][0] = _mm256_fmadd_ps(w[0], x, sum[t][0]);
                    sum[t][1] = _mm256_fmadd_ps(w[1], x, sum[t][1]);
                }
            }
            for t in 0..T {
                for half in 0..2 {
                    let sums = sums.add(t * Self::ROWS + 8 * half);
                    _mm256_storeu_ps(sums, _mm256_add_ps(_mm256_loadu_ps(sums), sum[t][half]));
                }
            }
        }
    }
}

impl<F: avx2::Float> FloatPanels for Avx2<F> {
    type Number = F;
    const ROWS: usize = 16;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(numbers: &[*const u8], lines: *mut f32) {
        let mut x = [_mm256_setzero_ps(); 8];
        for (x, &at) in x.iter_mut().zip(numbers) {
            // SAFETY: there are eight values to read.
            *x = unsafe { F::load(at.cast()) };
        }
        for (i, x) in avx2_panel::transpose(x).into_iter().enumerate() {
            // SAFETY: each line has eight values here.
            unsafe { _mm256_storeu_ps(lines.add(i * Self::ROWS), x) };
        }
    }

    unsafe fn accumulate(
        lines: *const f32,
        depth: usize,
        x: &[*const f32],
        sums: *mut f32,
    ) -> usize {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match *x {
                [a, b, c, d, e, f, ..] => {
                    Self::tile(lines, depth, [a, b, c, d, e, f], sums);
                    6
                }
                [a, b, ..] => {
                    Self::tile(lines, depth, [a, b], sums);
                    2
                }
                _ => {
                    Self::tile(lines, depth, [x[0]], sums);
                    1
                }
            }
        }
    }
}

/// Panels on AVX-512: thirty-two rows.
pub(crate) struct Avx512<F>(PhantomData<F>);

impl<F: avx512::Float> Avx512<F> {
    /// Adds the products of `depth` lines with `T` tokens to `sums`.
    ///
    /// # Safety
    /// As for [`FloatPanels::accumulate`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn tile<const T: usize>(
        lines: *const f32,
        depth: usize,
        x: [*const f32; T],
        sums: *mut f32,
    ) {
        let mut sum = [[_mm512_setzero_ps(); 2]; T];
        // SAFETY: the caller guarantees that the accessed memory is valid.
        unsafe {
            for k in 0..depth {
                let line = lines.add(k * Self::ROWS);
                let w = [_mm512_loadu_ps(line), _mm512_loadu_ps(line.add(16))];
                for t in 0..T {
                    let x = _mm512_set1_ps(*x[t].add(k));
                    sum[t][0] = _mm512_fmadd_ps(w[0], x, sum[t][0]);
                    sum[t][1] = _mm512_fmadd_ps(w[1], x, sum[t][1]);
                }
            }
            for t in 0..T {
                for half in 0..2 {
                    let sums = sums.add(t * Self::ROWS + 16 * half);
                    _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), sum[t][half]));
                }
            }
        }
    }
}

impl<F: avx512::Float> FloatPanels for Avx512<F> {
    type Number = F;
    const ROWS: usize = 32;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
    unsafe fn unpack(numbers: &[*const u8], lines: *mut f32) {
        let mut x = [_mm512_setzero_ps(); 16];
        for (x, &at) in x.iter_mut().zip(numbers) {
            // SAFETY: there are sixteen values to read.
            *x = unsafe { F::load(at.cast()) };
        }
        for (i, x) in transpose(x).into_iter().enumerate() {
            // SAFETY: each line has sixteen values here.
            unsafe { _mm512_storeu_ps(lines.add(i * Self::ROWS), x) };
        }
    }

    unsafe fn accumulate(
        lines: *const f32,
        depth: usize,
        x: &[*const f32],
        sums: *mut f32,
    ) -> usize {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match *x {
                [a, b, c, d, e, f, g, h, i, j, k, l, ..] => {
                    let x = [a, b, c, d, e, f, g, h, i, j, k, l];
                    Self::tile(lines, depth, x, sums);
                    12
                }
                [a, b, c, d, ..] => {
                    Self::tile(lines, depth, [a, b, c, d], sums);
                    4
                }
                _ => {
                    Self::tile(lines, depth, [x[0]], sums);
                    1
                }
            }
        }
    }
}
