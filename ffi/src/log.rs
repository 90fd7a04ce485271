//! Log messages passed to the program.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_void};
use std::sync::{PoisonError, RwLock};

use crate::status::{Failure, border, wl_status};

/// The importance of a log message.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum wl_log_level {
    /// A defect of the library.
    WL_LOG_ERROR = 0,
    /// Opened models, the form of a session's steps on a GPU (one kernel, or a graph and the reason), and files of a store that were
    /// skipped.
    WL_LOG_INFO = 1,
    /// New sessions.
    WL_LOG_DEBUG = 2,
}

/// Receives a message: a sentence without a line end, valid during the call. It may be called from any thread, and from several threads at
/// once. It must return normally: no exceptions, no longjmp.
pub type wl_log_fn =
    Option<unsafe extern "C" fn(level: wl_log_level, message: *const c_char, user: *mut c_void)>;

struct Target {
    level: u32,
    function: unsafe extern "C" fn(wl_log_level, *const c_char, *mut c_void),
    /// The program's `user` pointer, which the library never dereferences.
    user: usize,
}

static TARGET: RwLock<Option<Target>> = RwLock::new(None);

thread_local! {
    /// Whether this thread is running the program's function.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Passes a message to the program's function if its level is enabled. Messages caused by that function are dropped.
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
    // SAFETY: the caller of wl_set_log promises that the function can be called from any thread until it is replaced, and the lock prevents
    // a replacement during the call.
    unsafe { (target.function)(level, message.as_ptr(), user) };
    TELLING.set(false);
}

/// Sends messages of `level`, a wl_log_level, and of more important levels to `function`; NULL disables logging. Without a function the
/// library writes no messages anywhere. The setting applies to the whole process. It may be changed from any thread but not from `function`
/// itself, which gives WL_ERROR_BUSY. When the call returns, the previous function is no longer running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_set_log(
    level: u32,
    function: wl_log_fn,
    user: *mut c_void,
) -> wl_status {
    border(|| {
        if TELLING.get() {
            let sentence = "wl_set_log cannot be called by the log function";
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
