//! Structs that begin with their size, so that old programs and new libraries, and the other way round, understand each
//! other: a field that one side lacks has its default, or is zero.

use crate::pointers::place;
use crate::status::{Failure, Outcome};

/// A struct that C passes in or has filled.
///
/// # Safety
/// It is `repr(C)`, begins with a `u32` for its size, and any bytes are a value of it.
pub(crate) unsafe trait Tagged: Copy + Default {}

/// Largest size that is believed.
const LARGEST: usize = 1 << 12;

/// The size that a struct of C says it has.
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

/// The parameters at `from`, or defaults if it is NULL.
///
/// # Safety
/// What is there is a struct as long as it says.
pub(crate) unsafe fn read<T: Tagged>(what: &str, from: *const T) -> Outcome<T> {
    let mut params = T::default();
    if from.is_null() {
        return Ok(params);
    }
    // SAFETY: it checks NULL and alignment; the caller gives a struct that begins with its size.
    let size = unsafe { size_of_theirs(what, from) }?;
    // SAFETY: the struct is so long, and bytes have no alignment.
    let theirs = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    let (known, unknown) = theirs.split_at(size.min(size_of::<T>()));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Failure::argument(format!(
            "{what}: it sets a field that this version of the library does not have"
        )));
    }
    let to = (&raw mut params).cast::<u8>();
    // SAFETY: no longer than the struct, of which any bytes are a value.
    unsafe { to.copy_from_nonoverlapping(known.as_ptr(), known.len()) };
    Ok(params)
}

/// Checks a struct that is to be filled later; NULL is none.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn check<T: Tagged>(what: &str, to: *const T) -> Outcome {
    if !to.is_null() {
        // SAFETY: it checks NULL and alignment; the caller gives a struct that begins with its size.
        unsafe { size_of_theirs(what, to) }?;
    }
    Ok(())
}

/// Writes `value` to a struct that says its size.
///
/// # Safety
/// As [`read`].
pub(crate) unsafe fn write<T: Tagged>(what: &str, to: *mut T, value: T) -> Outcome {
    // SAFETY: it checks NULL and alignment; the caller gives a struct that begins with its size.
    let size = unsafe { size_of_theirs(what, to) }?;
    // SAFETY: the struct is so long.
    unsafe { write_sized(to, value, size) };
    Ok(())
}

/// Writes defaults to a struct of `size` bytes, and its size.
///
/// # Safety
/// `to` is valid for `size` bytes.
pub(crate) unsafe fn init<T: Tagged>(what: &str, to: *mut T, size: usize) -> Outcome {
    place(what, to)?;
    if !(size_of::<u32>()..=LARGEST).contains(&size) {
        return Err(Failure::argument(format!(
            "{what}: no struct has {size} bytes"
        )));
    }
    // SAFETY: `place` has checked NULL and alignment; the caller gives `size` bytes.
    unsafe { write_sized(to, T::default(), size) };
    Ok(())
}

/// # Safety
/// There are `size` bytes at `to`, four at least, aligned for `T`.
unsafe fn write_sized<T: Tagged>(to: *mut T, value: T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: within `size` bytes, and C's memory is apart from Rust's.
    unsafe {
        let bytes = to.cast::<u8>();
        bytes.write_bytes(0, size);
        bytes.copy_from_nonoverlapping((&raw const value).cast(), known);
        to.cast::<u32>().write(size as u32);
    }
}
