//! Lists and byte strings whose length a file declares. Memory grows only with the bytes actually read, and a refused allocation is an
//! error.

use std::io::{self, ErrorKind, Read};

use crate::error::{Error, Result};

/// Elements reserved before the first element is read.
const FIRST: usize = 256;

/// Reads `count` elements; `read` gets the index of each.
///
/// # Errors
/// The errors of `read`, and [`Error::Memory`] if the system refuses the memory.
pub(crate) fn read_list<T>(
    count: usize,
    mut read: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<T>> {
    let mut list = Vec::new();
    reserve(&mut list, count.min(FIRST))?;
    for index in 0..count {
        let element = read(index)?;
        reserve(&mut list, 1)?;
        list.push(element);
    }
    Ok(list)
}

/// Copies a slice, converting each element.
///
/// # Errors
/// [`Error::Memory`] if the system refuses the memory.
pub(crate) fn converted<S: Copy, T>(from: &[S], convert: impl Fn(S) -> T) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(from.len())
        .map_err(|_| refused::<T>(from.len()))?;
    list.extend(from.iter().map(|&element| convert(element)));
    Ok(list)
}

/// Reserves room for `more` elements.
fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    let length = list.len() + more;
    list.try_reserve(more).map_err(|_| refused::<T>(length))
}

fn refused<T>(length: usize) -> Error {
    Error::Memory {
        bytes: length.saturating_mul(size_of::<T>()),
    }
}

/// Reads exactly `length` bytes. Memory grows as they arrive, so a declared length that the input does not have costs nothing.
///
/// # Errors
/// An error of the kind [`ErrorKind::UnexpectedEof`] if the input ends early, [`ErrorKind::OutOfMemory`] if the system refuses the memory,
/// and the errors of the input.
pub fn read_bytes(input: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // `read_to_end` reserves fallibly, in proportion to the bytes read so far.
    input.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length {
        Ok(bytes)
    } else {
        Err(ErrorKind::UnexpectedEof.into())
    }
}

/// Fills `to`, which holds zeros, with bytes of `input`. Pages of zeros stay untouched, so that a hole in a sparse file takes no memory.
///
/// # Errors
/// The errors of `input`.
pub fn read_sparse(input: &mut impl Read, to: &mut [u8]) -> io::Result<()> {
    const PAGE: usize = 4096;
    let mut page = [0; PAGE];
    for to in to.chunks_mut(PAGE) {
        let page = &mut page[..to.len()];
        input.read_exact(page)?;
        if page.iter().any(|&byte| byte != 0) {
            to.copy_from_slice(page);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_length_costs_nothing() {
        let read = |index| match index {
            3 => Err(Error::Memory { bytes: 0 }),
            _ => Ok([index; 1_000]),
        };
        assert!(read_list(usize::MAX, read).is_err());
        let error = read_bytes(&mut &b"four"[..], u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_bytes(&mut &b"four"[..], 3).unwrap(), b"fou");
        assert_eq!(read_list(600, Ok).unwrap(), (0..600).collect::<Vec<_>>());
    }
}
