//! The bytes of a state file: its header and the heads of its records. `docs/state-format.md` specifies them.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::state::{StateDtype, StateKind};

pub const MAGIC: &[u8; 8] = b"WLSTATE4";
const RECORD: &[u8; 8] = b"WLRECORD";
/// Alignment of the header's end and of every section and tensor, in bytes.
pub const ALIGNMENT: u64 = 64;
/// Bytes of a record's head.
pub const HEAD: usize = 256;
/// Bytes of a head that its chained hash covers.
const CHAINED: usize = 192;
/// Largest accepted header in bytes.
pub const MOST_HEADER: u64 = 1 << 26;
/// Largest accepted number of tokens in a file.
pub const MOST_TOKENS: u64 = 1 << 26;

/// SHA-256.
pub type Sum = [u8; 32];

/// A state tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The layer of the tensor; `None` for the session's own state tensors.
    pub layer: Option<usize>,
    /// Name within the layer or the session.
    pub name: String,
    /// How the tensor is used.
    pub kind: StateKind,
    /// Type of the values.
    pub dtype: StateDtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// How rows follow the tokens; `None` if later tokens overwrite the tensor.
    pub rows: Option<Rows>,
}

impl TensorEntry {
    /// Size in bytes; `None` if it exceeds the address range.
    pub fn bytes(&self) -> Option<u64> {
        let mut sizes = self.shape.iter();
        sizes.try_fold(self.dtype.bytes() as u64, |n, &d| n.checked_mul(d as u64))
    }
}

/// The dimension of a tensor that counts rows, and the tokens of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// Index of the dimension in the shape.
    pub dimension: usize,
    /// Tokens per row.
    pub tokens: usize,
}

/// The header of a state file: the session that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The model's name, for people.
    pub name: String,
    /// The model's fingerprint in hexadecimal.
    pub model: String,
    /// SHA-256 of the tokenizer's JSON text in hexadecimal; `None` for a model without one.
    pub tokenizer: Option<String>,
    /// The kind of device whose bits the state has.
    pub device: String,
    /// Whether the bits depend on nothing but the tokens and the device.
    pub exact: bool,
    /// Threads that read the tokens; without `exact` bits may depend on them.
    pub threads: usize,
    /// Largest number of tokens read at once; without `exact` bits depend on it.
    pub chunk: usize,
    /// The state tensors, the session's own first.
    pub tensors: Vec<TensorEntry>,
}

impl Description {
    /// The complete header: magic number, length, JSON, zeros up to a multiple of 64.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let mut header = MAGIC.to_vec();
        header.extend((json.len() as u64).to_le_bytes());
        header.extend(json);
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        Ok(header)
    }
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Tokens read from the beginning on.
    pub position: u64,
    /// Tokens since the record before.
    pub tokens: u64,
    /// [`crate::Session::grid`].
    pub grid: u64,
    /// The session's hash of all tokens, 0 if unknown.
    pub hash: u64,
    /// Seed of the random numbers, and the numbers drawn.
    pub random: [u64; 2],
    /// Bytes of the rows that these tokens wrote.
    pub rows: u64,
    /// Bytes of the tensors that later tokens overwrite, with their padding.
    pub state: u64,
    /// Number of logits.
    pub logits: u64,
    /// Bytes of the note.
    pub note: u64,
    /// 1 in the last record of a complete file, else 0.
    pub last: u64,
    /// Chained hash of the tokens.
    pub tokens_hash: Sum,
    /// Hash of the rows.
    pub rows_hash: Sum,
    /// Hash of state, logits and note.
    pub state_hash: Sum,
}

/// A number rounded up to the alignment.
pub fn padded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

impl Head {
    /// The sections behind the head: bytes of tokens, rows, state, logits and note, each with its padding.
    pub fn sections(&self) -> Option<[u64; 5]> {
        Some([
            padded(self.tokens.checked_mul(4)?)?,
            padded(self.rows)?,
            padded(self.state)?,
            padded(self.logits.checked_mul(4)?)?,
            padded(self.note)?,
        ])
    }

    /// Writes the head; `chain` is the chained hash of the record before, or the hash of the header. Returns the record's own.
    pub fn encode(&self, chain: &Sum) -> ([u8; HEAD], Sum) {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(RECORD);
        for (bytes, number) in head[8..96].chunks_exact_mut(8).zip(self.numbers()) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        head[96..128].copy_from_slice(&self.tokens_hash);
        head[128..160].copy_from_slice(&self.rows_hash);
        head[160..192].copy_from_slice(&self.state_hash);
        let own = chained(chain, &head[..CHAINED]);
        head[CHAINED..CHAINED + 32].copy_from_slice(&own);
        (head, own)
    }

    /// Reads a head that follows a record with this chained hash. `None` if it does not.
    pub fn decode(bytes: &[u8; HEAD], chain: &Sum) -> Option<(Self, Sum)> {
        let numbers = bytes[8..96].as_chunks::<8>().0;
        let number = |index: usize| u64::from_le_bytes(numbers[index]);
        let hash = |at: usize| *bytes[at..].first_chunk::<32>().expect("within the head");
        let head = Head {
            position: number(0),
            tokens: number(1),
            grid: number(2),
            hash: number(3),
            random: [number(4), number(5)],
            rows: number(6),
            state: number(7),
            logits: number(8),
            note: number(9),
            last: number(10),
            tokens_hash: hash(96),
            rows_hash: hash(128),
            state_hash: hash(160),
        };
        // Every bit of a head has one right value: magic number, hash and zeros are those that writing gives.
        let (again, own) = head.encode(chain);
        (again == *bytes && head.last <= 1).then_some((head, own))
    }

    fn numbers(&self) -> [u64; 11] {
        [
            self.position,
            self.tokens,
            self.grid,
            self.hash,
            self.random[0],
            self.random[1],
            self.rows,
            self.state,
            self.logits,
            self.note,
            self.last,
        ]
    }
}

/// SHA-256 of a hash followed by bytes.
pub fn chained(before: &Sum, bytes: &[u8]) -> Sum {
    let hash = Sha256::new_with_prefix(before);
    hash.chain_update(bytes).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_it_was_written_and_no_bit_of_it_can_change() {
        let head = Head {
            position: 700,
            tokens: 300,
            logits: 5,
            last: 1,
            rows_hash: [3; 32],
            ..Head::default()
        };
        let before = [9; 32];
        let (bytes, own) = head.encode(&before);
        assert_eq!(Head::decode(&bytes, &before), Some((head, own)));
        assert_eq!(Head::decode(&bytes, &own), None);
        for bit in 0..8 * HEAD {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&changed, &before), None, "bit {bit}");
        }
        assert_eq!(head.sections(), Some([1216, 0, 0, 64, 0]));
        let large = Head {
            tokens: u64::MAX / 4,
            ..head
        };
        assert_eq!(large.sections(), None);
    }
}
