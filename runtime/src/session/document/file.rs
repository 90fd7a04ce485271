//! State files: opening, checking and appending to them.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use waterline_quant::{ask_room, ask_room_for_text, open_file, read_bytes};

use super::format::{
    ALIGNMENT, Description, HEAD, Head, MAGIC, MOST_HEADER, MOST_TOKENS, Sum, chained, padded,
};
use crate::error::{Error, Result};

/// Largest accepted number of records.
const MOST_RECORDS: usize = 1 << 20;
/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;

/// A record of a file.
struct Record {
    head: Head,
    /// Offsets of the sections: tokens, rows, state, logits, note, and the end.
    offsets: [u64; 6],
}

/// A state as a document: the checkpoints of one text. Opening one checks its header, the chain of its records and its tokens;
/// other sections are checked when they are read. It is read, not mapped, so that a file that is shortened meanwhile is an error.
pub struct StateFile {
    path: PathBuf,
    file: Mutex<File>,
    description: Description,
    records: Vec<Record>,
    tokens: Vec<u32>,
    /// The chained hash of the last record.
    chain: Sum,
}

/// A checkpoint of a state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateRecord {
    /// Tokens read from the beginning of the text on.
    pub position: u64,
    /// Tokens since the checkpoint before.
    pub tokens: u64,
    /// Bytes of the rows of full attention that these tokens wrote.
    pub rows: u64,
    /// Bytes of the other state tensors.
    pub state: u64,
    /// The chained hash of all tokens so far.
    pub tokens_hash: [u8; 32],
}

/// An error about a state file.
pub(super) fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::Snapshot {
        file: path.display().to_string(),
        reason: reason.into(),
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => bad(path, "the file ends too early"),
        ErrorKind::OutOfMemory => Error::memory("a state file", "free some memory"),
        _ => Error::io(path, "cannot read", error),
    }
}

impl StateFile {
    /// Opens a complete file.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it is not a state file, is damaged, or was never completed; [`Error::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = open_file(path).map_err(|e| Error::io(path, "cannot open", e))?;
        let (found, damage) = Self::walk(path, file)?;
        if let Some(damage) = damage {
            return Err(bad(path, damage));
        }
        if found.records.last().is_none_or(|last| last.head.last == 0) {
            return Err(bad(
                path,
                "the file is not complete: its last record is missing",
            ));
        }
        Ok(found)
    }

    /// Whether the file at `path` begins as a state file does.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        let mut magic = [0; 8];
        let file = open_file(path).and_then(|mut file| file.read_exact(&mut magic));
        file.is_ok() && &magic == MAGIC
    }

    /// Reads the header, and the records up to the first that is damaged; also returns what is wrong with that one.
    pub(super) fn walk(path: &Path, mut file: File) -> Result<(Self, Option<String>)> {
        let error = |e| failed(path, e);
        let size = file.metadata().map_err(error)?.len();
        let mut start = [0; 16];
        file.read_exact(&mut start).map_err(error)?;
        let (magic, length) = start.split_at(8);
        if magic != MAGIC {
            return Err(bad(path, "this is not a state file of this version"));
        }
        let length = u64::from_le_bytes(*length.first_chunk().expect("eight bytes"));
        if length > MOST_HEADER.min(size) {
            return Err(bad(path, "its header is longer than the file"));
        }
        let json = read_bytes(&mut file, length).map_err(error)?;
        ask_room_for_text(json.len())?;
        let description: Description = serde_json::from_slice(&json)
            .map_err(|e| bad(path, format!("its header is damaged: {e}")))?;
        let header = description.encode().unwrap_or_default();
        let mut padding = vec![0; header.len().saturating_sub(16 + json.len())];
        file.read_exact(&mut padding).map_err(error)?;
        if [&start[..], &json, &padding].concat() != header {
            return Err(bad(path, "its header is not written as the format says"));
        }
        let mut found = StateFile {
            path: path.to_path_buf(),
            file: Mutex::new(file),
            description,
            records: Vec::new(),
            tokens: Vec::new(),
            chain: Sha256::digest(&header).into(),
        };
        let mut at = header.len() as u64;
        let mut damage = None;
        while at < size && damage.is_none() {
            damage = found.read_record(at, size)?;
            at = found.end();
        }
        Ok((found, damage))
    }

    /// Reads the head and the tokens of the record at `at`; returns what is wrong with it.
    fn read_record(&mut self, at: u64, size: u64) -> Result<Option<String>> {
        let index = self.records.len();
        let wrong = |reason: &str| Ok(Some(format!("record {index}: {reason}")));
        let before = self.records.last().map(|record| record.head);
        let mut head = [0; HEAD];
        if size - at < HEAD as u64 {
            return wrong("the file ends in its head");
        }
        self.read_at(at, &mut head)?;
        let Some((head, chain)) = Head::decode(&head, &self.chain) else {
            return wrong("its head does not continue the chain of hashes");
        };
        if before.is_some_and(|before| before.last == 1) || index >= MOST_RECORDS {
            return wrong("it follows the last record");
        }
        let start = before.map_or(0, |before| before.position);
        let count = head.position.checked_sub(start);
        // Only the first record may lack earlier tokens: those that its session had forgotten.
        let fits = match (index, count) {
            (_, None) => false,
            (0, Some(count)) => head.tokens <= count,
            (_, Some(count)) => head.tokens == count && count > 0,
        };
        if !fits || head.tokens > MOST_TOKENS - self.tokens.len() as u64 {
            return wrong("its tokens do not lead from the record before to its position");
        }
        let mut offsets = [at + HEAD as u64; 6];
        let Some(sections) = head.sections() else {
            return wrong("its sections are longer than any file");
        };
        for (section, bytes) in sections.into_iter().enumerate() {
            match offsets[section].checked_add(bytes) {
                Some(end) if end <= size => offsets[section + 1] = end,
                _ => return wrong("the file ends in its sections"),
            }
        }
        let tokens = self.read_padded(offsets[0], head.tokens * 4)?;
        let Some(tokens) = tokens else {
            return wrong("its padding is not zero");
        };
        let last = before.map_or([0; 32], |before| before.tokens_hash);
        if chained(&last, &tokens) != head.tokens_hash {
            return wrong("its tokens have another hash");
        }
        ask_room(tokens.len())?;
        let tokens = tokens.as_chunks().0.iter();
        self.tokens
            .extend(tokens.map(|&token| u32::from_le_bytes(token)));
        self.records.push(Record { head, offsets });
        self.chain = chain;
        Ok(None)
    }

    /// The end of the last record, or of the header.
    pub(super) fn end(&self) -> u64 {
        let header = || self.description.encode().map_or(0, |header| header.len());
        let last = self.records.last().map(|record| record.offsets[5]);
        last.unwrap_or_else(|| header() as u64)
    }

    /// Where a record begins.
    pub(super) fn offset(&self, index: usize) -> u64 {
        self.records[index].offsets[0] - HEAD as u64
    }

    /// The chained hash of the last record.
    pub(super) fn chain(&self) -> Sum {
        self.chain
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let mut file = self.lock();
        let read = file
            .seek(SeekFrom::Start(at))
            .and_then(|_| file.read_exact(bytes));
        read.map_err(|e| failed(&self.path, e))
    }

    fn read(&self, at: u64, length: u64) -> Result<Vec<u8>> {
        let mut file = self.lock();
        let read = file
            .seek(SeekFrom::Start(at))
            .and_then(|_| read_bytes(&mut *file, length));
        read.map_err(|e| failed(&self.path, e))
    }

    /// Reads a section of `length` bytes; `None` if its padding is not zero.
    fn read_padded(&self, at: u64, length: u64) -> Result<Option<Vec<u8>>> {
        let mut bytes = self.read(at, padded(length).unwrap_or(u64::MAX))?;
        let is_zero = bytes[length as usize..].iter().all(|&byte| byte == 0);
        bytes.truncate(length as usize);
        Ok(is_zero.then_some(bytes))
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.end()
    }

    /// The header.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The tokens of the text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The checkpoints, in the order of their positions.
    pub fn records(&self) -> impl ExactSizeIterator<Item = StateRecord> {
        self.records.iter().map(|Record { head, .. }| StateRecord {
            position: head.position,
            tokens: head.tokens,
            rows: head.rows,
            state: head.state,
            tokens_hash: head.tokens_hash,
        })
    }

    /// The position of a checkpoint.
    pub(in crate::session) fn position(&self, index: usize) -> u64 {
        self.head(index).position
    }

    /// The deepest checkpoint whose tokens are a prefix of `tokens`. A file without its first tokens has none.
    pub(in crate::session) fn deepest(&self, tokens: &[u32]) -> Option<usize> {
        let pairs = self.tokens.iter().zip(tokens);
        let equal = pairs.take_while(|(one, other)| one == other).count() as u64;
        let is_whole = self.records[0].head.tokens == self.records[0].head.position;
        let within = self.records.partition_point(|it| it.head.position <= equal);
        within.checked_sub(1).filter(|_| is_whole)
    }

    /// The head of a checkpoint.
    pub(in crate::session) fn head(&self, index: usize) -> &Head {
        &self.records[index].head
    }

    /// The position before the tokens of a checkpoint.
    pub(in crate::session) fn start(&self, index: usize) -> u64 {
        let before = index.checked_sub(1);
        before.map_or(0, |before| self.records[before].head.position)
    }

    /// The rows that the tokens of a checkpoint wrote.
    pub(super) fn rows(&self, index: usize) -> Result<Vec<u8>> {
        let Record { head, offsets } = &self.records[index];
        let mut bytes = self.checked(index, offsets[1]..offsets[2], &head.rows_hash)?;
        bytes.truncate(head.rows as usize);
        Ok(bytes)
    }

    /// The state, the logits and the note of a checkpoint: one buffer, and the offsets of the last two in it.
    pub(super) fn state(&self, index: usize) -> Result<(Vec<u8>, usize, usize)> {
        let Record { head, offsets } = &self.records[index];
        let bytes = self.checked(index, offsets[2]..offsets[5], &head.state_hash)?;
        let to = |section: usize| (offsets[section] - offsets[2]) as usize;
        Ok((bytes, to(3), to(4)))
    }

    /// The note of the last checkpoint: data of the program that wrote the file.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if its bytes are not those of its hash.
    pub fn note(&self) -> Result<Vec<u8>> {
        let last = self.records.len() - 1;
        let (bytes, _, note) = self.state(last)?;
        let length = self.records[last].head.note as usize;
        Ok(bytes[note..note + length].to_vec())
    }

    /// Reads bytes and compares their hash.
    fn checked(&self, index: usize, range: std::ops::Range<u64>, hash: &Sum) -> Result<Vec<u8>> {
        let bytes = self.read(range.start, range.end - range.start)?;
        if <Sum>::from(Sha256::digest(&bytes)) != *hash {
            return Err(self.damaged(index));
        }
        Ok(bytes)
    }

    fn damaged(&self, index: usize) -> Error {
        let position = self.records[index].head.position;
        let reason =
            format!("record {index}, at position {position}: its bytes are not those of its hash");
        bad(&self.path, reason)
    }

    /// Compares the hash of every section, in memory that does not depend on the file.
    ///
    /// # Errors
    /// [`Error::Snapshot`] names the first record that is damaged.
    pub fn verify(&self) -> Result<()> {
        (0..self.records.len()).try_for_each(|index| self.verify_record(index))
    }

    pub(super) fn verify_record(&self, index: usize) -> Result<()> {
        let Record { head, offsets } = &self.records[index];
        let parts = [
            (offsets[1]..offsets[2], &head.rows_hash),
            (offsets[2]..offsets[5], &head.state_hash),
        ];
        let mut buffer = vec![0; PIECE];
        for (range, expected) in parts {
            let mut hash = Sha256::new();
            let mut at = range.start;
            while at < range.end {
                let piece = &mut buffer[..PIECE.min((range.end - at) as usize)];
                self.read_at(at, piece)?;
                hash.update(&piece);
                at += piece.len() as u64;
            }
            if <Sum>::from(hash.finalize()) != *expected {
                return Err(self.damaged(index));
            }
        }
        Ok(())
    }
}

/// The contents of a record to write.
pub(super) struct Contents<'a> {
    pub head: Head,
    pub tokens: &'a [u32],
    pub rows: &'a [u8],
    /// The tensors that later tokens overwrite.
    pub state: &'a mut dyn Iterator<Item = &'a [u8]>,
    pub logits: &'a [f32],
    pub note: &'a [u8],
}

/// Appends `bytes` and zeros up to the alignment.
fn pad(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
}

/// Writes a record after one with the chained hash `chain` and these tokens' hash. Returns both hashes of this record.
pub(super) fn write_record(
    out: &mut impl Write,
    (chain, tokens_hash): (&Sum, &Sum),
    contents: Contents<'_>,
) -> io::Result<(Sum, Sum)> {
    let mut head = contents.head;
    let mut tokens = Vec::new();
    for token in contents.tokens {
        tokens.extend(token.to_le_bytes());
    }
    head.tokens_hash = chained(tokens_hash, &tokens);
    let (mut rows, mut state) = (Vec::new(), Vec::new());
    let refused = |_| io::Error::from(ErrorKind::OutOfMemory);
    ask_room(contents.rows.len() + ALIGNMENT as usize).map_err(refused)?;
    pad(&mut rows, contents.rows);
    for tensor in contents.state {
        ask_room(tensor.len() + ALIGNMENT as usize).map_err(refused)?;
        pad(&mut state, tensor);
    }
    head.tokens = contents.tokens.len() as u64;
    head.rows = contents.rows.len() as u64;
    head.state = state.len() as u64;
    head.logits = contents.logits.len() as u64;
    head.note = contents.note.len() as u64;
    pad(&mut state, bytemuck::cast_slice(contents.logits));
    pad(&mut state, contents.note);
    head.rows_hash = Sha256::digest(&rows).into();
    head.state_hash = Sha256::digest(&state).into();
    let mut padded_tokens = Vec::new();
    pad(&mut padded_tokens, &tokens);
    let (bytes, chain) = head.encode(chain);
    out.write_all(&bytes)?;
    out.write_all(&padded_tokens)?;
    out.write_all(&rows)?;
    out.write_all(&state)?;
    Ok((chain, head.tokens_hash))
}
