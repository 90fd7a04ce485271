//! Structs that begin with their size, so that old programs work with new libraries and vice versa: a field that one side lacks
//! has its default, or is zero.

use crate::pointers::place;
use crate::status::{Failure, Outcome};

/// A struct that C passes in, or passes to be filled.
///
/// # Safety
/// The struct is `repr(C)` and begins with a `u32` for its size, and any bytes are a valid value of it.
pub(crate) unsafe trait Tagged: Copy + Default {}

/// The largest size that is accepted.
const LARGEST: usize = 1 << 12;

/// Returns the size stored in a struct from C.
///
/// # Safety
/// `from` points to a `u32`.
unsafe fn size_of_theirs<T: Tagged>(what: &str, from: *const T) -> Outcome<usize> {
    place(what, from.cast_mut())?;
    // SAFETY: not NULL and aligned; the caller's promise.
    let size = unsafe { from.cast::<u32>().read() } as usize;
    if !(size_of::<u32>()..=LARGEST).contains(&size) {
        let ours = size_of::<T>();
        return Err(Failure::argument(format!(
            "{what}: its size is {size}, expected {ours}; set it to sizeof the struct"
        )));
    }
    Ok(size)
}

/// Reads the parameters at `from`, or returns the defaults if it is NULL.
///
/// # Safety
/// `from` is NULL or points to a struct of the size stored in it.
pub(crate) unsafe fn read<T: Tagged>(what: &str, from: *const T) -> Outcome<T> {
    let mut params = T::default();
    if from.is_null() {
        return Ok(params);
    }
    // SAFETY: `size_of_theirs` checks NULL and alignment; the caller passes a struct that begins with its size.
    let size = unsafe { size_of_theirs(what, from) }?;
    // SAFETY: the caller promises that the struct has `size` bytes, and bytes need no alignment.
    let theirs = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, unknown) = theirs.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Failure::argument(format!(
            "{what}: it sets a field that this version of the library does not have"
        )));
    }
    let to = (&raw mut params).cast::<u8>();
    // SAFETY: `known` is no longer than the struct, and any bytes are a valid value of the struct.
    unsafe { to.copy_from_nonoverlapping(known.as_ptr(), known.len()) };
    Ok(params)
}

/// Refuses a reserved field that is not 0, so that a later version can give it a meaning.
pub(crate) fn check_reserved(field: &str, value: u32) -> Outcome {
    match value {
        0 => Ok(()),
        _ => Err(Failure::argument(format!(
            "{field}: found {value}, expected 0; the field is reserved"
        ))),
    }
}

/// Checks a struct that is filled later; NULL means that no result is requested.
///
/// # Safety
/// Like [`read`].
pub(crate) unsafe fn check<T: Tagged>(what: &str, to: *const T) -> Outcome {
    if !to.is_null() {
        // SAFETY: `size_of_theirs` checks NULL and alignment; the caller passes a struct that begins with its size.
        unsafe { size_of_theirs(what, to) }?;
    }
    Ok(())
}

/// Writes `value` to a struct, up to the size stored in it.
///
/// # Safety
/// Like [`read`].
pub(crate) unsafe fn write<T: Tagged>(what: &str, to: *mut T, value: T) -> Outcome {
    // SAFETY: `size_of_theirs` checks NULL and alignment; the caller passes a struct that begins with its size.
    let size = unsafe { size_of_theirs(what, to) }?;
    // SAFETY: the caller promises that the struct has `size` bytes.
    unsafe { write_sized(to, value, size) };
    Ok(())
}

/// Writes the defaults and the size to a struct of `size` bytes.
///
/// # Safety
/// `to` is valid for `size` bytes.
pub(crate) unsafe fn init<T: Tagged>(what: &str, to: *mut T, size: usize) -> Outcome {
    place(what, to)?;
    if !(size_of::<u32>()..=LARGEST).contains(&size) {
        return Err(Failure::argument(format!(
            "{what}: its size cannot be {size} bytes"
        )));
    }
    // SAFETY: `place` has checked NULL and alignment; the caller provides `size` bytes.
    unsafe { write_sized(to, T::default(), size) };
    Ok(())
}

/// # Safety
/// `to` is aligned for `T` and valid for `size` bytes, at least four.
unsafe fn write_sized<T: Tagged>(to: *mut T, value: T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: within `size` bytes, and C's memory does not overlap Rust's.
    unsafe {
        let bytes = to.cast::<u8>();
        bytes.write_bytes(0, size);
        bytes.copy_from_nonoverlapping((&raw const value).cast(), known);
        to.cast::<u32>().write(size as u32);
    }
}
