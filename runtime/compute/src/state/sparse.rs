//! The file form of an arena. Long runs of zeros, such as unused parts of rings and caches, are stored as a count.
//!
//! Layout: the arena's size in bytes, then pairs (number of zeros, number of other bytes), each followed by those other bytes, until the
//! arena is full.

use std::io::{Read, Result, Write};
use std::ops::Range;

use waterline_quant::read_sparse;

use super::arena::Arena;
use super::finite::is_sound;

/// Granularity of zero runs: a cache line.
const LINE: usize = 64;
/// Shortest run of zeros that is stored as a count: a page, so that reading maps hardly more memory than the file has bytes.
const LEAST: usize = 4096;

/// Number of zeros from `at` on, in complete lines.
fn zeros_at(bytes: &[u8], at: usize) -> usize {
    let lines = bytes[at..].chunks(LINE);
    let is_zero = |line: &&[u8]| line.iter().fold(0, |all, byte| all | byte) == 0;
    lines.take_while(is_zero).map(<[u8]>::len).sum()
}

/// Returns the number of zeros at `at` that are stored as a count, and the end of the bytes after them that are written out.
fn run_at(bytes: &[u8], at: usize) -> (usize, usize) {
    let zeros = match zeros_at(bytes, at) {
        zeros @ LEAST.. => zeros,
        _ => 0,
    };
    let mut end = at + zeros;
    while end < bytes.len() {
        match zeros_at(bytes, end) {
            LEAST.. => break,
            0 => end = (end + LINE).min(bytes.len()),
            few => end += few,
        }
    }
    (zeros, end)
}

/// Writes an arena.
pub(super) fn write(arena: &Arena, out: &mut impl Write) -> Result<()> {
    let bytes = arena.bytes();
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    let mut at = 0;
    while at < bytes.len() {
        let (zeros, end) = run_at(bytes, at);
        let data = &bytes[at + zeros..end];
        out.write_all(&(zeros as u64).to_le_bytes())?;
        out.write_all(&(data.len() as u64).to_le_bytes())?;
        out.write_all(data)?;
        at = end;
    }
    Ok(())
}

/// The contents of a file for an arena.
pub(super) enum Found {
    /// A state.
    State,
    /// Runs that do not fit the arena.
    TooMuch,
    /// A NaN or an infinity, in the tensor of this name.
    NotFinite(String),
}

/// Reads the runs that follow the byte count into a zeroed arena.
pub(super) fn read(input: &mut impl Read, arena: &mut Arena) -> Result<Found> {
    let (all, mut at) = (arena.bytes().len(), 0);
    let mut first = true;
    while at < all {
        let mut numbers = [[0; 8]; 2];
        input.read_exact(numbers.as_flattened_mut())?;
        let [zeros, data] = numbers.map(u64::from_le_bytes);
        let is_long = zeros >= LEAST as u64 || zeros == 0 && first;
        let end = zeros
            .checked_add(data)
            .filter(|&end| end <= (all - at) as u64 && end > 0);
        let (true, Some(end)) = (is_long, end) else {
            return Ok(Found::TooMuch);
        };
        let run = at + zeros as usize..at + end as usize;
        if let Some(tensor) = read_run(input, arena, run.clone())? {
            return Ok(Found::NotFinite(tensor));
        }
        (at, first) = (run.end, false);
    }
    Ok(Found::State)
}

/// Reads a complete arena.
pub(super) fn read_whole(input: &mut impl Read, arena: &mut Arena) -> Result<Found> {
    let all = 0..arena.bytes().len();
    let found = read_run(input, arena, all)?;
    Ok(found.map_or(Found::State, Found::NotFinite))
}

/// Reads bytes of a zeroed arena; returns the name of a tensor that then holds a value that no state has.
fn read_run(input: &mut impl Read, arena: &mut Arena, run: Range<usize>) -> Result<Option<String>> {
    read_sparse(input, &mut arena.bytes_mut()[run.clone()])?;
    let tensors = arena.plan().tensors();
    let first = tensors.partition_point(|tensor| tensor.offset + tensor.bytes <= run.start);
    for (index, tensor) in tensors.iter().enumerate().skip(first) {
        // Complete values.
        let unit = tensor.dtype.bytes();
        let start = run.start.saturating_sub(tensor.offset) / unit * unit;
        let end = run.end.saturating_sub(tensor.offset).next_multiple_of(unit);
        if run.end <= tensor.offset {
            break;
        }
        let bytes = &arena.bytes()[tensor.offset..][start..end.min(tensor.bytes)];
        if !is_sound(Some(index), tensor, bytes) {
            return Ok(Some(tensor.name.clone()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_all_bytes_and_only_long_zeros_are_counted() {
        let mut bytes = vec![0u8; 40_960];
        for (at, length) in [(0, 1), (4000, 64), (4097, 3), (20_000, 100), (40_000, 1)] {
            bytes[at..at + length].fill(7);
        }
        let (mut at, mut runs) = (0, Vec::new());
        while at < bytes.len() {
            let (zeros, end) = run_at(&bytes, at);
            assert!(bytes[at..at + zeros].iter().all(|&byte| byte == 0));
            runs.push((zeros, end - at - zeros));
            at = end;
        }
        let [line, long] = [64, 4096];
        assert!(runs.iter().skip(1).all(|run| run.0 >= long), "{runs:?}");
        assert!(runs.iter().all(|run| run.0 % line == 0), "{runs:?}");
        assert_eq!(runs.len(), 3, "{runs:?}");
        assert_eq!(run_at(&[0; 64], 0), (0, 64));
        assert_eq!(run_at(&[0; 8192], 0), (8192, 8192));
    }
}
