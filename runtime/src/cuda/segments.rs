//! How the rows of a persistent program's products are dealt out to its blocks, and how they come through the ring of weights.

use std::cmp::Reverse;

use bytemuck::{Pod, Zeroable};
use waterline_quant::FORMATS;

use super::driver::Address;
use super::persistent::THREADS;
use super::ring_products::{Product, RingFactor};

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
    sums: i32,
    pub entry: u32,
    code_part: u16,
    code_pitch: u16,
    scale_part: u16,
    scale_pitch: u16,
    format: u16,
    parts: u16,
    task: i16,
    begins: i16,
}

/// Most bytes of an entry that has sixteen rows instead of eight.
const DOUBLE_ENTRY: usize = 18 << 10;
/// Rows of a block that are finished at once, by four threads each.
const ROWS_AT_ONCE: usize = THREADS / 4;
/// Units of a row that the warps take at once, and the places of a row's sums.
pub(super) const STEP_UNITS: usize = THREADS / 32 * 4;
pub(super) const SUMS_PITCH: usize = THREADS / 32 + 1;

/// Deals a product's rows out to the blocks' lists, every block the same number of segments; returns the floats that
/// a block needs for sums.
pub(super) fn deal(product: &Product, lists: &mut [Vec<Segment>]) -> usize {
    // The rows of a gated product's two matrices go together.
    let owners = product.owners();
    let together = product.factors.len() / owners.len();
    let matrices: Vec<Matrix> = owners.iter().map(Matrix::of).collect();
    let shares: Vec<_> = (shares(&matrices, lists.len()).into_iter())
        .map(in_turns)
        .collect();
    let most = shares.iter().map(Vec::len).max().unwrap_or(0);
    // The sums of a turn are made while those of the one before are used.
    let turn_room = ROWS_AT_ONCE * together * SUMS_PITCH;
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
                let tile = Tile::of(factor);
                list.push(Segment {
                    codes: factor.codes,
                    scales: factor.scales,
                    bias: factor.bias,
                    code_row: factor.code_row as u32,
                    scale_row: factor.scale_row as u32,
                    rows: rows as i32,
                    column: factor.column as i32,
                    sums: sums as i32,
                    entry: 0,
                    code_part: tile.code_part as u16,
                    code_pitch: tile.code_pitch as u16,
                    scale_part: tile.scale_part as u16,
                    scale_pitch: tile.scale_pitch as u16,
                    format: factor.format as u16,
                    parts: tile.parts as u16,
                    task: factor.task.map_or(-1, |task| task as i16),
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

/// Rows of a matrix that a block finishes in one of its turns.
struct Part {
    matrix: usize,
    first: usize,
    rows: usize,
    turn: usize,
}

/// Cuts a block's share so that no turn has more rows than there are threads to finish them.
fn in_turns(share: Vec<(usize, usize, usize)>) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut turn, mut left) = (0, ROWS_AT_ONCE);
    for (matrix, mut first, mut rows) in share {
        while rows > 0 {
            let take = if rows <= left { rows } else { left / 16 * 16 };
            if take > 0 {
                parts.push(Part {
                    matrix,
                    first,
                    rows: take,
                    turn,
                });
            }
            (first, rows, left) = (first + take, rows - take, left - take);
            if rows > 0 {
                (turn, left) = (turn + 1, ROWS_AT_ONCE);
            }
        }
    }
    parts
}

impl Segment {
    /// How many entries it has.
    pub fn entries(&self) -> u32 {
        let rows = rows_of_entry(self.format.into()) as u32;
        (self.rows as u32).div_ceil(rows) * u32::from(self.parts)
    }

    /// Takes a place in a list that does not end there, which one of zero rows would mean.
    fn skipped() -> Self {
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
    pub fn of(factor: &RingFactor) -> Self {
        let (units, rows) = (factor.units(), rows_of_entry(factor.format));
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

/// Rows of an entry: eight or sixteen.
pub(super) fn rows_of_entry(format: usize) -> usize {
    let format = FORMATS[format];
    // A unit is 16 bytes of floats, or 32 numbers.
    let eight_units = match format.block_len {
        1 => 8 * 16,
        numbers => 8 * 32 * format.block_bytes / numbers,
    };
    match 16 * STEP_UNITS / 8 * eight_units <= DOUBLE_ENTRY {
        true => 16,
        false => 8,
    }
}

/// What there is to share out.
#[derive(Clone, Copy)]
struct Matrix {
    rows: usize,
    /// Bytes of a row.
    bytes: usize,
    /// Rows that stay together.
    together: usize,
    /// Rows of an entry, which costs as much with fewer.
    of_entry: usize,
}

impl Matrix {
    fn of(factor: &RingFactor) -> Self {
        Matrix {
            rows: factor.rows,
            bytes: factor.row_bytes(),
            together: factor.aligned_rows(),
            of_entry: rows_of_entry(factor.format),
        }
    }

    /// Whether one block takes all of it: one entry has all rows of some columns.
    fn is_whole(&self) -> bool {
        (1..=self.of_entry).contains(&self.rows)
    }

    /// Bytes of the rows of a full entry.
    fn entry_bytes(&self) -> usize {
        self.of_entry * self.bytes
    }

    /// Its bytes, with what its only entry leaves empty.
    fn cost(&self) -> usize {
        self.rows.max(self.of_entry) * self.bytes
    }
}

/// Shares matrices out among `blocks`, so that all have about as many bytes: for each block the matrix, the first row and the
/// number of rows.
fn shares(matrices: &[Matrix], blocks: usize) -> Vec<Vec<(usize, usize, usize)>> {
    let mut shares = vec![Vec::new(); blocks];
    let all = matrices.iter().map(Matrix::cost).sum::<usize>();
    // What each block still has room for: whole matrices come first, each to where there is most.
    let mut left = vec![all.div_ceil(blocks); blocks];
    for (index, matrix) in matrices.iter().enumerate().filter(|(_, m)| m.is_whole()) {
        let room = |&block: &usize| (left[block], Reverse(block));
        let block = (0..blocks).max_by_key(room).expect("blocks");
        shares[block].push((index, 0, matrix.rows));
        left[block] = left[block].saturating_sub(matrix.cost());
    }
    // The others are cut where room is left, which is known up to the end of each block.
    let ends: Vec<usize> = (left.iter())
        .scan(0, |end, left| {
            *end += left;
            Some(*end)
        })
        .collect();
    let room = ends[blocks - 1];
    // Where a block goes on to the next matrix it has one entry more that is not full, so that it leaves out as many bytes.
    let (mut next, mut total) = (0, 0);
    let others = matrices.iter().enumerate().filter(|(_, m)| !m.is_whole());
    let others: Vec<_> = others
        .map(|(index, matrix)| {
            let begin = next;
            total = begin + matrix.cost();
            next = total + matrix.entry_bytes();
            (index, matrix, begin)
        })
        .collect();
    for (index, matrix, begin) in others {
        // The first row of this matrix that begins at or after the blocks' part of the whole.
        let border = |end: usize| {
            // The product of two numbers of bytes may not fit into 64 bits.
            let at = (total as u128 * end as u128 / room as u128) as usize;
            let at = at.saturating_sub(begin);
            let row = at.div_ceil(matrix.bytes.max(1));
            row.next_multiple_of(matrix.together).min(matrix.rows)
        };
        let mut first = 0;
        for (&end, share) in ends.iter().zip(&mut shares) {
            let last = border(end);
            if last > first {
                share.push((index, first, last - first));
            }
            first = last;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_row_once_and_weigh_the_same() {
        let matrices = [
            (9216, 1152, 1),
            (6, 8192, 1),
            (36, 44, 4),
            (8, 131072, 1),
            (7, 4096, 1),
            (0, 1152, 1),
        ];
        let matrices = matrices.map(|(rows, bytes, together)| Matrix {
            rows,
            bytes,
            together,
            of_entry: 8,
        });
        for blocks in [1, 3, 132] {
            let shares = shares(&matrices, blocks);
            let mut seen = matrices.map(|m| vec![0; m.rows]);
            let total: usize = matrices.iter().map(Matrix::cost).sum();
            for share in &shares {
                let mut bytes = 0;
                for &(index, first, rows) in share {
                    let matrix = &matrices[index];
                    seen[index][first..first + rows]
                        .iter_mut()
                        .for_each(|n| *n += 1);
                    bytes += rows * matrix.bytes;
                    assert_eq!(first % matrix.together, 0);
                    assert!(rows > 0, "a segment that would end the list");
                    assert!(
                        !matrix.is_whole() || rows == matrix.rows,
                        "a part of {index}"
                    );
                }
                // Whoever has the largest of the whole ones has nothing else.
                let alone = share[..] == [(3, 0, 8)];
                assert!(
                    alone || bytes <= total / blocks + 8192,
                    "{bytes} of {total}"
                );
            }
            assert!(seen.iter().flatten().all(|&n| n == 1));
        }
    }

    #[test]
    fn who_goes_on_to_the_next_matrix_has_no_more_entries() {
        let matrix = |rows, bytes| Matrix {
            rows,
            bytes,
            together: 8,
            of_entry: 16,
        };
        // Those of a block of GDN, of 7 billion parameters and of 1.3.
        for (rows, bytes, gates) in [(4096, 2304, 16), (2048, 1152, 8)] {
            let large = matrix(rows, bytes);
            let small = matrix(gates, 4 * rows);
            let shares = shares(&[large, large, large, small, small, large], 132);
            let entries = |share: &Vec<(usize, usize, usize)>| -> usize {
                share.iter().map(|&(_, _, rows)| rows.div_ceil(16)).sum()
            };
            let most = shares.iter().map(entries).max();
            assert_eq!(most, Some((4 * rows).div_ceil(130).div_ceil(16)));
            let alone = shares
                .iter()
                .filter(|share| share.iter().any(|part| part.2 == gates));
            assert_eq!(alone.count(), 2);
        }
    }

    #[test]
    fn matrices_of_many_bytes_are_shared_out_too() {
        let matrix = Matrix {
            rows: 262_144,
            bytes: 32_768,
            together: 1,
            of_entry: 16,
        };
        let rows = 262_144usize.div_ceil(132);
        for share in shares(&[matrix], 132) {
            assert!((rows - 2..=rows).contains(&share[0].2), "{share:?}");
        }
    }

    #[test]
    fn no_turn_has_more_rows_than_are_finished_at_once() {
        let share = vec![(0, 7, 100), (1, 0, 5), (2, 40, 300), (3, 0, 1)];
        let parts = in_turns(share.clone());
        for (matrix, mut first, rows) in share {
            let own = parts.iter().filter(|part| part.matrix == matrix);
            let mut found = 0;
            for part in own {
                assert_eq!(part.first, first, "matrix {matrix}");
                (first, found) = (first + part.rows, found + part.rows);
            }
            assert_eq!(found, rows, "matrix {matrix}");
        }
        for turn in 0..=parts.last().expect("parts").turn {
            let own = parts.iter().filter(|part| part.turn == turn);
            let rows: usize = own.map(|part| part.rows).sum();
            assert!((1..=ROWS_AT_ONCE).contains(&rows), "turn {turn}: {rows}");
        }
        assert!(parts.is_sorted_by_key(|part| part.turn));
    }
}
