//! Probabilities of all tokens at each position, in the file format of llama-perplexity's `--kl-divergence-base`.
//!
//! The file holds `_logits_`, then as 32-bit integers the window's length, the vocabulary size, the number of windows,
//! and the tokens of all windows. Each counted position follows with two f32 (a step and the least log probability) and
//! one 16-bit code per token: the log probability is `code * step + least`. An odd vocabulary has one extra code.
//! Probabilities below e^-16 of the largest are not distinguished.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use waterline_quant::NewFile;

use super::log_sum::LogSum;
use super::windows::Windows;
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"_logits_";
/// Logits that are further below the largest share the lowest code.
const RANGE: f32 = 16.0;
/// Maximum window length that is accepted.
const MOST_LENGTH: usize = 1 << 20;

/// Number of 16-bit words for one position.
fn words(vocab: usize) -> usize {
    vocab.next_multiple_of(2) + 4
}

/// A file that is being written; it appears only when it is complete.
pub struct Writer {
    path: PathBuf,
    file: BufWriter<NewFile>,
    row: Vec<u8>,
}

impl Writer {
    /// Creates a file and writes the header for `windows`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, windows: &Windows, vocab: usize) -> Result<Self> {
        let file = NewFile::create(path).map_err(|e| Error::io(path, e))?;
        let mut writer = Writer {
            path: path.into(),
            file: BufWriter::new(file),
            row: Vec::new(),
        };
        writer.write(MAGIC)?;
        for number in [windows.length, vocab, windows.count()] {
            writer.write(&(number as i32).to_le_bytes())?;
        }
        for token in &windows.tokens {
            writer.write(&token.to_le_bytes())?;
        }
        Ok(writer)
    }

    /// Writes the probabilities that follow from `logits`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, logits: &[f32], log_sum: LogSum) -> Result<()> {
        let largest = log_sum.peak;
        let smallest = logits.iter().copied().fold(f32::INFINITY, f32::min);
        let least = smallest.max(largest - RANGE);
        let step = (largest - least) / f32::from(u16::MAX);
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.extend(step.to_le_bytes());
        row.extend((least - largest - log_sum.log as f32).to_le_bytes());
        for logit in logits {
            let code = if step > 0.0 && *logit > least {
                ((logit - least) / step).round_ties_even() as u16
            } else {
                0
            };
            row.extend(code.to_le_bytes());
        }
        row.resize(2 * words(logits.len()), 0);
        self.write(&row)?;
        self.row = row;
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<()> {
        let path = self.path;
        let file = self.file.into_inner().map_err(|e| e.into_error());
        let finished = file.and_then(NewFile::finish);
        finished.map_err(|e| Error::io(path, e))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.map_err(|e| Error::io(&self.path, e))
    }
}

/// A file that is read position by position.
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    vocab: usize,
    row: Vec<u8>,
}

impl Reader {
    /// Opens a file and reads its header. Also returns the window length and the tokens.
    ///
    /// # Errors
    /// The file is not in this format, or its length does not match its header.
    pub fn open(path: &Path) -> Result<(Self, usize, Vec<u32>)> {
        let bad = |reason: String| Error::input(path, reason);
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
        let mut reader = Reader {
            path: path.into(),
            file: BufReader::new(file),
            vocab: 0,
            row: Vec::new(),
        };
        let mut head = [0; 20];
        if bytes < 20 || reader.read(&mut head).is_err() || &head[..8] != MAGIC {
            let reason = "is not a file of saved logits: expected \"_logits_\" at its start";
            return Err(bad(reason.into()));
        }
        let number = |at: usize| {
            let number = i32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
            usize::try_from(number).unwrap_or(0)
        };
        let [length, vocab, count] = [number(8), number(12), number(16)];
        let believed = (4..=MOST_LENGTH).contains(&length) && vocab > 0 && count > 0;
        let places = count as u128 * length.saturating_sub(1 + length / 2) as u128;
        let expected = 20 + 4 * count as u128 * length as u128 + 2 * places * words(vocab) as u128;
        if !believed || expected != u128::from(bytes) {
            return Err(bad(format!(
                "expected {expected} bytes for {count} windows of {length} tokens and a vocabulary of {vocab}, found {bytes}"
            )));
        }
        let mut tokens = Vec::with_capacity(count * length);
        let mut token = [0; 4];
        for _ in 0..count * length {
            reader.read(&mut token)?;
            let token = u32::from_le_bytes(token);
            if token as usize >= vocab {
                return Err(bad(format!(
                    "token {token} is outside the vocabulary of {vocab}"
                )));
            }
            tokens.push(token);
        }
        reader.vocab = vocab;
        reader.row = vec![0; 2 * words(vocab)];
        Ok((reader, length, tokens))
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Reads the log probabilities (base e) of all tokens at the next position.
    ///
    /// # Errors
    /// The file cannot be read, or its numbers are not probabilities.
    pub fn next(&mut self, log_probabilities: &mut Vec<f32>) -> Result<()> {
        let mut row = std::mem::take(&mut self.row);
        self.read(&mut row)?;
        let float = |at: usize| f32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"));
        let (step, least) = (float(0), float(4));
        if !(step >= 0.0 && step.is_finite() && least <= 0.0 && least.is_finite()) {
            let reason = format!("a step of {step} from {least} on is no log probability");
            return Err(Error::input(&self.path, reason));
        }
        log_probabilities.clear();
        let codes = row[8..].chunks_exact(2).take(self.vocab);
        log_probabilities.extend(codes.map(|code| {
            let code = u16::from_le_bytes([code[0], code[1]]);
            step * f32::from(code) + least
        }));
        self.row = row;
        Ok(())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact(bytes);
        read.map_err(|e| Error::io(&self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits");
        let windows = Windows {
            tokens: (0..8).map(|i| i % 5).collect(),
            length: 4,
            begin: None,
        };
        let mut writer = Writer::create(&path, &windows, 5).unwrap();
        let rows = [[0.0f32, 1.0, -2.0, 0.5, -40.0], [3.0; 5]];
        for row in &rows {
            writer.push(row, LogSum::new(row)).unwrap();
        }
        writer.finish().unwrap();
        let (mut reader, length, tokens) = Reader::open(&path).unwrap();
        assert_eq!((reader.vocab(), length, tokens), (5, 4, windows.tokens));
        let mut found = Vec::new();
        for row in &rows {
            reader.next(&mut found).unwrap();
            let sum: f32 = row.iter().map(|logit| logit.exp()).sum();
            for (logit, found) in row.iter().zip(&found) {
                let expected = (logit - sum.ln()).max(1.0 - RANGE - sum.ln());
                assert!((expected - found).abs() < 3e-4, "{expected} {found}");
            }
        }
        let bytes = std::fs::read(&path).unwrap();
        for (at, byte) in [(0, b'x'), (8, 9), (12, 255), (16, 3), (24, 77)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            std::fs::write(&path, bytes).unwrap();
            assert!(Reader::open(&path).is_err(), "byte {at}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(Reader::open(&path).is_err());
    }
}
