//! The file form of an arena. Long runs of zeros, such as unused parts of rings and caches, are stored as a count.
//!
//! Layout: the arena's size in bytes, then pairs (number of zeros, number of other bytes), each followed by those other bytes, until the
//! arena is full.

use std::io::{Read, Result, Write};

use super::arena::Arena;

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

/// Reads the runs that follow the byte count into a zeroed arena. Returns false if they do not fit.
pub(super) fn read(input: &mut impl Read, arena: &mut Arena) -> Result<bool> {
    let mut rest = arena.bytes_mut();
    let mut first = true;
    while !rest.is_empty() {
        let mut numbers = [[0; 8]; 2];
        input.read_exact(numbers.as_flattened_mut())?;
        let [zeros, data] = numbers.map(u64::from_le_bytes);
        let is_long = zeros >= LEAST as u64 || zeros == 0 && first;
        let end = zeros
            .checked_add(data)
            .filter(|&end| end <= rest.len() as u64 && end > 0);
        let (true, Some(end)) = (is_long, end) else {
            return Ok(false);
        };
        let (run, after) = rest.split_at_mut(end as usize);
        input.read_exact(&mut run[zeros as usize..])?;
        (rest, first) = (after, false);
    }
    Ok(true)
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
