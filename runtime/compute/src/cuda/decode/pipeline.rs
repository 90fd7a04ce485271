//! Host side of the weight pipeline: how rows are distributed to blocks as segments, and how segments are cut into tiles.

use bytemuck::Zeroable;

use crate::abi::device_struct;
use crate::cuda::decode::split::{Demand, Matrix, RowShare, split_rows};
use crate::cuda::decode::tiling::{STEP_UNITS, SUMS_PITCH, Tiling};
use crate::cuda::driver::Address;
use crate::cuda::schedule::Recurrence;
use crate::cuda::schedule::{Gemv, StreamedMatrix};

device_struct! {
    /// Rows of one matrix that a block multiplies. A negative number of rows is padding; zero ends a list.
    #[repr(align(16))]
    pub(crate) struct Segment {
        codes: Address as *const u8,
        scales: Address as *const u8,
        bias: Address as *const f32,
        /// Bytes from row to row of codes in global memory.
        code_row: u32,
        /// Bytes from row to row of scales in global memory.
        scale_row: u32,
        pub rows: i32,
        /// The first row's column in the output.
        column: i32,
        /// Number of the segment's first tile, counted over the block's list.
        pub tile: u32,
        /// Factor of the products.
        multiplier: f32,
        /// Bytes of a tile's row of codes.
        tile_code_bytes: u16,
        /// Bytes from row to row of codes in shared memory.
        code_pitch: u16,
        /// Bytes of a tile's row of scales. It is 0 if scales cannot be copied row by row: every tile then has the scales of whole rows in
        /// their memory layout.
        tile_scale_bytes: u16,
        /// Bytes from row to row of scales in shared memory.
        scale_pitch: u16,
        format: u8,
        /// Row groups of its tiles.
        row_groups: u8,
        /// Tiles that a row is cut into.
        tiles_per_row: u16,
        /// Index of the first row's partial sums.
        sums: u16,
        /// The row op of the epilogue, or -1.
        row_op: i8,
        /// Whether the segment begins a new batch of rows, after the epilogue of the previous batch.
        new_batch: i8,
    }
}

/// Appends a GEMV's rows to the blocks' lists, the same number of segments to each; returns the floats that a block needs for partial sums.
/// `next` is the recurrence that reads the output, if there is one.
pub(crate) fn distribute(
    gemv: &Gemv,
    next: Option<&Recurrence>,
    lists: &mut [Vec<Segment>],
    tiling: Tiling,
) -> usize {
    // The rows of a gated GEMV's two matrices are in one share.
    let owners = gemv.owners();
    let per_owner = gemv.weights.len() / owners.len();
    let matrices: Vec<Matrix> = owners
        .iter()
        .map(|weight| Matrix::new(weight, tiling))
        .collect();
    let demand = next.map(|next| Demand {
        matrices: (owners.iter())
            .map(|weight| next.sums(gemv.output_of(weight)))
            .collect(),
        blocks: next.blocks,
    });
    let shares = split_rows(&matrices, demand.as_ref(), lists.len(), tiling.batch);
    let most = shares.iter().map(Vec::len).max().unwrap_or(0);
    // Partial sums of two batches alternate.
    let batch_room = tiling.batch * per_owner * SUMS_PITCH;
    let mut room = 0;
    for (list, share) in lists.iter_mut().zip(shares) {
        let (mut row_batch, mut sums) = (0, 0);
        for &RowShare {
            matrix,
            first,
            rows,
            row_batch: own,
        } in &share
        {
            let new_batch = own != row_batch;
            if new_batch {
                (row_batch, sums) = (own, own % 2 * batch_room);
            }
            for twin in 0..per_owner {
                let weight = &gemv.weights[matrix + twin * owners.len()].rows(first..first + rows);
                let tile = Tile::new(weight, tiling);
                list.push(Segment {
                    codes: weight.codes,
                    scales: weight.scales,
                    bias: weight.bias,
                    code_row: weight.code_row as u32,
                    scale_row: weight.scale_row as u32,
                    rows: rows as i32,
                    column: weight.column as i32,
                    tile: 0,
                    multiplier: weight.multiplier,
                    sums: sums as u16,
                    tile_code_bytes: tile.tile_code_bytes as u16,
                    code_pitch: tile.code_pitch as u16,
                    tile_scale_bytes: tile.tile_scale_bytes as u16,
                    scale_pitch: tile.scale_pitch as u16,
                    format: weight.format as u8,
                    row_groups: tile.row_groups as u8,
                    tiles_per_row: tile.tiles_per_row as u16,
                    row_op: weight.row_op.map_or(-1, |row_op| row_op as i8),
                    new_batch: (new_batch && twin == 0).into(),
                });
                sums += rows * SUMS_PITCH;
            }
            room = room.max(sums);
        }
        let missing = most - share.len();
        list.extend(std::iter::repeat_n(Segment::skipped(), missing * per_owner));
    }
    room
}

impl Segment {
    /// Returns the number of tiles.
    pub fn tiles(&self, tiling: Tiling) -> u32 {
        let rows = tiling.rows(self.format.into()) as u32 * u32::from(self.row_groups);
        (self.rows as u32).div_ceil(rows) * u32::from(self.tiles_per_row)
    }

    /// Returns padding for a list. A segment of zero rows would end the list.
    pub fn skipped() -> Self {
        Segment {
            rows: -1,
            ..Segment::zeroed()
        }
    }
}

/// The shape of a matrix's tiles: row groups of eight or sixteen rows, with the columns of one step.
pub(crate) struct Tile {
    tile_code_bytes: usize,
    code_pitch: usize,
    tile_scale_bytes: usize,
    scale_pitch: usize,
    tiles_per_row: usize,
    row_groups: usize,
    pub bytes: usize,
}

impl Tile {
    pub fn new(weight: &StreamedMatrix, tiling: Tiling) -> Self {
        let units = weight.units();
        let row_groups = tiling.groups(units);
        let rows = tiling.rows(weight.format) * row_groups;
        let part = |row: usize| (STEP_UNITS * row / units).min(row);
        let tile_code_bytes = part(weight.code_row);
        // Two rows that lanes read at once lie in different banks.
        let gap = if weight.code_row / units == 32 {
            16
        } else {
            64
        };
        let code_pitch = tile_code_bytes.saturating_sub(gap).next_multiple_of(128) + gap;
        let (tile_scale_bytes, scale_pitch, scales) = match weight.scale_row {
            0 => (0, 0, 0),
            row if row.is_multiple_of(16) => {
                let pitch = part(row).next_multiple_of(32) + 16;
                (part(row), pitch, rows * pitch)
            }
            row => (0, row, (rows * row).next_multiple_of(16)),
        };
        Tile {
            tile_code_bytes,
            code_pitch,
            tile_scale_bytes,
            scale_pitch,
            tiles_per_row: weight.code_row.div_ceil(tile_code_bytes),
            row_groups,
            bytes: rows * code_pitch + scales,
        }
    }
}
