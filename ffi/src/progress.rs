//! Reads prompts and reports the progress to the caller.

use std::ffi::{c_int, c_void};

use waterline::{Canceller, Error, Result, Session};

use crate::open_session::with;
use crate::session::wl_session;
use crate::status::wl_status;

/// Called after every `chunk` tokens of a prompt with the progress: `read` of `total` tokens. Returns 0 to continue, anything else to
/// cancel the call. It runs on the caller's thread; other calls on the session return WL_ERROR_BUSY. It must return normally: no
/// exceptions, no longjmp.
pub type wl_progress_fn =
    Option<unsafe extern "C" fn(read: u64, total: u64, user: *mut c_void) -> c_int>;

/// A C progress callback and its `user` pointer.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    function: unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int,
    user: *mut c_void,
}

// SAFETY: `user` is never dereferenced here, only passed back, on the thread that wl_session_set_progress documents.
unsafe impl Send for Progress {}

/// Reads tokens and reports the progress. A nonzero result of the callback cancels, after the last chunk too.
pub(crate) fn feed(
    session: &mut Session,
    tokens: &[u32],
    progress: Option<Progress>,
) -> Result<()> {
    let Some(progress) = progress else {
        return session.feed(tokens);
    };
    let canceller = session.canceller();
    let mut stopped = false;
    session.feed_with_progress(tokens, |read| {
        let (read, total) = (read as u64, tokens.len() as u64);
        // SAFETY: wl_session_set_progress was given a function that can be called with `user`.
        if unsafe { (progress.function)(read, total, progress.user) } != 0 {
            stopped = true;
            canceller.cancel();
        }
    })?;
    if stopped {
        canceller.clear();
        return Err(Error::Cancelled { fed: tokens.len() });
    }
    Ok(())
}

/// Reports the progress of reading a history, and cancels it if the callback requests that.
pub(crate) struct Hearing {
    progress: Option<Progress>,
    canceller: Canceller,
}

impl Hearing {
    /// Returns a reporter for a call on `session`.
    pub fn new(session: &Session, progress: Option<Progress>) -> Self {
        Hearing {
            progress,
            canceller: session.canceller(),
        }
    }

    /// Reports that `read` of `of` tokens are read.
    pub fn hear(&mut self, read: usize, of: usize) {
        if let Some(progress) = self.progress {
            // SAFETY: wl_session_set_progress was given a function that can be called with `user`.
            if unsafe { (progress.function)(read as u64, of as u64, progress.user) } != 0 {
                self.canceller.cancel();
            }
        }
    }
}

/// Calls `function` with `user` while wl_feed, wl_session_read_history, wl_chat_say, wl_chat_start and the functions that set messages
/// read, on the calling thread; NULL removes the callback. Forks of the session do not inherit it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_set_progress(
    session: *mut wl_session,
    function: wl_progress_fn,
    user: *mut c_void,
) -> wl_status {
    with(session, |inner| {
        inner.progress = function.map(|function| Progress { function, user });
        Ok(())
    })
}
