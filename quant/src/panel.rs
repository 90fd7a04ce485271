//! Products with many tokens, in which each block of weights is unpacked once for all tokens.
//!
//! A row kernel unpacks a block of weights for every four tokens, and sums across its registers for each; with many tokens, that is most of
//! its work. Here sixteen rows are unpacked into a [`Panel`], one slice of their columns at a time, and each lane of a register belongs to
//! one token. No sum crosses lanes, and a block of 32 costs one conversion and one multiply-add per row and token register, in addition to
//! its products.

use std::ops::Range;

use bytemuck::Zeroable;

use crate::activations::{BLOCK, TokenPanel};
use crate::kernel::Product;

/// Tokens of a panel, one per lane.
pub(crate) const LANES: usize = 16;
/// Rows of a panel.
pub(crate) const ROWS: usize = 16;
/// Columns unpacked at a time: the panel stays in the L1 cache for all tokens.
pub(crate) const DEPTH: usize = 1024;
/// Tokens whose sums are kept while a panel is in use.
const TOKENS: usize = 256;

/// A slice of sixteen unpacked rows.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Panel {
    /// One byte per value, in natural order.
    pub(crate) codes: [[i8; DEPTH]; ROWS],
    /// The scale of each block, or of its first half.
    pub(crate) scales: [[f32; DEPTH / BLOCK]; ROWS],
    /// The scale of the second half of each block.
    pub(crate) second_scales: [[f32; DEPTH / BLOCK]; ROWS],
    /// The minimum of each block, or of its first half.
    pub(crate) mins: [[f32; DEPTH / BLOCK]; ROWS],
    /// The minimum of the second half of each block.
    pub(crate) second_mins: [[f32; DEPTH / BLOCK]; ROWS],
}

/// The minima of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Minima {
    /// No minima.
    None,
    /// One minimum for each block of 32.
    Blocks,
    /// One minimum for each half block.
    Halves,
}

/// Sums of sixteen rows (outer) and sixteen tokens (inner).
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Sums(pub(crate) [[f32; LANES]; ROWS]);

/// Panel products of one SIMD level.
///
/// The result for a row and a token must not depend on the other rows and tokens.
pub(crate) trait Panels {
    /// Consecutive columns of a token's codes: see [`TokenPanel`].
    const COLUMNS: usize = 4;

    /// Prepares the thread, for example its tile registers.
    ///
    /// # Safety
    /// The CPU must have the level's instructions, here and in all functions below.
    unsafe fn begin() {}

    /// Releases the state that `begin` set up.
    ///
    /// # Safety
    /// Must be called after `begin`.
    unsafe fn end() {}

    /// Unpacks up to [`DEPTH`] values of `row`, a complete stored row, into row `index` of the panel. `from` is the first value, a multiple
    /// of `DEPTH`.
    ///
    /// # Safety
    /// As for `begin`.
    unsafe fn unpack(row: &[u8], from: usize, index: usize, panel: &mut Panel);

    /// Adds the panel's products with sixteen tokens to `sums`.
    ///
    /// # Safety
    /// Must be called between `begin` and `end`.
    unsafe fn accumulate(panel: &Panel, x: &TokenPanel, sums: &mut Sums);

    /// Writes `[rows, tokens] = size` sums to `out`: contiguous per token, with tokens `stride` apart.
    ///
    /// # Safety
    /// `out` must be valid for all of them.
    unsafe fn store(sums: &Sums, size: [usize; 2], out: *mut f32, stride: usize);
}

/// [`Panels`] as a table of functions, so that the loops over panels are compiled once, not once for each format and level.
pub(crate) struct PanelFunctions {
    columns: usize,
    begin: unsafe fn(),
    end: unsafe fn(),
    unpack: unsafe fn(&[u8], usize, usize, &mut Panel),
    accumulate: unsafe fn(&Panel, &TokenPanel, &mut Sums),
    store: unsafe fn(&Sums, [usize; 2], *mut f32, usize),
}

impl PanelFunctions {
    pub(crate) const fn of<K: Panels>() -> Self {
        PanelFunctions {
            columns: K::COLUMNS,
            begin: K::begin,
            end: K::end,
            unpack: K::unpack,
            accumulate: K::accumulate,
            store: K::store,
        }
    }
}

/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel), for the level of `panels`; the inputs have panels.
pub(crate) unsafe fn multiply(panels: &PanelFunctions, product: &Product, rows: Range<usize>) {
    assert_eq!(
        product.x.panel_columns(),
        panels.columns,
        "inputs of another level"
    );
    let mut panel = Panel::zeroed();
    let mut sums = [Sums::zeroed(); TOKENS / LANES];
    // SAFETY: the caller guarantees the level.
    unsafe { (panels.begin)() };
    let tokens = product.x.rows();
    for first_token in (0..tokens).step_by(TOKENS) {
        let groups = (tokens - first_token).min(TOKENS).div_ceil(LANES);
        let sums = &mut sums[..groups];
        for first in rows.clone().step_by(ROWS) {
            let height = (rows.end - first).min(ROWS);
            sums.fill(Sums::zeroed());
            for from in (0..product.cols).step_by(DEPTH) {
                for r in 0..height {
                    let row = &product.weights[(first + r) * product.row_bytes..];
                    // SAFETY: as above.
                    unsafe { (panels.unpack)(&row[..product.row_bytes], from, r, &mut panel) };
                }
                let blocks = (product.cols - from).min(DEPTH) / BLOCK;
                for (group, sums) in sums.iter_mut().enumerate() {
                    let group = first_token / LANES + group;
                    let x = product.x.token_panel(group, from / BLOCK, blocks);
                    // SAFETY: as above.
                    unsafe { (panels.accumulate)(&panel, &x, sums) };
                }
            }
            for (group, sums) in sums.iter().enumerate() {
                let token = first_token + group * LANES;
                let out = product.out.wrapping_add(token * product.out_stride + first);
                let count = (tokens - token).min(LANES);
                // SAFETY: the caller guarantees that these elements are valid.
                unsafe { (panels.store)(sums, [height, count], out, product.out_stride) };
            }
        }
    }
    // SAFETY: as above.
    unsafe { (panels.end)() };
}
