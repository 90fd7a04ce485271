//! Log messages for the program.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::sync::{PoisonError, RwLock};

use crate::status::{Failure, border, wl_status};

/// How much a message matters.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum wl_log_level {
    /// A defect of the library.
    WL_LOG_ERROR = 0,
    /// Models that are opened, on a GPU the form of a session's steps (one kernel, or a graph and why), and files of a store that
    /// were passed over.
    WL_LOG_INFO = 1,
    /// Sessions that are made.
    WL_LOG_DEBUG = 2,
}

/// Takes a message, a sentence without a line end that is valid during the call. It may be called from any thread, also
/// from several at once. It must return: no exceptions, no longjmp.
pub type wl_log_fn =
    Option<unsafe extern "C" fn(level: wl_log_level, message: *const c_char, user: *mut c_void)>;

struct Target {
    level: u32,
    function: unsafe extern "C" fn(wl_log_level, *const c_char, *mut c_void),
    /// An address that only the program uses.
    user: usize,
}

static TARGET: RwLock<Option<Target>> = RwLock::new(None);

thread_local! {
    /// Whether this thread is in the program's function.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Passes a message to the program's function, if its level is high enough. Messages caused by that function are dropped.
pub(crate) fn log(level: wl_log_level, message: impl FnOnce() -> String) {
    if TELLING.get() {
        return;
    }
    let target = TARGET.read().unwrap_or_else(PoisonError::into_inner);
    let Some(target) = target
        .as_ref()
        .filter(|target| level as u32 <= target.level)
    else {
        return;
    };
    let Ok(message) = CString::new(message().replace(['\0', '\n'], " ")) else {
        return;
    };
    TELLING.set(true);
    let user = std::ptr::with_exposed_provenance_mut(target.user);
    // SAFETY: the caller of wl_set_log promises that the function can be called from any thread until it is replaced, and the
    // lock keeps that from happening during the call.
    unsafe { (target.function)(level, message.as_ptr(), user) };
    TELLING.set(false);
}

/// Sends messages of `level`, a wl_log_level, and of those that matter more to `function`; NULL ends it. Without it the
/// library writes nothing anywhere. Holds for the whole process and may be called from any thread but not from
/// `function` itself, which gives WL_ERROR_BUSY. When it returns, the function before is no longer running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_set_log(
    level: u32,
    function: wl_log_fn,
    user: *mut c_void,
) -> wl_status {
    border(|| {
        if TELLING.get() {
            let sentence = "the log cannot be changed by the function that it calls";
            return Err(Failure::new(wl_status::WL_ERROR_BUSY, sentence));
        }
        let target = function.map(|function| Target {
            level,
            function,
            user: user.expose_provenance(),
        });
        *TARGET.write().unwrap_or_else(PoisonError::into_inner) = target;
        Ok(())
    })
}
