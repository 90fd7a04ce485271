//! The tiling of a product into rows and tokens.

use std::ops::Range;

use crate::activations::{Activations, Row};
use crate::cpu::Simd;
use crate::format::Format;
use crate::panel::{self, PanelFunctions, Panels};
use crate::simd::scalar;
#[cfg(target_arch = "x86_64")]
use crate::simd::{
    amx, amx_floats, avx2, avx2_panel, avx512, avx512_lanes, avx512_panel, float_panel,
};
#[cfg(target_arch = "aarch64")]
use crate::simd::{neon, neon_panel};

/// A matrix, its inputs and the destination of the results.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) format: &'static Format,
    pub(crate) weights: &'a [u8], // [rows, row_bytes]
    pub(crate) row_bytes: usize,
    pub(crate) cols: usize,
    pub(crate) x: &'a Activations,
    pub(crate) picked: Option<&'a [u32]>, // the rows of x that are the tokens; all rows if None
    pub(crate) simd: Simd,                // the level of the kernel
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) worker: usize, // number of the thread, for scratch memory
    pub(crate) out: *mut f32,             // [tokens, out_stride]; column 0 belongs to row 0
    pub(crate) out_stride: usize,
}

impl Product<'_> {
    /// Number of tokens.
    pub(crate) fn tokens(&self) -> usize {
        self.picked.map_or(self.x.rows(), <[u32]>::len)
    }

    /// Returns the input of token t.
    #[inline(always)]
    pub(crate) fn input(&self, t: usize) -> Row<'_> {
        self.x
            .padded_row(self.picked.map_or(t, |picked| picked[t] as usize))
    }
}

/// Bytes of working memory that a kernel may need besides the stack.
#[cfg(target_arch = "x86_64")]
pub(crate) const ROOM: usize = if float_panel::ROOM > amx_floats::ROOM {
    float_panel::ROOM
} else {
    amx_floats::ROOM
};
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ROOM: usize = 0;

/// Computes `out[token][row]` for the given rows and all tokens.
///
/// The caller ensures that the CPU supports the kernel's level, that `rows` are rows of the weights, that `out` is valid for every (token,
/// row), and that no other thread accesses these elements during the call.
pub(crate) type Kernel = unsafe fn(&Product, Range<usize>);

/// The innermost part of a kernel: R rows by T tokens, accumulated in registers.
///
/// The value for one (row, token) must not depend on R and T: each accumulator gets the same operations in the same order.
pub(crate) trait Tile {
    /// # Safety
    /// As for [`Kernel`], with rows `row..row + R` and tokens `token..token + T`.
    unsafe fn tile<const R: usize, const T: usize>(product: &Product, row: usize, token: usize);

    /// Eight rows by one token, if the level has such a tile; returns whether it does.
    ///
    /// # Safety
    /// As for `tile`.
    unsafe fn eight_rows(_: &Product, _row: usize, _token: usize) -> bool {
        false
    }
}

/// Inputs are reused for every tile of rows, so a block of tokens should stay in the L2 cache.
const TOKEN_BLOCK_BYTES: usize = 512 << 10;

/// A [`Tile`] as a table of functions, so that the loops over tiles are compiled once, not once for each format and level. A tile is never
/// inlined into the loops, because they are not compiled for its instructions.
struct Tiles {
    four_rows_four_tokens: unsafe fn(&Product, usize, usize),
    four_rows: unsafe fn(&Product, usize, usize),
    one_row: unsafe fn(&Product, usize, usize),
    eight_rows: unsafe fn(&Product, usize, usize) -> bool,
}

impl Tiles {
    const fn of<K: Tile>() -> Self {
        Tiles {
            four_rows_four_tokens: K::tile::<4, 4>,
            four_rows: K::tile::<4, 1>,
            one_row: K::tile::<1, 1>,
            eight_rows: K::eight_rows,
        }
    }

    /// # Safety
    /// As for [`Kernel`].
    unsafe fn multiply(&self, product: &Product, rows: Range<usize>) {
        let tokens = product.tokens();
        let token_bytes = if product.x.is_quantized() {
            product.cols
        } else {
            4 * product.cols
        };
        let token_block = (TOKEN_BLOCK_BYTES / token_bytes.max(1)).clamp(4, 64) / 4 * 4;
        for start in (0..tokens).step_by(token_block) {
            let end = tokens.min(start + token_block);
            let mut row = rows.start;
            while tokens == 1 && row + 8 <= rows.end {
                // SAFETY: the rows and the only token are within the ranges that the caller guarantees.
                if !unsafe { (self.eight_rows)(product, row, 0) } {
                    break;
                }
                row += 8;
            }
            while row + 4 <= rows.end {
                let mut token = start;
                while token + 4 <= end {
                    // SAFETY: rows and tokens are within the ranges that the caller guarantees.
                    unsafe { (self.four_rows_four_tokens)(product, row, token) };
                    token += 4;
                }
                while token < end {
                    // SAFETY: as above.
                    unsafe { (self.four_rows)(product, row, token) };
                    token += 1;
                }
                row += 4;
            }
            // At most three of a thread's rows are left.
            for row in row..rows.end {
                for token in start..end {
                    // SAFETY: as above.
                    unsafe { (self.one_row)(product, row, token) };
                }
            }
        }
    }
}

/// # Safety
/// As for [`Kernel`].
unsafe fn multiply<K: Tile>(product: &Product, rows: Range<usize>) {
    // SAFETY: guaranteed by the caller.
    unsafe { const { &Tiles::of::<K>() }.multiply(product, rows) };
}

/// Multiplies in panels if there are many tokens.
///
/// # Safety
/// As for [`Kernel`].
unsafe fn multiply_many<K: Tile, P: Panels>(product: &Product, rows: Range<usize>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Panels hold all tokens in the order in which they were loaded.
        if product.picked.is_none() && product.x.has_panels() {
            panel::multiply(const { &PanelFunctions::of::<P>() }, product, rows);
        } else {
            multiply::<K>(product, rows);
        }
    }
}

/// Multiplies in panels of floats if there are many tokens.
///
/// # Safety
/// As for [`Kernel`].
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_floats<K: Tile, P: float_panel::FloatPanels>(
    product: &Product,
    rows: Range<usize>,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if product.picked.is_none() && product.x.are_many() {
            float_panel::multiply(
                const { &float_panel::FloatPanelFunctions::of::<P>() },
                product,
                rows,
            );
        } else {
            multiply::<K>(product, rows);
        }
    }
}

/// Returns the kernel of a float format for a level.
#[cfg(target_arch = "x86_64")]
pub(crate) fn float<B: scalar::Dot + avx2::Float + avx512::Float>(simd: Simd) -> Kernel {
    match simd {
        Simd::Amx | Simd::Avx512Vnni => {
            multiply_floats::<avx512::FloatTile<B>, float_panel::Avx512<B>>
        }
        Simd::AvxVnni | Simd::Avx2 => multiply_floats::<avx2::FloatTile<B>, float_panel::Avx2<B>>,
        _ => scalar::multiply::<B>,
    }
}

/// Returns the kernel of an integer format for a level.
#[cfg(target_arch = "x86_64")]
pub(crate) fn integer<B: scalar::Dot + avx2::Integer + avx512::Integer>(simd: Simd) -> Kernel {
    match simd {
        Simd::Amx => multiply_many::<avx512::IntegerTile<B>, amx::Amx<B>>,
        Simd::Avx512Vnni => multiply_many::<avx512::IntegerTile<B>, avx512_panel::Vnni<B>>,
        Simd::AvxVnni => multiply_many::<avx2::IntegerTile<B>, avx2_panel::Panel8<B, true>>,
        Simd::Avx2 => multiply_many::<avx2::IntegerTile<B>, avx2_panel::Panel8<B, false>>,
        _ => scalar::multiply::<B>,
    }
}

/// Returns the kernel of a format with a [`Reordered`] layout, for a level.
pub(crate) fn reordered(simd: Simd) -> Kernel {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Amx | Simd::Avx512Vnni => multiply_lanes,
        _ => multiply_restored,
    }
}

/// Multiplies in lanes; with many tokens, restores the plain format instead.
///
/// # Safety
/// As for [`Kernel`].
#[cfg(target_arch = "x86_64")]
unsafe fn multiply_lanes(product: &Product, rows: Range<usize>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if product.picked.is_none() && product.x.has_panels() {
            multiply_restored(product, rows);
        } else {
            avx512_lanes::multiply(product, rows);
        }
    }
}

/// Restores rows to the plain format, and multiplies them with that format's kernel.
///
/// # Safety
/// As for [`Kernel`].
unsafe fn multiply_restored(product: &Product, rows: Range<usize>) {
    /// Bytes of rows restored at once; they stay in the L2 cache.
    const ROOM: usize = 64 << 10;
    let reordered = (product.format.reordered.as_ref()).expect("a format that is another one");
    let kernel = (reordered.of.kernel)(product.simd);
    let row_bytes = product.row_bytes;
    let mut short = [0; ROOM];
    let mut long = Vec::new();
    let room = if row_bytes <= ROOM {
        &mut short[..]
    } else {
        // No known model has rows of this length.
        long.resize(row_bytes, 0);
        &mut long[..]
    };
    let most = (room.len() / row_bytes).min(panel::ROWS);
    for first in rows.clone().step_by(most) {
        let count = (rows.end - first).min(most);
        let room = &mut room[..count * row_bytes];
        (reordered.restore)(&product.weights[first * row_bytes..][..room.len()], room);
        let product = Product {
            weights: room,
            format: reordered.of,
            out: product.out.wrapping_add(first),
            ..*product
        };
        // SAFETY: the caller guarantees these rows and the level.
        unsafe { kernel(&product, 0..count) };
    }
}

/// Returns the kernel of a float format for a level.
#[cfg(target_arch = "aarch64")]
pub(crate) fn float<B: scalar::Dot + neon::Float>(simd: Simd) -> Kernel {
    match simd {
        Simd::Neon | Simd::NeonDotprod | Simd::NeonI8mm => multiply::<neon::FloatTile<B>>,
        _ => scalar::multiply::<B>,
    }
}

/// Returns the kernel of an integer format for a level.
#[cfg(target_arch = "aarch64")]
pub(crate) fn integer<B: scalar::Dot + neon::Integer>(simd: Simd) -> Kernel {
    match simd {
        Simd::NeonI8mm => {
            multiply_many::<neon::IntegerTile<B, true>, neon_panel::NeonPanel<B, true>>
        }
        Simd::NeonDotprod => {
            multiply_many::<neon::IntegerTile<B, true>, neon_panel::NeonPanel<B, false>>
        }
        Simd::Neon => multiply::<neon::IntegerTile<B, false>>,
        _ => scalar::multiply::<B>,
    }
}

/// Returns the kernel of a float format.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn float<B: scalar::Dot>(_: Simd) -> Kernel {
    scalar::multiply::<B>
}

/// Returns the kernel of an integer format.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn integer<B: scalar::Dot>(_: Simd) -> Kernel {
    scalar::multiply::<B>
}
