//! Checks for available memory ahead of code whose allocations cannot fail gracefully: parsers and tables of other crates and of the
//! standard library.

use std::hint::black_box;

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;

use crate::error::{Error, Result};

/// Bytes of memory that parsed values take per byte of text, including derived data.
const OF_TEXT: usize = 4;
/// Bytes reserved for error messages, names and short lists.
pub(crate) const SMALL: usize = 64 << 10;

/// Fails if the system cannot provide `bytes` of memory now, plus some for small allocations.
///
/// # Errors
/// [`Error::Memory`].
pub fn ask_room(bytes: usize) -> Result<()> {
    let bytes = bytes.saturating_add(SMALL);
    let mut room = Vec::<u8>::new();
    let asked = room.try_reserve_exact(bytes);
    // Without this the compiler may remove an unused allocation.
    black_box(&room);
    asked.map_err(|_| Error::Memory { bytes })
}

/// Like [`ask_room`], for the data parsed from a text of `bytes` bytes: keys, names, numbers, tables of tensors.
///
/// # Errors
/// [`Error::Memory`].
pub fn ask_room_for_text(bytes: usize) -> Result<()> {
    ask_room(bytes.saturating_mul(OF_TEXT))
}

/// Allocates `count` zeros and leaves memory for small allocations.
///
/// # Errors
/// [`Error::Memory`].
pub fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>());
    ask_room(bytes)?;
    try_zeroed_vec(count).map_err(|()| Error::Memory { bytes })
}
