//! Splits the rows of a GEMV's matrices among the thread blocks.

use std::cmp::Reverse;

use crate::cuda::decode::tiling::Tiling;
use crate::cuda::schedule::StreamedMatrix;

/// Fewest late bytes per block for which a separate row batch pays. On an H200 the order of [`split_rows`] makes a token of GDN 7B in Q4_0
/// (71 KB per block are late) 2 % faster, of Mamba-2 1.3B in Q8_0 (67 KB) 2.6 %, of GDN 1.3B in BF16 (64 KB) 1 %, but of Mamba-2 1.3B in
/// Q4_0 (36 KB) 3 % slower, of GDN 1.3B in Q8_0 (34 KB) 1.2 %.
const LATE_BYTES: usize = 48 << 10;

/// The shape of a matrix.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    rows: usize,
    /// Bytes of a row.
    bytes: usize,
    /// The row count of each share is a multiple of this.
    row_alignment: usize,
    /// Rows of a tile; a tile with fewer rows costs as much.
    tile_rows: usize,
}

/// The part of a GEMV's output that the sums of the next op, a recurrence, need.
pub(crate) struct Demand {
    /// For each matrix, whether the sums need any of its rows.
    pub matrices: Vec<bool>,
    /// Blocks that have a part of the recurrence's states.
    pub blocks: usize,
}

/// Rows of a matrix in one of a block's row batches.
#[derive(Debug)]
pub(crate) struct RowShare {
    pub matrix: usize,
    pub first: usize,
    pub rows: usize,
    pub row_batch: usize,
}

/// A matrix, its first row and the number of rows.
type RowSpan = (usize, usize, usize);

impl Matrix {
    pub fn new(weight: &StreamedMatrix, tiling: Tiling) -> Self {
        Matrix {
            rows: weight.rows,
            bytes: weight.row_bytes(),
            row_alignment: weight.aligned_rows(),
            tile_rows: tiling.rows(weight.format),
        }
    }

    /// Whether a single tile holds all rows, so that one block multiplies the whole matrix.
    fn is_whole(&self) -> bool {
        (1..=self.tile_rows).contains(&self.rows)
    }

    /// Returns the bytes of a full tile's rows.
    fn tile_bytes(&self) -> usize {
        self.tile_rows * self.bytes
    }

    /// Returns the bytes of the matrix, counting at least one full tile.
    fn cost(&self) -> usize {
        self.rows.max(self.tile_rows) * self.bytes
    }

    /// Returns the rows per block if they divide evenly among this many blocks and fill half a tile.
    fn even_rows(&self, blocks: usize) -> Option<usize> {
        let rows = self.rows / blocks;
        let even = self.rows.is_multiple_of(blocks) && rows.is_multiple_of(self.row_alignment);
        (even && rows >= self.tile_rows / 2).then_some(rows)
    }
}

/// Splits matrices among `blocks` so that all blocks have about the same number of bytes; returns each block's parts in order. A batch has
/// at most `batch` rows.
///
/// Where the recurrence's sums do not need many of the bytes, the rows that they need come first, and the other rows are multiplied while
/// the results of the first are in flight. The recurrence divides its states' columns among blocks in order. These rows are divided
/// likewise, so that a block waits only for blocks of its head.
pub(crate) fn split_rows(
    matrices: &[Matrix],
    demand: Option<&Demand>,
    blocks: usize,
    batch: usize,
) -> Vec<Vec<RowShare>> {
    let late = |demand: &&Demand| {
        let rest = matrices.iter().zip(&demand.matrices);
        let rest = rest.filter(|(_, wanted)| !**wanted);
        let rest: usize = rest.map(|(matrix, _)| matrix.cost()).sum();
        rest >= LATE_BYTES * blocks && demand.blocks <= blocks
    };
    let demand = demand.filter(late);
    let mut sharing = Sharing {
        pieces: vec![Vec::new(); blocks],
        used: vec![0; blocks],
    };
    let (mut others, mut rest) = (Vec::new(), Vec::new());
    for (index, matrix) in matrices.iter().copied().enumerate() {
        if demand.is_some_and(|demand| !demand.matrices[index]) {
            rest.push((index, matrix));
        } else if let Some(rows) = demand.and_then(|demand| matrix.even_rows(demand.blocks)) {
            sharing.cut(index, matrix, rows);
        } else {
            others.push((index, matrix));
        }
    }
    sharing.share(&others);
    let first: Vec<usize> = sharing.pieces.iter().map(Vec::len).collect();
    sharing.share(&rest);
    (sharing.pieces.into_iter().zip(first))
        .map(|(mut own, first)| {
            let then = own.split_off(first);
            in_batches([own, then], batch)
        })
        .collect()
}

/// The pieces and bytes that each block already has.
struct Sharing {
    pieces: Vec<Vec<RowSpan>>,
    used: Vec<usize>,
}

impl Sharing {
    fn give(&mut self, block: usize, piece: RowSpan, bytes: usize) {
        self.pieces[block].push(piece);
        self.used[block] += bytes;
    }

    /// Gives this many rows of a matrix to each of the first blocks.
    fn cut(&mut self, index: usize, matrix: Matrix, rows: usize) {
        for block in 0..matrix.rows / rows {
            self.give(block, (index, block * rows, rows), rows * matrix.bytes);
        }
    }

    /// Splits these matrices so that all blocks have about the same number of bytes in total.
    fn share(&mut self, matrices: &[(usize, Matrix)]) {
        if matrices.is_empty() {
            return;
        }
        let blocks = self.used.len();
        let costs = matrices.iter().map(|(_, matrix)| matrix.cost());
        let all = costs.chain(self.used.iter().copied()).sum::<usize>();
        let left = |used: usize| all.div_ceil(blocks).saturating_sub(used);
        // Whole matrices first, each to the block with the fewest bytes.
        for (index, matrix) in matrices.iter().filter(|(_, matrix)| matrix.is_whole()) {
            let room = |&block: &usize| (left(self.used[block]), Reverse(block));
            let block = (0..blocks).max_by_key(room).expect("blocks");
            self.give(block, (*index, 0, matrix.rows), matrix.cost());
        }
        // The others fill the blocks up; the running sum of free bytes determines where to cut.
        let ends: Vec<usize> = (self.used.iter())
            .scan(0, |end, &used| {
                *end += left(used);
                Some(*end)
            })
            .collect();
        let room = ends[blocks - 1];
        // A block with rows of two matrices has one more partial tile, so it gets one tile of full rows less.
        let (mut next, mut total) = (0, 0);
        let others = matrices.iter().filter(|(_, matrix)| !matrix.is_whole());
        let others: Vec<_> = others
            .map(|(index, matrix)| {
                let begin = next;
                total = begin + matrix.cost();
                next = total + matrix.tile_bytes();
                (*index, matrix, begin)
            })
            .collect();
        for (index, matrix, begin) in others {
            // The first row of this matrix at or after the blocks' share of the total.
            let border = |end: usize| {
                // The product of two numbers of bytes may not fit into 64 bits.
                let at = (total as u128 * end as u128 / room as u128) as usize;
                let at = at.saturating_sub(begin);
                let row = at.div_ceil(matrix.bytes.max(1));
                row.next_multiple_of(matrix.row_alignment).min(matrix.rows)
            };
            let mut first = 0;
            for (block, &end) in ends.iter().enumerate() {
                let last = border(end);
                if last > first {
                    self.give(
                        block,
                        (index, first, last - first),
                        (last - first) * matrix.bytes,
                    );
                }
                first = last;
            }
        }
    }
}

/// Cuts a block's pieces into row batches. No batch has rows of both lists, or more than `batch` rows.
fn in_batches(pieces: [Vec<RowSpan>; 2], batch: usize) -> Vec<RowShare> {
    let mut parts: Vec<RowShare> = Vec::new();
    for pieces in pieces {
        let mut row_batch = parts.last().map_or(0, |part| part.row_batch + 1);
        let mut left = batch;
        for (matrix, mut first, mut rows) in pieces {
            while rows > 0 {
                let take = if rows <= left { rows } else { left / 16 * 16 };
                if take > 0 {
                    parts.push(RowShare {
                        matrix,
                        first,
                        rows: take,
                        row_batch,
                    });
                }
                (first, rows, left) = (first + take, rows - take, left - take);
                if rows > 0 {
                    (row_batch, left) = (row_batch + 1, batch);
                }
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 128;

    #[test]
    fn parts_cover_every_row_once_and_have_equal_bytes() {
        let matrices = [
            (9216, 1152, 1),
            (6, 8192, 1),
            (36, 44, 4),
            (8, 131072, 1),
            (7, 4096, 1),
            (0, 1152, 1),
        ];
        let matrices = matrices.map(|(rows, bytes, row_alignment)| Matrix {
            rows,
            bytes,
            row_alignment,
            tile_rows: 8,
        });
        for blocks in [1, 3, 132] {
            let shares = split_rows(&matrices, None, blocks, BATCH);
            assert_covered(&matrices, &shares);
            let total: usize = matrices.iter().map(Matrix::cost).sum();
            for share in &shares {
                let mut bytes = 0;
                for part in share {
                    let matrix = &matrices[part.matrix];
                    bytes += part.rows * matrix.bytes;
                    assert!(!matrix.is_whole() || part.rows == matrix.rows, "{part:?}");
                }
                // The block with the largest whole matrix has no other rows.
                let alone = matches!(
                    share[..],
                    [RowShare {
                        matrix: 3,
                        first: 0,
                        rows: 8,
                        ..
                    }]
                );
                assert!(
                    alone || bytes <= total / blocks + 8192,
                    "{bytes} of {total}"
                );
            }
        }
    }

    /// GDN's q, k, v, f32 gates and output gate; the recurrence does not read the last.
    #[test]
    fn rows_that_a_recurrence_reads_come_first_from_blocks_of_its_head() {
        let matrix = |rows, bytes| Matrix {
            rows,
            bytes,
            row_alignment: 8,
            tile_rows: 16,
        };
        let (large, small) = (matrix(4096, 2304), matrix(16, 16384));
        let matrices = [large, large, large, small, small, large];
        let demand = |blocks| Demand {
            matrices: vec![true, true, true, true, true, false],
            blocks,
        };
        let total: usize = matrices.iter().map(Matrix::cost).sum();
        let found = split_rows(&matrices, Some(&demand(128)), 132, BATCH);
        assert_covered(&matrices, &found);
        for (block, share) in found.iter().enumerate() {
            let mut bytes = 0;
            for part in share {
                let wanted = part.matrix < 5;
                let has_wanted = block < 128 || share.len() > 1;
                assert_eq!(
                    part.row_batch > 0,
                    !wanted && has_wanted,
                    "{block}: {share:?}"
                );
                if part.matrix < 3 {
                    assert_eq!((part.first, part.rows), (32 * block, 32));
                }
                bytes += part.rows * matrices[part.matrix].bytes;
            }
            assert!(
                bytes <= total / 132 + 8 * 2304,
                "{block}: {bytes} of {total}"
            );
        }
        // Rows that cannot be cut evenly, a recurrence with more blocks than the device, and few late bytes.
        let uneven = split_rows(&matrices, Some(&demand(100)), 132, BATCH);
        assert_covered(&matrices, &uneven);
        assert!(uneven.iter().flatten().any(|part| part.row_batch == 1));
        let tiny = matrices.map(|matrix| Matrix {
            bytes: matrix.bytes / 4,
            ..matrix
        });
        for (matrices, blocks) in [(matrices, 256), (tiny, 128)] {
            let parts = split_rows(&matrices, Some(&demand(blocks)), 132, BATCH);
            assert_covered(&matrices, &parts);
            assert!(parts.iter().flatten().all(|part| part.row_batch == 0));
        }
    }

    fn assert_covered(matrices: &[Matrix], shares: &[Vec<RowShare>]) {
        let mut seen: Vec<_> = matrices.iter().map(|matrix| vec![0; matrix.rows]).collect();
        for part in shares.iter().flatten() {
            let matrix = &matrices[part.matrix];
            assert!(part.rows > 0, "a segment that would end the list");
            assert_eq!(part.first % matrix.row_alignment, 0);
            let own = &mut seen[part.matrix][part.first..part.first + part.rows];
            own.iter_mut().for_each(|n| *n += 1);
        }
        assert!(seen.iter().flatten().all(|&n| n == 1));
    }

    #[test]
    fn a_block_with_two_matrices_has_no_more_tiles() {
        let matrix = |rows, bytes| Matrix {
            rows,
            bytes,
            row_alignment: 8,
            tile_rows: 16,
        };
        // The matrices of a layer of GDN 7B and of GDN 1.3B.
        for (rows, bytes, gates) in [(4096, 2304, 16), (2048, 1152, 8)] {
            let large = matrix(rows, bytes);
            let small = matrix(gates, 4 * rows);
            let shares = split_rows(
                &[large, large, large, small, small, large],
                None,
                132,
                BATCH,
            );
            let tiles = |share: &Vec<RowShare>| -> usize {
                share.iter().map(|part| part.rows.div_ceil(16)).sum()
            };
            let most = shares.iter().map(tiles).max();
            assert_eq!(most, Some((4 * rows).div_ceil(130).div_ceil(16)));
            let alone = shares
                .iter()
                .filter(|share| share.iter().any(|part| part.rows == gates));
            assert_eq!(alone.count(), 2);
        }
    }

    #[test]
    fn matrices_of_many_bytes_are_split_too() {
        let matrix = Matrix {
            rows: 262_144,
            bytes: 32_768,
            row_alignment: 1,
            tile_rows: 16,
        };
        let rows = 262_144usize.div_ceil(132);
        for share in split_rows(&[matrix], None, 132, BATCH) {
            let own: usize = share.iter().map(|part| part.rows).sum();
            assert!((rows - 2..=rows).contains(&own), "{share:?}");
        }
    }

    #[test]
    fn no_batch_has_too_many_rows() {
        let share = vec![(0, 7, 100), (1, 0, 5), (2, 40, 300), (3, 0, 1)];
        let parts = in_batches([share.clone(), Vec::new()], BATCH);
        for (matrix, mut first, rows) in share {
            let own = parts.iter().filter(|part| part.matrix == matrix);
            let mut found = 0;
            for part in own {
                assert_eq!(part.first, first, "matrix {matrix}");
                (first, found) = (first + part.rows, found + part.rows);
            }
            assert_eq!(found, rows, "matrix {matrix}");
        }
        for row_batch in 0..=parts.last().expect("parts").row_batch {
            let own = parts.iter().filter(|part| part.row_batch == row_batch);
            let rows: usize = own.map(|part| part.rows).sum();
            assert!((1..=BATCH).contains(&rows), "row_batch {row_batch}: {rows}");
        }
        assert!(parts.is_sorted_by_key(|part| part.row_batch));
    }
}
