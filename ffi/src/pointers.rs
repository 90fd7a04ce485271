//! Converts pointers from C to Rust values, and results to C. Everything that can be checked without reading memory is checked.

use std::ffi::{CStr, c_char};
use std::path::Path;

use crate::status::{Failure, Outcome, wl_status};

/// The length that marks a zero-terminated text, as in the header.
pub(crate) const ZERO_TERMINATED: usize = usize::MAX;

fn check<T>(what: &str, pointer: *const T, length: usize) -> Outcome {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        let (at, to) = (pointer.addr(), align_of::<T>());
        let sentence = format!("{what}: the address {at:#x} is not a multiple of {to}");
        return Err(Failure::argument(sentence));
    }
    if length > isize::MAX as usize / size_of::<T>().max(1) {
        let sentence = format!("{what}: {length} values are more than any memory holds");
        return Err(Failure::argument(sentence));
    }
    Ok(())
}

/// Returns `length` values at `pointer`, which may be NULL if `length` is 0.
///
/// # Safety
/// `pointer` points to `length` values, which do not change while the slice is used.
pub(crate) unsafe fn slice<'a, T>(
    what: &str,
    pointer: *const T,
    length: usize,
) -> Outcome<&'a [T]> {
    if length == 0 {
        return Ok(&[]);
    }
    check(what, pointer, length)?;
    // SAFETY: not NULL, aligned and no longer than memory; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// The maximum number of tokens, biases or texts in a list that is copied: as many as a vocabulary has tokens.
const MOST_LISTED: usize = 1 << 20;

/// Like [`slice`], for a list that is copied: a wrong count is an error rather than a copy that no memory holds.
///
/// # Safety
/// Like [`slice`].
pub(crate) unsafe fn list<'a, T>(what: &str, pointer: *const T, length: usize) -> Outcome<&'a [T]> {
    if length > MOST_LISTED {
        let sentence = format!("{what}: found {length} values, expected at most {MOST_LISTED}");
        return Err(Failure::argument(sentence));
    }
    // SAFETY: the caller's promise.
    unsafe { slice(what, pointer, length) }
}

/// Returns the text of `length` bytes, or up to its zero byte.
///
/// # Safety
/// Like [`slice`]; a zero-terminated text has a zero byte.
pub(crate) unsafe fn text<'a>(
    what: &str,
    pointer: *const c_char,
    length: usize,
) -> Outcome<&'a str> {
    let bytes = if length == ZERO_TERMINATED {
        check(what, pointer, 0)?;
        // SAFETY: not NULL, and the caller promises a zero byte.
        unsafe { CStr::from_ptr(pointer) }.to_bytes()
    } else {
        // SAFETY: `slice` checks NULL, alignment and length; the caller passes `length` bytes.
        unsafe { slice(what, pointer.cast::<u8>(), length) }?
    };
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Failure::argument(format!(
            "{what} is not UTF-8: byte {at} starts an invalid sequence"
        ))
    })
}

/// Returns a zero-terminated path. On Unix any bytes form a path.
///
/// # Safety
/// `pointer` points to zero-terminated bytes.
pub(crate) unsafe fn path<'a>(pointer: *const c_char) -> Outcome<&'a Path> {
    check("path", pointer, 0)?;
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        // SAFETY: not NULL, and the caller promises a zero byte.
        let bytes = unsafe { CStr::from_ptr(pointer) }.to_bytes();
        Ok(Path::new(std::ffi::OsStr::from_bytes(bytes)))
    }
    #[cfg(not(unix))]
    {
        // SAFETY: `text` checks NULL and UTF-8; the caller promises a zero byte.
        Ok(Path::new(unsafe {
            text("path", pointer, ZERO_TERMINATED)
        }?))
    }
}

/// Checks the destination of a result before the result is computed.
pub(crate) fn place<T>(what: &str, to: *mut T) -> Outcome {
    check(what, to, 1)
}

/// Writes a result to a destination that [`place`] has checked.
///
/// # Safety
/// `to` has room for one value.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    // SAFETY: `to` is checked, and the caller promises the room. The old value is C's, so it is not dropped.
    unsafe { to.write(value) }
}

/// Checks the destination of an optional result, which may be NULL, before the result is computed.
pub(crate) fn place_if_wanted<T>(what: &str, to: *mut T) -> Outcome {
    if to.is_null() {
        Ok(())
    } else {
        place(what, to)
    }
}

/// Writes an optional result unless its destination is NULL.
///
/// # Safety
/// `to` has room for one value or is NULL.
pub(crate) unsafe fn put_if_wanted<T>(what: &str, to: *mut T, value: T) -> Outcome {
    if !to.is_null() {
        place(what, to)?;
        // SAFETY: `place` has checked NULL and alignment; the caller provides room for one value.
        unsafe { put(to, value) };
    }
    Ok(())
}

/// Writes `values` to `to` and their number to `count`; with `to` NULL and `room` 0, only the number. `zero`, if given, is written after
/// the values; it needs room but is not counted.
///
/// # Safety
/// `to` has room for `room` values, and `count` for one.
pub(crate) unsafe fn fill<T: Copy>(
    values: &[T],
    zero: Option<T>,
    to: *mut T,
    room: usize,
    count: *mut usize,
) -> Outcome {
    place("the place for the length", count)?;
    // SAFETY: `place` has checked NULL and alignment; the caller provides room for one number.
    unsafe { put(count, values.len()) };
    if to.is_null() && room == 0 {
        return Ok(());
    }
    check("the place for the result", to, room)?;
    let needed = values.len() + usize::from(zero.is_some());
    if needed > room {
        let sentence = format!("the result needs room for {needed}, but there is room for {room}");
        return Err(Failure::new(wl_status::WL_ERROR_ROOM, sentence));
    }
    // SAFETY: the values fit, and C's memory does not overlap Rust's.
    unsafe { to.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    if let Some(zero) = zero {
        // SAFETY: `needed` includes the zero value, so it fits.
        unsafe { to.add(values.len()).write(zero) };
    }
    Ok(())
}
