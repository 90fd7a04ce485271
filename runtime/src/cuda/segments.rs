//! How the rows of a persistent program's products are dealt out to its blocks, and how they come through the ring of weights.

use bytemuck::{Pod, Zeroable};
use waterline_quant::FORMATS;

use super::driver::Address;
use super::passed::Recurrence;
use super::persistent::THREADS;
use super::ring_products::{Product, RingFactor};
use super::shares::{Matrix, Part, Wants, shares};

/// `Segment` in weight_ring.cu: rows of one matrix that a block takes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Segment {
    codes: Address,
    scales: Address,
    bias: Address,
    code_row: u32,
    scale_row: u32,
    pub rows: i32,
    column: i32,
    pub entry: u32,
    multiplier: f32,
    code_part: u16,
    code_pitch: u16,
    scale_part: u16,
    scale_pitch: u16,
    format: u16,
    parts: u16,
    sums: u16,
    task: i8,
    begins: i8,
}

/// The size of a stage of the weight pipeline, and how many rows a thread block finishes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Most bytes of a tile that has sixteen rows; a larger one has eight.
    sixteen_rows: usize,
    /// Rows of a batch: at most one for every four threads.
    pub batch: usize,
}

impl Tiling {
    /// From the largest to the smallest. An H200 holds the first one for every model.
    const ALL: [Tiling; 5] = [
        Tiling::new(18 << 10, THREADS / 4),
        Tiling::new(18 << 10, THREADS / 8),
        Tiling::new(0, THREADS / 4),
        Tiling::new(0, THREADS / 8),
        Tiling::new(0, THREADS / 16),
    ];

    const fn new(sixteen_rows: usize, batch: usize) -> Self {
        Tiling {
            sixteen_rows,
            batch,
        }
    }

    /// Those to choose from.
    pub fn all() -> &'static [Tiling] {
        #[cfg(test)]
        if SMALLEST.get() {
            return &Self::ALL[Self::ALL.len() - 1..];
        }
        &Self::ALL
    }

    /// Rows of a tile: eight or sixteen.
    pub fn rows(self, format: usize) -> usize {
        let format = FORMATS[format];
        // A unit is 16 bytes of floats, or 32 numbers.
        let eight_units = match format.block_len {
            1 => 8 * 16,
            numbers => 8 * 32 * format.block_bytes / numbers,
        };
        match 16 * STEP_UNITS / 8 * eight_units <= self.sixteen_rows {
            true => 16,
            false => 8,
        }
    }
}
/// Units of a row that the warps take at once, and the places of a row's sums.
pub(super) const STEP_UNITS: usize = THREADS / 32 * 4;
pub(super) const SUMS_PITCH: usize = THREADS / 32 + 1;

#[cfg(test)]
thread_local! {
    /// Whether programs that this thread lays out have the smallest tiles and batches, for tests.
    pub(super) static SMALLEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Deals a product's rows out to the blocks' lists, every block the same number of segments; returns the floats that
/// a block needs for sums. `next` is the recurrence that takes the product, if it is one that does.
pub(super) fn deal(
    product: &Product,
    next: Option<&Recurrence>,
    lists: &mut [Vec<Segment>],
    tiling: Tiling,
) -> usize {
    // The rows of a gated product's two matrices go together.
    let owners = product.owners();
    let together = product.factors.len() / owners.len();
    let matrices: Vec<Matrix> = owners
        .iter()
        .map(|factor| Matrix::of(factor, tiling))
        .collect();
    let wants = next.map(|next| Wants {
        matrices: (owners.iter())
            .map(|factor| next.takes(product.output_of(factor)))
            .collect(),
        blocks: next.blocks,
    });
    let shares = shares(&matrices, wants.as_ref(), lists.len(), tiling.batch);
    let most = shares.iter().map(Vec::len).max().unwrap_or(0);
    // The sums of a turn are made while those of the one before are used.
    let turn_room = tiling.batch * together * SUMS_PITCH;
    let mut room = 0;
    for (list, share) in lists.iter_mut().zip(shares) {
        let (mut turn, mut sums) = (0, 0);
        for &Part {
            matrix,
            first,
            rows,
            turn: own,
        } in &share
        {
            let begins = own != turn;
            if begins {
                (turn, sums) = (own, own % 2 * turn_room);
            }
            for twin in 0..together {
                let factor =
                    &product.factors[matrix + twin * owners.len()].rows(first..first + rows);
                let tile = Tile::of(factor, tiling);
                list.push(Segment {
                    codes: factor.codes,
                    scales: factor.scales,
                    bias: factor.bias,
                    code_row: factor.code_row as u32,
                    scale_row: factor.scale_row as u32,
                    rows: rows as i32,
                    column: factor.column as i32,
                    entry: 0,
                    multiplier: factor.multiplier,
                    sums: sums as u16,
                    code_part: tile.code_part as u16,
                    code_pitch: tile.code_pitch as u16,
                    scale_part: tile.scale_part as u16,
                    scale_pitch: tile.scale_pitch as u16,
                    format: factor.format as u16,
                    parts: tile.parts as u16,
                    task: factor.task.map_or(-1, |task| task as i8),
                    begins: (begins && twin == 0).into(),
                });
                sums += rows * SUMS_PITCH;
            }
            room = room.max(sums);
        }
        let missing = most - share.len();
        list.extend(std::iter::repeat_n(Segment::skipped(), missing * together));
    }
    room
}

impl Segment {
    /// How many entries it has.
    pub fn entries(&self, tiling: Tiling) -> u32 {
        let rows = tiling.rows(self.format.into()) as u32;
        (self.rows as u32).div_ceil(rows) * u32::from(self.parts)
    }

    /// Takes a place in a list that does not end there, which one of zero rows would mean.
    pub fn skipped() -> Self {
        Segment {
            rows: -1,
            ..Segment::zeroed()
        }
    }
}

/// How a matrix comes through the ring: an entry has eight or sixteen rows of one step of their columns.
pub(super) struct Tile {
    code_part: usize,
    code_pitch: usize,
    scale_part: usize,
    scale_pitch: usize,
    parts: usize,
    pub bytes: usize,
}

impl Tile {
    pub fn of(factor: &RingFactor, tiling: Tiling) -> Self {
        let (units, rows) = (factor.units(), tiling.rows(factor.format));
        let part = |row: usize| (STEP_UNITS * row / units).min(row);
        let code_part = part(factor.code_row);
        // Two rows' units that lanes read at once lie in other banks.
        let gap = if factor.code_row / units == 32 {
            16
        } else {
            64
        };
        let code_pitch = code_part.next_multiple_of(128) + gap;
        let (scale_part, scale_pitch, scales) = match factor.scale_row {
            0 => (0, 0, 0),
            row if row.is_multiple_of(16) => {
                let pitch = part(row).next_multiple_of(128) + 16;
                (part(row), pitch, rows * pitch)
            }
            row => (0, row, (rows * row).next_multiple_of(16)),
        };
        Tile {
            code_part,
            code_pitch,
            scale_part,
            scale_pitch,
            parts: factor.code_row.div_ceil(code_part),
            bytes: rows * code_pitch + scales,
        }
    }
}
