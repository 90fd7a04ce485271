//! How a product's matrices are shared out among the blocks of a persistent program.

use std::cmp::Reverse;

use super::ring_products::RingFactor;
use super::segments::Tiling;

/// Fewest bytes of a block for which a turn of their own is worth while. On one H200 the order of [`shares`] makes a token of GDN
/// 7B in Q4_0 (71 KB of a block come late) 2 % faster, of Mamba-2 1.3B in Q8_0 (67) 2.6, of GDN 1.3B in BF16 (64) 1, but of
/// Mamba-2 1.3B in Q4_0 (36) 3 % slower, of GDN 1.3B in Q8_0 (34) 1.2.
const LATE_BYTES: usize = 48 << 10;

/// What there is to share out.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    rows: usize,
    /// Bytes of a row.
    bytes: usize,
    /// Rows that stay together.
    together: usize,
    /// Rows of an entry, which costs as much with fewer.
    of_entry: usize,
}

/// What a recurrence behind the product wants of it.
pub(super) struct Wants {
    /// Whether it takes any of a matrix, for each of them.
    pub matrices: Vec<bool>,
    /// Blocks that have a part of its states.
    pub blocks: usize,
}

/// Rows of a matrix that a block finishes in one of its turns.
#[derive(Debug)]
pub(super) struct Part {
    pub matrix: usize,
    pub first: usize,
    pub rows: usize,
    pub turn: usize,
}

/// A matrix, its first row and the number of rows.
type Piece = (usize, usize, usize);

impl Matrix {
    pub fn of(factor: &RingFactor, tiling: Tiling) -> Self {
        Matrix {
            rows: factor.rows,
            bytes: factor.row_bytes(),
            together: factor.aligned_rows(),
            of_entry: tiling.rows(factor.format),
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

    /// Rows of each of so many blocks, if all can have as many and those fill an entry's first half.
    fn even_rows(&self, blocks: usize) -> Option<usize> {
        let rows = self.rows / blocks;
        let even = self.rows.is_multiple_of(blocks) && rows.is_multiple_of(self.together);
        (even && rows >= self.of_entry / 2).then_some(rows)
    }
}

/// Shares matrices out among `blocks`, so that all have about as many bytes, and returns each block's parts in order. A block finishes at
/// most `batch` rows at once.
///
/// Where a recurrence leaves many bytes to later phases, what it wants comes first, and the rest while that is on its way. It
/// divides its states' columns among blocks in order, and so are the rows of what it wants, so that a block waits for those that
/// share its head.
pub(super) fn shares(
    matrices: &[Matrix],
    wants: Option<&Wants>,
    blocks: usize,
    batch: usize,
) -> Vec<Vec<Part>> {
    let late = |wants: &&Wants| {
        let rest = matrices.iter().zip(&wants.matrices);
        let rest = rest.filter(|(_, wanted)| !**wanted);
        let rest: usize = rest.map(|(matrix, _)| matrix.cost()).sum();
        rest >= LATE_BYTES * blocks && wants.blocks <= blocks
    };
    let wants = wants.filter(late);
    let mut sharing = Sharing {
        pieces: vec![Vec::new(); blocks],
        used: vec![0; blocks],
    };
    let (mut others, mut rest) = (Vec::new(), Vec::new());
    for (index, matrix) in matrices.iter().copied().enumerate() {
        if wants.is_some_and(|wants| !wants.matrices[index]) {
            rest.push((index, matrix));
        } else if let Some(rows) = wants.and_then(|wants| matrix.even_rows(wants.blocks)) {
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
            in_turns([own, then], batch)
        })
        .collect()
}

/// What each block has already, in pieces and in bytes.
struct Sharing {
    pieces: Vec<Vec<Piece>>,
    used: Vec<usize>,
}

impl Sharing {
    fn give(&mut self, block: usize, piece: Piece, bytes: usize) {
        self.pieces[block].push(piece);
        self.used[block] += bytes;
    }

    /// The first blocks get so many rows each of a matrix.
    fn cut(&mut self, index: usize, matrix: Matrix, rows: usize) {
        for block in 0..matrix.rows / rows {
            self.give(block, (index, block * rows, rows), rows * matrix.bytes);
        }
    }

    /// Shares these out, so that all blocks have about as many bytes with what they have.
    fn share(&mut self, matrices: &[(usize, Matrix)]) {
        if matrices.is_empty() {
            return;
        }
        let blocks = self.used.len();
        let costs = matrices.iter().map(|(_, matrix)| matrix.cost());
        let all = costs.chain(self.used.iter().copied()).sum::<usize>();
        let left = |used: usize| all.div_ceil(blocks).saturating_sub(used);
        // Whole matrices come first, each to where there is most room.
        for (index, matrix) in matrices.iter().filter(|(_, matrix)| matrix.is_whole()) {
            let room = |&block: &usize| (left(self.used[block]), Reverse(block));
            let block = (0..blocks).max_by_key(room).expect("blocks");
            self.give(block, (*index, 0, matrix.rows), matrix.cost());
        }
        // The others are cut where room is left, which is known up to the end of each block.
        let ends: Vec<usize> = (self.used.iter())
            .scan(0, |end, &used| {
                *end += left(used);
                Some(*end)
            })
            .collect();
        let room = ends[blocks - 1];
        // Where a block goes on to the next matrix it has one entry more that is not full, so that it leaves out as many bytes.
        let (mut next, mut total) = (0, 0);
        let others = matrices.iter().filter(|(_, matrix)| !matrix.is_whole());
        let others: Vec<_> = others
            .map(|(index, matrix)| {
                let begin = next;
                total = begin + matrix.cost();
                next = total + matrix.entry_bytes();
                (*index, matrix, begin)
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

/// Cuts a block's pieces so that no turn has rows of both, or more rows than a batch.
fn in_turns(pieces: [Vec<Piece>; 2], batch: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for pieces in pieces {
        let mut turn = parts.last().map_or(0, |part| part.turn + 1);
        let mut left = batch;
        for (matrix, mut first, mut rows) in pieces {
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
                    (turn, left) = (turn + 1, batch);
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
            let shares = shares(&matrices, None, blocks, BATCH);
            assert_covered(&matrices, &shares);
            let total: usize = matrices.iter().map(Matrix::cost).sum();
            for share in &shares {
                let mut bytes = 0;
                for part in share {
                    let matrix = &matrices[part.matrix];
                    bytes += part.rows * matrix.bytes;
                    assert!(!matrix.is_whole() || part.rows == matrix.rows, "{part:?}");
                }
                // Whoever has the largest of the whole ones has nothing else.
                let alone = matches!(
                    share[..],
                    [Part {
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

    /// Of GDN's q, k, v, the f32 gates and the output gate, the last one is for a phase behind the recurrence.
    #[test]
    fn what_a_recurrence_wants_comes_first_and_from_who_shares_a_head() {
        let matrix = |rows, bytes| Matrix {
            rows,
            bytes,
            together: 8,
            of_entry: 16,
        };
        let (large, small) = (matrix(4096, 2304), matrix(16, 16384));
        let matrices = [large, large, large, small, small, large];
        let wants = |blocks| Wants {
            matrices: vec![true, true, true, true, true, false],
            blocks,
        };
        let total: usize = matrices.iter().map(Matrix::cost).sum();
        let found = shares(&matrices, Some(&wants(128)), 132, BATCH);
        assert_covered(&matrices, &found);
        for (block, share) in found.iter().enumerate() {
            let mut bytes = 0;
            for part in share {
                let wanted = part.matrix < 5;
                let has_wanted = block < 128 || share.len() > 1;
                assert_eq!(part.turn > 0, !wanted && has_wanted, "{block}: {share:?}");
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
        // Where rows cannot be cut evenly, or the recurrence has more blocks than there are, or leaves little.
        let uneven = shares(&matrices, Some(&wants(100)), 132, BATCH);
        assert_covered(&matrices, &uneven);
        assert!(uneven.iter().flatten().any(|part| part.turn == 1));
        let tiny = matrices.map(|matrix| Matrix {
            bytes: matrix.bytes / 4,
            ..matrix
        });
        for (matrices, blocks) in [(matrices, 256), (tiny, 128)] {
            let parts = shares(&matrices, Some(&wants(blocks)), 132, BATCH);
            assert_covered(&matrices, &parts);
            assert!(parts.iter().flatten().all(|part| part.turn == 0));
        }
    }

    fn assert_covered(matrices: &[Matrix], shares: &[Vec<Part>]) {
        let mut seen: Vec<_> = matrices.iter().map(|matrix| vec![0; matrix.rows]).collect();
        for part in shares.iter().flatten() {
            let matrix = &matrices[part.matrix];
            assert!(part.rows > 0, "a segment that would end the list");
            assert_eq!(part.first % matrix.together, 0);
            let own = &mut seen[part.matrix][part.first..part.first + part.rows];
            own.iter_mut().for_each(|n| *n += 1);
        }
        assert!(seen.iter().flatten().all(|&n| n == 1));
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
            let shares = shares(
                &[large, large, large, small, small, large],
                None,
                132,
                BATCH,
            );
            let entries = |share: &Vec<Part>| -> usize {
                share.iter().map(|part| part.rows.div_ceil(16)).sum()
            };
            let most = shares.iter().map(entries).max();
            assert_eq!(most, Some((4 * rows).div_ceil(130).div_ceil(16)));
            let alone = shares
                .iter()
                .filter(|share| share.iter().any(|part| part.rows == gates));
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
        for share in shares(&[matrix], None, 132, BATCH) {
            let own: usize = share.iter().map(|part| part.rows).sum();
            assert!((rows - 2..=rows).contains(&own), "{share:?}");
        }
    }

    #[test]
    fn no_turn_has_more_rows_than_are_finished_at_once() {
        let share = vec![(0, 7, 100), (1, 0, 5), (2, 40, 300), (3, 0, 1)];
        let parts = in_turns([share.clone(), Vec::new()], BATCH);
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
            assert!((1..=BATCH).contains(&rows), "turn {turn}: {rows}");
        }
        assert!(parts.is_sorted_by_key(|part| part.turn));
    }
}
