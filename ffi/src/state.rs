//! The state as a value: saved, restored, taken back.

use std::ffi::{c_char, c_void};

use waterline::{Chat, Snapshot};

use crate::open_session::{Inner, with_settled};
use crate::pointers::{fill, path, place, put, slice};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, wl_status, wl_status::WL_ERROR_MEMORY};

impl Inner {
    /// The state, with the conversation as its note if there is one.
    fn snapshot(&self) -> Outcome<Snapshot> {
        Ok(match &self.chat {
            Some(chat) => chat.snapshot(&self.session)?,
            None => self.session.snapshot()?,
        })
    }

    /// Takes a state over; on an error everything is as it was.
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

/// Room for a state's header and table of tensors.
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

/// Writes how many bytes wl_state_write needs now: what was used of the state, so it grows with what was read.
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

/// Writes the state, what was read and said included, to `bytes`, which has room for `room`, and its length to `length`.
/// WL_ERROR_ROOM if it does not fit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_write(
    session: *mut wl_session,
    bytes: *mut c_void,
    room: usize,
    length: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        let state = bytes_of(&inner.snapshot()?)?;
        // SAFETY: the caller gives so much room.
        unsafe { fill(&state, None, bytes.cast::<u8>(), room, length) }
    })
}

/// Takes over a state that wl_state_write wrote, from a session on the same model with the same context, cache and history.
/// To go on from there is, bit for bit, to go on from where it was written. A conversation brings its messages and its
/// sampling parameters with it.
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

/// As wl_state_write, to a file, which is replaced as a whole or not at all. The program `waterline` reads such files,
/// and writes them with /save.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_save(session: *mut wl_session, path: *const c_char) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives a path that ends at a zero byte.
        Ok(inner.snapshot()?.save(unsafe { self::path(path) }?)?)
    })
}

/// As wl_state_read, from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_state_load(session: *mut wl_session, path: *const c_char) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives a path that ends at a zero byte.
        inner.restore(&Snapshot::load(unsafe { self::path(path) }?)?)
    })
}

/// Remembers this state for wl_session_rewind, in place of the oldest if `marks` of wl_session_params are taken.
/// Without marks it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_mark(session: *mut wl_session) -> wl_status {
    with_settled(session, |inner| Ok(inner.session.mark()?))
}

/// Goes back to an earlier position: to the last mark at or before it, and from there by reading the tokens of the history
/// again. At a mark the state is what it was, bit for bit. WL_ERROR_REWIND if no mark and history lead there. A
/// conversation goes back by wl_chat_undo instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_rewind(session: *mut wl_session, position: u64) -> wl_status {
    with_settled(session, |inner| {
        if inner.chat.is_some() {
            let sentence = "this session is a conversation; wl_chat_undo takes a turn back";
            return Err(Failure::new(wl_status::WL_ERROR_REWIND, sentence));
        }
        Ok(inner.session.rewind(position)?)
    })
}
