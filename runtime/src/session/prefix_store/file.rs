//! The file format of a checkpoint.
//!
//! A magic number with the version; the model's fingerprint; numbers (below); the tokens; a checksum of the head so far, so that the head
//! can be listed without the rest; the rows of each piece; the state; the logits; a hash of everything by the key of the folder. A piece
//! holds the tokens and rows of one checkpoint in memory: a file has the pieces since the last ancestor that has a file.

use std::io::{self, Error, ErrorKind, Read, Write};
use std::sync::Arc;

use waterline_quant::read_sparse;

use super::keyed::{Key, Keyed, TAG};
use super::tree::Present;
use crate::session::reading::Hash;
use crate::state::{Fingerprint, Summed};

const MAGIC: &[u8; 8] = b"WLPREFX2";
/// Upper bounds of a file's pieces and tokens: its head is read before its checksum is verified, and a sparse file may be of any size.
const MOST_PIECES: u64 = 1 << 20;
const MOST_TOKENS: u64 = 1 << 24;

/// Sizes of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHead {
    pub tokens: usize,
    pub rows: usize,
    pub grid: u64,
}

/// The head of a file: everything before its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The model's fingerprint.
    pub model: Fingerprint,
    /// The model's label combined with the owner, which names files without reading the model.
    pub label: u64,
    /// A hash of the shapes of the state tensors without the context.
    pub shape: u32,
    /// The file with the preceding rows; 0 if this file begins at the first token.
    pub parent: u64,
    /// Number of tokens from the beginning.
    pub position: u64,
    pub pieces: Vec<PieceHead>,
    pub state: usize,
    pub logits: usize,
    /// The tokens of all pieces.
    pub tokens: Vec<u32>,
}

/// The rows of a file, piece by piece, and its state.
pub struct Body {
    pub rows: Vec<Arc<Vec<u8>>>,
    pub present: Arc<Present>,
}

impl Head {
    /// The number in the file's name: a hash of the model's label, the shapes, tokens and grid, never 0.
    pub fn id(&self) -> u64 {
        let mut hash = Hash::new();
        let grid = self.pieces.last().map_or(0, |piece| piece.grid);
        for number in [
            self.label,
            u64::from(self.shape),
            self.parent,
            self.position,
            grid,
        ] {
            hash.add(number);
        }
        for &token in &self.tokens {
            hash.add(token.into());
        }
        hash.value().max(1)
    }

    fn body_bytes(&self) -> Option<u64> {
        let mut rows = self.pieces.iter().map(|piece| piece.rows as u64);
        let rows = rows.try_fold(0u64, u64::checked_add)?;
        rows.checked_add(self.state as u64)?
            .checked_add(4 * self.logits as u64)
    }

    /// Size of the complete file in bytes.
    pub fn file_bytes(&self) -> Option<u64> {
        let numbers = 8 * (7 + 3 * self.pieces.len() as u64);
        let head = (8 + TAG) as u64 + numbers + 4 * self.tokens.len() as u64 + 4;
        self.body_bytes()?.checked_add(head + TAG as u64)
    }
}

fn damaged(reason: &str) -> Error {
    Error::new(ErrorKind::InvalidData, reason)
}

/// Writes a file.
pub fn write(
    out: &mut impl Write,
    key: &Key,
    head: &Head,
    rows: &[Arc<Vec<u8>>],
    present: &Present,
) -> io::Result<()> {
    let mut out = Keyed::new(out, key);
    write_head(&mut out, head)?;
    for rows in rows {
        out.write_all(rows)?;
    }
    out.write_all(&present.state)?;
    out.write_all(bytemuck::cast_slice(&present.logits))?;
    out.finish()
}

fn write_head(out: &mut impl Write, head: &Head) -> io::Result<()> {
    let mut out = Summed::new(out);
    out.write_all(MAGIC)?;
    out.write_all(&head.model.0)?;
    let numbers = [
        head.label,
        head.shape.into(),
        head.parent,
        head.position,
        head.pieces.len() as u64,
        head.state as u64,
        head.logits as u64,
    ];
    for number in numbers {
        out.write_all(&number.to_le_bytes())?;
    }
    for piece in &head.pieces {
        for number in [piece.tokens as u64, piece.rows as u64, piece.grid] {
            out.write_all(&number.to_le_bytes())?;
        }
    }
    out.write_all(bytemuck::cast_slice(&head.tokens))?;
    let sum = out.sum();
    out.write_all(&sum.to_le_bytes())
}

/// Reads the head of a file of `size` bytes.
pub fn read_head(input: &mut impl Read, size: u64) -> io::Result<Head> {
    let input = &mut Summed::new(input);
    let mut magic = [0; 8];
    input.read_exact(&mut magic)?;
    if &magic != MAGIC {
        return Err(damaged("it is not a checkpoint of this version"));
    }
    let mut model = Fingerprint([0; TAG]);
    input.read_exact(&mut model.0)?;
    let [label, shape, parent, position, pieces, state, logits] = numbers(input)?;
    let fits = |bytes: Option<u64>| bytes.filter(|&bytes| bytes <= size).is_some();
    if pieces == 0 || pieces > MOST_PIECES || !fits(pieces.checked_mul(24)) {
        return Err(damaged("it has no pieces, or too many"));
    }
    if !fits(Some(state)) || !fits(logits.checked_mul(4)) || shape > u64::from(u32::MAX) {
        return Err(damaged("its numbers do not fit its size"));
    }
    let mut head = Head {
        model,
        label,
        shape: shape as u32,
        parent,
        position,
        pieces: Vec::with_capacity(pieces as usize),
        state: state as usize,
        logits: logits as usize,
        tokens: Vec::new(),
    };
    let mut count = 0u64;
    for _ in 0..pieces {
        let [tokens, rows, grid] = numbers(input)?;
        count = count.saturating_add(tokens);
        if tokens == 0 || !fits(count.checked_mul(4)) || !fits(Some(rows)) {
            return Err(damaged("its numbers do not fit its size"));
        }
        head.pieces.push(PieceHead {
            tokens: tokens as usize,
            rows: rows as usize,
            grid,
        });
    }
    if count > position || count > MOST_TOKENS {
        return Err(damaged(
            "it has more tokens than its position or than the maximum",
        ));
    }
    head.tokens = room(count as usize)?;
    input.read_exact(bytemuck::cast_slice_mut(&mut head.tokens))?;
    if !input.check()? {
        return Err(damaged("the checksum of its header does not match"));
    }
    if head.file_bytes() != Some(size) {
        return Err(damaged("its size differs from the size in its header"));
    }
    Ok(head)
}

/// The number in the name of a file with these bytes; `None` if its head is invalid. Tests that mutate files need it.
#[doc(hidden)]
pub fn checkpoint_id(bytes: &[u8]) -> Option<u64> {
    let head = read_head(&mut &bytes[..], bytes.len() as u64).ok()?;
    Some(head.id())
}

/// Makes the last bytes of a file its hash by this key. Tests that mutate files need it.
#[doc(hidden)]
pub fn seal_checkpoint(file: &mut [u8], key: &[u8]) {
    if let (Some(end), Ok(key)) = (file.len().checked_sub(TAG), key.try_into()) {
        let mut keyed = Keyed::new(io::sink(), &Key::new(key));
        // A sink takes everything.
        let _ = keyed.write_all(&file[..end]);
        file[end..].copy_from_slice(&keyed.tag());
    }
}

/// Reads a complete file of `size` bytes.
pub fn read(input: &mut impl Read, key: &Key, size: u64) -> io::Result<(Head, Body)> {
    let mut input = Keyed::new(input, key);
    let head = read_head(&mut input, size)?;
    let mut rows = Vec::with_capacity(head.pieces.len());
    for piece in &head.pieces {
        let mut bytes = room(piece.rows)?;
        read_sparse(&mut input, &mut bytes)?;
        rows.push(Arc::new(bytes));
    }
    let mut state = room(head.state)?;
    read_sparse(&mut input, &mut state)?;
    let mut logits = room::<f32>(head.logits)?;
    input.read_exact(bytemuck::cast_slice_mut(&mut logits))?;
    if !input.check()? {
        return Err(damaged(
            "its hash by the key of the folder does not match: it is damaged, or no store of this folder wrote it",
        ));
    }
    let present = Arc::new(Present { state, logits });
    Ok((head, Body { rows, present }))
}

/// Allocates zeros, or returns an out-of-memory error.
fn room<T: bytemuck::Zeroable>(count: usize) -> io::Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| ErrorKind::OutOfMemory.into())
}

fn numbers<const N: usize>(input: &mut impl Read) -> io::Result<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    input.read_exact(bytes.as_flattened_mut())?;
    Ok(bytes.map(u64::from_le_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key::new([5; TAG]);

    fn example() -> (Head, Vec<Arc<Vec<u8>>>, Present) {
        let piece = |tokens, rows, grid| PieceHead { tokens, rows, grid };
        let head = Head {
            model: Fingerprint([7; TAG]),
            label: 8,
            shape: 9,
            parent: 3,
            position: 10,
            pieces: vec![piece(2, 5, 1), piece(1, 0, 2)],
            state: 4,
            logits: 2,
            tokens: vec![1, 2, 3],
        };
        let rows = vec![Arc::new(vec![9; 5]), Arc::new(Vec::new())];
        let present = Present {
            state: vec![1, 2, 3, 4],
            logits: vec![0.5, -1.0],
        };
        (head, rows, present)
    }

    #[test]
    fn a_count_that_a_hole_could_hold_reads_nothing() {
        let (head, rows, present) = example();
        let mut bytes = Vec::new();
        write(&mut bytes, &KEY, &head, &rows, &present).expect("memory");
        // The offsets of the position and of the first piece's token count.
        for at in [64, 96] {
            bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
        }
        struct Hole(u64);
        impl Read for Hole {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                self.0 += to.len() as u64;
                assert!(self.0 < 1 << 20, "the hole is read");
                to.fill(0);
                Ok(to.len())
            }
        }
        let mut input = (&bytes[..]).chain(Hole(0));
        let error = read_head(&mut input, u64::MAX).expect_err("too many tokens");
        assert!(error.to_string().contains("more tokens"), "{error}");
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_no_bit_of_it_can_change() {
        let (head, rows, present) = example();
        let mut bytes = Vec::new();
        write(&mut bytes, &KEY, &head, &rows, &present).expect("memory");
        let size = bytes.len() as u64;
        assert_eq!(Some(size), head.file_bytes());
        let (read_head, body) = read(&mut &bytes[..], &KEY, size).expect("whole");
        assert_eq!(read_head, head);
        assert_eq!(body.rows, rows);
        assert_eq!(body.present.state, present.state);
        assert_eq!(body.present.logits, present.logits);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                assert!(
                    read(&mut &changed[..], &KEY, size).is_err(),
                    "bit {bit} of byte {at}"
                );
            }
            assert!(
                read(&mut &bytes[..at], &KEY, at as u64).is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn a_file_by_another_key_is_refused() {
        let (head, rows, present) = example();
        let mut bytes = Vec::new();
        write(&mut bytes, &Key::new([6; TAG]), &head, &rows, &present).expect("memory");
        let size = bytes.len() as u64;
        assert_eq!(read_head(&mut &bytes[..], size).expect("a head"), head);
        let error = read(&mut &bytes[..], &KEY, size)
            .err()
            .expect("another key");
        assert!(error.to_string().contains("key of the folder"), "{error}");
    }
}
