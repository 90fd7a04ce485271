//! The sizes of weight tiles and of row batches.

use waterline_quant::FORMATS;

use crate::cuda::driver::tuning::most_row_groups;
use crate::cuda::schedule::DECODE_THREADS;

/// The size of a stage of the weight pipeline, and the number of rows that a thread block finishes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Largest tile with sixteen rows, in bytes; larger tiles have eight rows.
    sixteen_rows: usize,
    /// Rows of a batch: at most one for every four threads.
    pub batch: usize,
    /// Maximum number of row groups in a tile.
    pub row_groups: usize,
}

impl Tiling {
    /// From the largest to the smallest. On an H200 the first fits every model.
    const ALL: [Tiling; 5] = [
        Tiling::new(18 << 10, DECODE_THREADS / 4),
        Tiling::new(18 << 10, DECODE_THREADS / 8),
        Tiling::new(0, DECODE_THREADS / 4),
        Tiling::new(0, DECODE_THREADS / 8),
        Tiling::new(0, DECODE_THREADS / 16),
    ];

    const fn new(sixteen_rows: usize, batch: usize) -> Self {
        Tiling {
            sixteen_rows,
            batch,
            row_groups: 1,
        }
    }

    /// Returns the candidates for this many blocks, the largest first.
    pub fn all(blocks: usize) -> impl Iterator<Item = Tiling> {
        #[cfg(not(test))]
        let (first, row_groups) = (0, most_row_groups(blocks));
        #[cfg(test)]
        let (first, row_groups) = (
            if SMALLEST.get() {
                Self::ALL.len() - 1
            } else {
                0
            },
            ROW_GROUPS.get().unwrap_or(most_row_groups(blocks)),
        );
        Self::ALL[first..].iter().map(move |tiling| Tiling {
            row_groups,
            ..*tiling
        })
    }

    /// Returns the row groups in a tile whose rows have this many units, as in pipeline.cu.
    pub fn groups(self, units: usize) -> usize {
        let mut groups = 1;
        while groups < self.row_groups && 2 * groups * units <= STEP_UNITS {
            groups *= 2;
        }
        groups
    }

    /// Returns the rows of a row group: eight or sixteen.
    pub fn rows(self, format: usize) -> usize {
        let format = FORMATS[format];
        // A unit is 16 bytes of floats, or 32 quantized numbers.
        let eight_units = match format.block_len {
            1 => 8 * 16,
            numbers => 8 * 32 * format.block_bytes / numbers,
        };
        if 16 * STEP_UNITS / 8 * eight_units <= self.sixteen_rows {
            16
        } else {
            8
        }
    }
}
/// Units of a row that the warps multiply in a step, and floats from one row's partial sums to the next.
pub(crate) const STEP_UNITS: usize = DECODE_THREADS / 32 * 4;
pub(crate) const SUMS_PITCH: usize = DECODE_THREADS / 32 + 1;

#[cfg(test)]
thread_local! {
    /// Whether programs that this thread lays out have the smallest tiles and batches, for tests.
    pub(crate) static SMALLEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// The row groups of these programs, if not chosen by the number of blocks.
    pub(crate) static ROW_GROUPS: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}
