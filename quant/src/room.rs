//! Memory that is taken where it cannot be refused: by parsers and tables of other crates and of the standard library. It is asked for
//! before.

use std::hint::black_box;

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;

use crate::error::{Error, Result};

/// Bytes that the values of a text take for each of its own, with what is made of them.
const OF_TEXT: usize = 4;
/// Bytes for sentences, names and short lists.
pub(crate) const SMALL: usize = 64 << 10;

/// Fails if the system refuses `bytes` of memory, and some more for what is short, now.
///
/// # Errors
/// [`Error::Memory`].
pub fn ask_room(bytes: usize) -> Result<()> {
    let bytes = bytes.saturating_add(SMALL);
    let mut room = Vec::<u8>::new();
    let asked = room.try_reserve_exact(bytes);
    // An allocation that nobody uses may be left out.
    black_box(&room);
    asked.map_err(|_| Error::Memory { bytes })
}

/// As [`ask_room`], for what is made of `bytes` of a description: keys, names, numbers, tables of tensors.
///
/// # Errors
/// [`Error::Memory`].
pub fn ask_room_for_text(bytes: usize) -> Result<()> {
    ask_room(bytes.saturating_mul(OF_TEXT))
}

/// `count` zeros, after which there is still room for what is short.
///
/// # Errors
/// [`Error::Memory`].
pub fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    let bytes = count.saturating_mul(size_of::<T>());
    ask_room(bytes)?;
    try_zeroed_vec(count).map_err(|()| Error::Memory { bytes })
}
