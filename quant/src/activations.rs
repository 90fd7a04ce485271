//! Inputs of a matrix product, prepared once for all matrices that share them.

use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::aligned::Aligned;
use crate::cpu::Simd;
use crate::error::Result;
use crate::kernel;
use crate::observe::ProductObserver;
use crate::panel::LANES;
use crate::rounding::{Rounding, Scale};
use crate::simd::{self, Quantize};

/// Values that share one 8-bit scale.
pub(crate) const BLOCK: usize = 32;
/// Values whose codes are interleaved with each other.
pub(crate) const GROUP: usize = 128;
/// Smallest number of tokens for which the 8-bit form is also laid out in panels. With fewer tokens, a panel's registers are mostly empty.
pub(crate) const PANEL_TOKENS: usize = 8;
/// Rows are padded with zeros to a multiple of this many values: the longest block of any format.
pub(crate) const PAD: usize = 256;

/// Rows of f32 inputs, optionally rounded to 16 bits. For formats with integer dot products, the rows are also rounded to 8 bits.
///
/// In the 8-bit form, groups of values share a scale ([`Rounding`]): `x = scale * code`, `scale = max |x| / 127`, codes rounded to nearest
/// even. A NaN or an infinity makes the shared scale NaN, so every product with it is NaN.
///
/// Codes are stored in groups of four blocks: the first 16 codes of each block, then the last 16 codes of each. Formats that pack two codes
/// in a byte then unpack into registers whose 128-bit lanes belong to one block each.
pub struct Activations {
    rows: usize,
    cols: usize,
    stride: usize,
    rounding: Option<Rounding>,
    max_rows: usize,
    max_cols: usize,
    /// Number of rows from which on products are summed in panels.
    panel_rows: usize,
    simd: Simd,
    values: Aligned,    // f32 [rows, stride]
    codes: Aligned,     // i8 [rows, stride]
    scales: Aligned,    // f32 [rows, stride / 32]
    sums: Aligned,      // f32 [rows, stride / 32]: scale * sum of the codes
    half_sums: Aligned, // the same for each half block
    // Like `codes`, for groups of 16 rows, one per lane: see [`TokenPanel`].
    panel_codes: Aligned, // i8 [rows / 16, stride / C, 16, C] for C = panel_columns
    panel_scales: Aligned, // f32 [rows / 16, stride / 32, 16]
    panel_sums: Aligned,  // f32 [rows / 16, stride / 32, 16]
    panel_half_sums: Aligned, // i32 [rows / 16, stride / 16, 16]: without the scale
    /// Working memory of a product, for each worker: it would be too large for a caller's stack.
    rooms: Vec<Mutex<Aligned>>,
    pub(crate) observer: Option<ProductObserver>,
}

/// Some columns of sixteen rows of 8-bit inputs, interleaved. Rows that were not loaded are zero.
pub(crate) struct TokenPanel {
    /// Blocks of 32 columns.
    pub(crate) blocks: usize,
    /// `i8 [8 * blocks, 16, 4]`: four columns of each row, in natural order. `[4 * blocks, 16, 8]` for levels that take eight columns.
    pub(crate) codes: *const i8,
    /// `f32 [blocks, 16]`.
    pub(crate) scales: *const f32,
    /// `f32 [blocks, 16]`: scale * sum of the codes.
    pub(crate) sums: *const f32,
    /// `i32 [2 * blocks, 16]`: sums of the codes of half blocks.
    pub(crate) half_sums: *const i32,
}

/// One row of [`Activations`]. All fields but `values` are valid only if the activations are quantized.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) values: &'a [f32],    // [stride]
    pub(crate) codes: &'a [i8],      // [stride]
    pub(crate) scales: &'a [f32],    // [stride / 32]
    pub(crate) sums: &'a [f32],      // [stride / 32]
    pub(crate) half_sums: &'a [f32], // [stride / 16]
}

/// One row of 8-bit inputs, being written.
pub(crate) struct RowMut<'a> {
    pub(crate) codes: &'a mut [i8],      // [stride]
    pub(crate) scales: &'a mut [f32],    // [stride / 32]
    pub(crate) sums: &'a mut [f32],      // [stride / 32]
    pub(crate) half_sums: &'a mut [f32], // [stride / 16]
}

impl RowMut<'_> {
    /// Stores the scale of a block and the sums of its two halves' codes.
    #[inline]
    pub(crate) fn set(&mut self, block: usize, scale: Scale, [first, second]: [i32; 2]) {
        // Codes of infinities and NaN are any numbers, and their scale makes every product with them NaN.
        self.sums[block] = scale.times(first.wrapping_add(second));
        let scale = scale.times(1);
        self.scales[block] = scale;
        self.half_sums[2 * block] = scale * first as f32;
        self.half_sums[2 * block + 1] = scale * second as f32;
    }
}

impl Activations {
    /// Allocates room for `max_rows` rows of `max_cols` values. Nothing is allocated later.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the system refuses the memory.
    pub fn new(max_rows: usize, max_cols: usize) -> Result<Activations> {
        let len = max_rows * max_cols.next_multiple_of(PAD);
        let panel_len = Activations::panel_len(max_rows, max_cols);
        Activations {
            rows: 0,
            cols: 0,
            stride: 0,
            rounding: None,
            max_rows,
            max_cols,
            panel_rows: PANEL_TOKENS,
            simd: Simd::detect(),
            values: Aligned::zeroed(len * size_of::<f32>())?,
            codes: Aligned::zeroed(len)?,
            scales: Aligned::zeroed(len / BLOCK * size_of::<f32>())?,
            sums: Aligned::zeroed(len / BLOCK * size_of::<f32>())?,
            half_sums: Aligned::zeroed(2 * len / BLOCK * size_of::<f32>())?,
            panel_codes: Aligned::zeroed(panel_len)?,
            panel_scales: Aligned::zeroed(panel_len / BLOCK * size_of::<f32>())?,
            panel_sums: Aligned::zeroed(panel_len / BLOCK * size_of::<f32>())?,
            panel_half_sums: Aligned::zeroed(2 * panel_len / BLOCK * size_of::<i32>())?,
            rooms: Vec::new(),
            observer: None,
        }
        .for_workers(1)
    }

    /// Allocates working memory for `workers` that multiply at the same time.
    ///
    /// # Errors
    /// As for [`Activations::new`].
    pub fn for_workers(mut self, workers: usize) -> Result<Activations> {
        let room = || Aligned::zeroed(Activations::room_bytes(self.max_rows)).map(Mutex::new);
        self.rooms = (0..workers.max(1)).map(|_| room()).collect::<Result<_>>()?;
        Ok(self)
    }

    /// Bytes of a worker's working memory.
    fn room_bytes(max_rows: usize) -> usize {
        if max_rows >= PANEL_TOKENS {
            kernel::ROOM
        } else {
            0
        }
    }

    /// The working memory of a worker.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // needed by x86 kernels only
    pub(crate) fn room(&self, worker: usize) -> MutexGuard<'_, Aligned> {
        let room = &self.rooms[worker % self.rooms.len()];
        room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Length of the panel codes for at most `max_rows` rows and `max_cols` columns.
    fn panel_len(max_rows: usize, max_cols: usize) -> usize {
        if max_rows >= PANEL_TOKENS {
            max_rows.next_multiple_of(LANES) * max_cols.next_multiple_of(PAD)
        } else {
            0
        }
    }

    /// Bytes that [`Activations::new`] and [`Activations::for_workers`] allocate for these arguments.
    pub fn bytes(max_rows: usize, max_cols: usize, workers: usize) -> usize {
        let len = max_rows * max_cols.next_multiple_of(PAD);
        let panel_len = Activations::panel_len(max_rows, max_cols);
        let scales_and_sums = 4 * (len + panel_len) / BLOCK * size_of::<f32>();
        let rooms = workers.max(1) * Activations::room_bytes(max_rows);
        len * (size_of::<f32>() + 1) + panel_len + scales_and_sums + rooms
    }

    /// Replaces the contents with `x`, `rows` rows of `cols` values. Also rounds them as matrices of a format with this
    /// [`rounding`](crate::Format::rounding) need it. Does not allocate.
    ///
    /// # Panics
    /// If `x` does not have length `rows * cols`, or exceeds the allocated room, in which a row takes a multiple of 256 values.
    pub fn load(&mut self, x: &[f32], rows: usize, cols: usize, rounding: Option<Rounding>) {
        assert_eq!(x.len(), rows * cols, "activations: {rows} rows of {cols}");
        let loading = self.begin(rows, cols, rounding);
        for part in 0..loading.parts() {
            // SAFETY: only this thread fills parts.
            unsafe { loading.fill(part, |t, row| row.copy_from_slice(&x[t * cols..][..cols])) };
        }
    }

    /// Starts replacing the contents with `rows` rows of `cols` values, which [`Loading::fill`] writes; `rounding` as in
    /// [`Activations::load`]. Rows keep their previous contents until every part is filled.
    ///
    /// # Panics
    /// If the rows exceed the allocated room, in which a row takes a multiple of 256 values.
    pub fn begin(&mut self, rows: usize, cols: usize, rounding: Option<Rounding>) -> Loading<'_> {
        assert!(
            rows * cols.next_multiple_of(PAD)
                <= self.max_rows * self.max_cols.next_multiple_of(PAD),
            "activations: {rows} rows of {cols}, room for {} rows of {}",
            self.max_rows,
            self.max_cols
        );
        (self.rows, self.cols) = (rows, cols);
        self.rounding = rounding;
        self.stride = cols.next_multiple_of(PAD);
        Loading {
            rows,
            cols,
            stride: self.stride,
            quantize: simd::quantize(self.simd),
            panel_columns: self.panel_columns(),
            rounding,
            has_panels: self.has_panels(),
            values: self.values.as_mut_slice().as_mut_ptr(),
            codes: self.codes.as_mut_slice().as_mut_ptr(),
            scales: self.scales.as_mut_slice().as_mut_ptr(),
            sums: self.sums.as_mut_slice().as_mut_ptr(),
            half_sums: self.half_sums.as_mut_slice().as_mut_ptr(),
            panel_codes: self.panel_codes.as_mut_slice().as_mut_ptr(),
            panel_scales: self.panel_scales.as_mut_slice().as_mut_ptr(),
            panel_sums: self.panel_sums.as_mut_slice().as_mut_ptr(),
            panel_half_sums: self.panel_half_sums.as_mut_slice().as_mut_ptr(),
            borrow: PhantomData,
        }
    }

    /// From now on, products of every row are summed as for a single row, however many rows there are.
    pub fn sum_as_alone(&mut self) {
        self.panel_rows = usize::MAX;
    }

    /// From now on, `observer` is called for each product with these inputs.
    pub fn observe(&mut self, observer: ProductObserver) {
        self.observer = Some(observer);
    }

    /// Whether there are enough rows for products to be summed in panels.
    pub(crate) fn are_many(&self) -> bool {
        self.rows >= self.panel_rows
    }

    /// Number of bf16 values whose sum represents one input.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn pieces(&self) -> usize {
        match self.rounding {
            Some(Rounding::Bf16) => 1,
            Some(Rounding::Halves) => 2,
            _ => 3,
        }
    }

    /// Whether the 8-bit form was also laid out in panels. It is with at least `PANEL_TOKENS` rows, if the panels fit: many short rows may
    /// fit into the room of a few long rows when their panels do not.
    pub(crate) fn has_panels(&self) -> bool {
        let codes = self.rows.next_multiple_of(LANES) * self.stride;
        self.is_quantized() && self.are_many() && codes <= self.panel_codes.as_slice::<i8>().len()
    }

    /// Consecutive columns of a row in a panel.
    pub(crate) fn panel_columns(&self) -> usize {
        simd::panel_columns(self.simd)
    }

    /// Returns blocks `first..first + blocks` of the sixteen rows from `16 * group` on.
    ///
    /// # Panics
    /// If these rows or blocks do not exist.
    pub(crate) fn token_panel(&self, group: usize, first: usize, blocks: usize) -> TokenPanel {
        let stride = self.stride / BLOCK;
        assert!(group * LANES < self.rows && first + blocks <= stride);
        let first = (group * stride + first) * LANES;
        let len = blocks * LANES;
        let codes = &self.panel_codes.as_slice::<i8>()[first * BLOCK..][..len * BLOCK];
        let scales = &self.panel_scales.as_slice::<f32>()[first..][..len];
        let sums = &self.panel_sums.as_slice::<f32>()[first..][..len];
        let half_sums = &self.panel_half_sums.as_slice::<i32>()[2 * first..][..2 * len];
        TokenPanel {
            blocks,
            codes: codes.as_ptr(),
            scales: scales.as_ptr(),
            sums: sums.as_ptr(),
            half_sums: half_sums.as_ptr(),
        }
    }

    /// Number of rows loaded.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values in each row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether the rows are also rounded to 8 bits.
    pub fn is_quantized(&self) -> bool {
        self.rounding.is_some_and(Rounding::is_integer)
    }

    /// Returns row `t`; a rounding to 16 bits has been applied to it.
    pub fn row(&self, t: usize) -> &[f32] {
        &self.padded_row(t).values[..self.cols]
    }

    #[inline(always)]
    pub(crate) fn padded_row(&self, t: usize) -> Row<'_> {
        debug_assert!(t < self.rows);
        let blocks = self.stride / BLOCK;
        Row {
            values: &self.values.as_slice()[t * self.stride..][..self.stride],
            codes: &self.codes.as_slice()[t * self.stride..][..self.stride],
            scales: &self.scales.as_slice()[t * blocks..][..blocks],
            sums: &self.sums.as_slice()[t * blocks..][..blocks],
            half_sums: &self.half_sums.as_slice()[2 * t * blocks..][..2 * blocks],
        }
    }

    #[doc(hidden)]
    pub fn force_simd(&mut self, simd: Simd) {
        assert!(simd.is_available(), "this CPU has no {simd:?}");
        self.simd = simd;
    }

    #[doc(hidden)]
    pub fn quantized_row(&self, t: usize) -> (&[i8], &[f32], &[f32]) {
        let row = self.padded_row(t);
        (row.codes, row.scales, row.sums)
    }
}

/// Rows of [`Activations`] while they are loaded: in parts of sixteen rows, which different threads may fill.
pub struct Loading<'a> {
    rows: usize,
    cols: usize,
    stride: usize,
    quantize: Quantize,
    panel_columns: usize,
    rounding: Option<Rounding>,
    has_panels: bool,
    // Pointers into the memory of the activations, with the layout given there.
    values: *mut f32,
    codes: *mut i8,
    scales: *mut f32,
    sums: *mut f32,
    half_sums: *mut f32,
    panel_codes: *mut u32,
    panel_scales: *mut f32,
    panel_sums: *mut f32,
    panel_half_sums: *mut i32,
    borrow: PhantomData<&'a mut Activations>,
}

// SAFETY: `Loading` holds the only borrow of the activations, and callers of `fill` give each thread its own part.
unsafe impl Send for Loading<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Loading<'_> {}

impl Loading<'_> {
    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Fills a part: `write(t, row)` writes each row `t` of the part.
    ///
    /// # Safety
    /// No other thread fills the same part at the same time.
    ///
    /// # Panics
    /// If the part does not exist.
    pub unsafe fn fill(&self, part: usize, mut write: impl FnMut(usize, &mut [f32])) {
        assert!(part < self.parts(), "part {part} of {}", self.parts());
        for t in part * LANES..self.rows.min((part + 1) * LANES) {
            // SAFETY: row t is inside the memory, by the check in `begin`, and in this part.
            let row = unsafe { piece(self.values, t * self.stride, self.cols) };
            write(t, row);
            // SAFETY: the row is in this part.
            unsafe { self.round(t) };
        }
        if self.has_panels {
            // SAFETY: the panels fit (`has_panels`), and the part's rows are written.
            unsafe { self.fill_panel(part) };
        }
    }

    /// Pads row `t` with zeros after its last column and rounds it.
    ///
    /// # Safety
    /// No other thread uses the row.
    unsafe fn round(&self, t: usize) {
        let (stride, blocks) = (self.stride, self.stride / BLOCK);
        // SAFETY: row t is inside the memory, by the check in `begin`.
        let row = unsafe { piece(self.values, t * stride, stride) };
        row[self.cols..].fill(0.0);
        let Some(rounding) = self.rounding else {
            return;
        };
        if !rounding.is_integer() {
            return rounding.round_short(row);
        }
        // SAFETY: as above; the function was chosen for a level that this CPU has, and the stride is a multiple of 256.
        unsafe {
            let rounded = RowMut {
                codes: piece(self.codes, t * stride, stride),
                scales: piece(self.scales, t * blocks, blocks),
                sums: piece(self.sums, t * blocks, blocks),
                half_sums: piece(self.half_sums, 2 * t * blocks, 2 * blocks),
            };
            (self.quantize)(row, rounded, rounding);
        }
    }

    /// Copies the rows of a part to their panel.
    ///
    /// # Safety
    /// The panels must fit, and no other thread may use the part.
    unsafe fn fill_panel(&self, part: usize) {
        let (stride, blocks) = (self.stride, self.stride / BLOCK);
        let len = stride * LANES / 4;
        // SAFETY: the caller's contract.
        let (codes, scales, sums, half_sums) = unsafe {
            let blocks = blocks * LANES;
            (
                piece(self.panel_codes, part * len, len),
                piece(self.panel_scales, part * blocks, blocks),
                piece(self.panel_sums, part * blocks, blocks),
                piece(self.panel_half_sums, part * 2 * blocks, 2 * blocks),
            )
        };
        // One u32 here holds four columns; `fours` of them are adjacent.
        let fours = self.panel_columns / 4;
        let place = |four: usize, lane: usize| (four / fours * LANES + lane) * fours + four % fours;
        let scales = scales.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<LANES>().0;
        let half_sums = half_sums.as_chunks_mut::<LANES>().0;
        for lane in 0..LANES {
            let t = part * LANES + lane;
            if t >= self.rows {
                (0..stride / 4).for_each(|four| codes[place(four, lane)] = 0);
                scales.iter_mut().for_each(|scales| scales[lane] = 0.0);
                sums.iter_mut().for_each(|sums| sums[lane] = 0.0);
                half_sums.iter_mut().for_each(|sums| sums[lane] = 0);
                continue;
            }
            // SAFETY: the row is in this part, and its codes are aligned, since rows are multiples of 256 bytes.
            let (row, row_scales, row_sums, row_half_sums) = unsafe {
                (
                    piece(self.codes.cast::<u32>(), t * stride / 4, stride / 4),
                    piece(self.scales, t * blocks, blocks),
                    piece(self.sums, t * blocks, blocks),
                    piece(self.half_sums, 2 * t * blocks, 2 * blocks),
                )
            };
            let quarters = row.as_chunks::<4>().0;
            for first in (0..stride / 4).step_by(4) {
                let (block, half) = (first / 8, first / 4 % 2);
                let quarter = &quarters[block / 4 * 8 + half * 4 + block % 4];
                for (i, &codes_of_four) in quarter.iter().enumerate() {
                    codes[place(first + i, lane)] = codes_of_four;
                }
            }
            for (b, &scale) in row_scales.iter().enumerate() {
                scales[b][lane] = scale;
                sums[b][lane] = row_sums[b];
                let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
                for half in 2 * b..2 * b + 2 {
                    // The sum is an integer, so rounding removes the errors of the additions.
                    half_sums[half][lane] =
                        (row_half_sums[half] * inverse).round_ties_even() as i32;
                }
            }
        }
    }
}

/// Returns `len` items from `start` on.
///
/// # Safety
/// The items must lie within the allocation, and no other reference to them may exist.
#[inline(always)]
unsafe fn piece<'a, T>(room: *mut T, start: usize, len: usize) -> &'a mut [T] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(room.add(start), len) }
}

impl Row<'_> {
    /// Returns the codes of block `block` in natural order.
    pub(crate) fn block(&self, block: usize) -> [i8; BLOCK] {
        let first = block / 4 * GROUP + block % 4 * 16;
        let mut codes = [0; BLOCK];
        codes[..16].copy_from_slice(&self.codes[first..][..16]);
        codes[16..].copy_from_slice(&self.codes[first + 64..][..16]);
        codes
    }
}
