//! Saving, restoring and rewinding the state of a session.

use std::ffi::{c_char, c_void};

use waterline::{Chat, Snapshot};

use crate::open_session::{Inner, with_settled};
use crate::pointers::{fill, path, place, put, slice};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, wl_status, wl_status::WL_ERROR_MEMORY};

impl Inner {
    /// Returns the state, with the conversation, if any, as its note.
    fn snapshot(&self) -> Outcome<Snapshot> {
        Ok(match &self.chat {
            Some(chat) => chat.snapshot(&self.session)?,
            None => self.session.snapshot()?,
        })
    }

    /// Restores a state; on an error everything is unchanged.
    fn restore(&mut self, snapshot: &Snapshot) -> Outcome {
        if snapshot.note.is_empty() {
            self.session.restore(snapshot)?;
            self.chat = None;
            return Ok(());
        }
        let mut chat = Chat::new(&self.session)?;
        chat.restore(&mut self.session, snapshot)?;
        self.chat = Some(chat);
        Ok(())
    }
}

/// Room for a state's header and tensor table.
const TABLE: usize = 1 << 16;

fn bytes_of(snapshot: &Snapshot) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    let room = snapshot.bytes() + snapshot.note.len() + TABLE;
    let refused = |error| {
        Failure::new(
            WL_ERROR_MEMORY,
            format!("the state cannot be written: {error}"),
        )
    };
    bytes.try_reserve(room).map_err(refused)?;
    let written = snapshot.write(&mut bytes);
    written.map_err(|error| Failure::argument(format!("the state cannot be written: {error}")))?;
    Ok(bytes)
}

/// Writes the number of bytes that wl_state_write needs now. It counts only the used part of the state, so it grows as tokens are read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_size(session: *mut wl_session, bytes: *mut usize) -> wl_status {
    with_settled(session, |inner| {
        place("the place for the size", bytes)?;
        let size = bytes_of(&inner.snapshot()?)?.len();
        // SAFETY: checked.
        unsafe { put(bytes, size) };
        Ok(())
    })
}

/// Writes the state, including the tokens read and the conversation, to `bytes`, which has room for `room`, and its length to `length`.
/// Returns WL_ERROR_ROOM if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_write(
    session: *mut wl_session,
    bytes: *mut c_void,
    room: usize,
    length: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        let state = bytes_of(&inner.snapshot()?)?;
        // SAFETY: the caller provides room for `room` bytes.
        unsafe { fill(&state, None, bytes.cast::<u8>(), room, length) }
    })
}

/// Restores a state that wl_state_write wrote, from a session on the same model with the same context, cache and history. Continuing from
/// it gives bit for bit the same results as continuing the original session. The state of a conversation includes its messages and sampling
/// parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_read(
    session: *mut wl_session,
    bytes: *const c_void,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `length` bytes.
        let mut bytes = unsafe { slice("bytes", bytes.cast::<u8>(), length) }?;
        let size = bytes.len() as u64;
        inner.restore(&Snapshot::read(&mut bytes, size, "memory")?)
    })
}

/// Like wl_state_write, to a file, which is replaced completely or not at all. The program `waterline` reads such files, and writes them
/// with /save.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_save(session: *mut wl_session, path: *const c_char) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes a zero-terminated path.
        Ok(inner.snapshot()?.save(unsafe { self::path(path) }?)?)
    })
}

/// Like wl_state_read, from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_load(session: *mut wl_session, path: *const c_char) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes a zero-terminated path.
        inner.restore(&Snapshot::load(unsafe { self::path(path) }?)?)
    })
}

/// Remembers the current state for wl_session_rewind, replacing the oldest mark if all `marks` of wl_session_params are taken. Without
/// marks it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_mark(session: *mut wl_session) -> wl_status {
    with_settled(session, |inner| Ok(inner.session.mark()?))
}

/// Goes back to an earlier position: restores the last mark at or before it, then reads the remembered tokens from there again. At a mark
/// the state is restored bit for bit. Returns WL_ERROR_REWIND if no mark and history reach that position. A conversation goes back with
/// wl_chat_undo instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_rewind(session: *mut wl_session, position: u64) -> wl_status {
    with_settled(session, |inner| {
        if inner.chat.is_some() {
            let sentence = "this session is a conversation; use wl_chat_undo to go back a turn";
            return Err(Failure::new(wl_status::WL_ERROR_REWIND, sentence));
        }
        Ok(inner.session.rewind(position)?)
    })
}
