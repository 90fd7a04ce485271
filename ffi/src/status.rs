//! Statuses of calls, and the boundary that turns every failure into one.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use waterline::Error;

use crate::log::{log, wl_log_level};

/// The result of a call. Programs should treat any unlisted number as an error.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum wl_status {
    /// Success.
    WL_OK = 0,
    /// An argument is NULL, out of range or not UTF-8, or a struct has an invalid size.
    WL_ERROR_ARGUMENT = 1,
    /// A handle is NULL, was freed, or did not come from this library.
    WL_ERROR_HANDLE = 2,
    /// Another call on this session has not returned yet.
    WL_ERROR_BUSY = 3,
    /// The result does not fit; the room it needs was written. Nothing else changed.
    WL_ERROR_ROOM = 4,
    /// The operating system refused a file operation.
    WL_ERROR_IO = 5,
    /// The file is not a model or is damaged, or the model computes a value that is not finite.
    WL_ERROR_MODEL = 6,
    /// The function is not available in this build, on this device or for this model.
    WL_ERROR_UNSUPPORTED = 7,
    /// The model has no tokenizer or no chat template, or they reject the text.
    WL_ERROR_TEXT = 8,
    /// The session's context cannot hold the tokens. Nothing was read.
    WL_ERROR_CONTEXT = 9,
    /// A saved state is damaged, or belongs to another model or other session parameters. The session is unchanged.
    WL_ERROR_STATE = 10,
    /// The session cannot go back to that position. The session is unchanged.
    WL_ERROR_REWIND = 11,
    /// wl_session_cancel ended the call. The session stopped after a complete token and can continue.
    WL_CANCELLED = 12,
    /// A defect in the library. A session that was in use can only be freed.
    WL_ERROR_INTERNAL = 13,
    /// The device's memory is full, or the device was lost. Sessions on a lost device can only be freed; a state that was saved earlier can
    /// be read into a session elsewhere.
    WL_ERROR_DEVICE = 14,
    /// The system refused memory or a thread. The call changed nothing.
    WL_ERROR_MEMORY = 15,
}

use wl_status::*;

/// A status with its error message.
#[derive(Debug)]
pub(crate) struct Failure {
    pub status: wl_status,
    pub sentence: String,
    /// The value that [`wl_last_os_error`] returns.
    os_error: i32,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(status: wl_status, sentence: impl Into<String>) -> Self {
        Failure {
            status,
            sentence: sentence.into(),
            os_error: 0,
        }
    }

    /// Returns the failure of an invalid argument.
    pub fn argument(sentence: impl Into<String>) -> Self {
        Self::new(WL_ERROR_ARGUMENT, sentence)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let source = std::error::Error::source(&error);
        let io = source.and_then(|source| source.downcast_ref::<io::Error>());
        let os_error = io.map_or(0, errno);
        let status = match &error {
            _ if io.is_some() => WL_ERROR_IO,
            Error::Quant(_)
            | Error::Config { .. }
            | Error::Logits { .. }
            | Error::Tensor { .. }
            | Error::Unused { .. } => WL_ERROR_MODEL,
            Error::Unsupported { .. } => WL_ERROR_UNSUPPORTED,
            Error::Device { .. } => WL_ERROR_DEVICE,
            Error::Tokenizer { .. } | Error::Template { .. } => WL_ERROR_TEXT,
            Error::Invalid { .. } => WL_ERROR_ARGUMENT,
            Error::Memory { .. } => WL_ERROR_MEMORY,
            Error::ContextFull { .. } => WL_ERROR_CONTEXT,
            Error::Snapshot { .. } => WL_ERROR_STATE,
            Error::Rewind { .. } => WL_ERROR_REWIND,
            Error::Cancelled { .. } => WL_CANCELLED,
            _ => WL_ERROR_INTERNAL,
        };
        Failure {
            os_error,
            ..Failure::new(status, error.to_string())
        }
    }
}

/// Returns the errno.h number of the system's reason, or 0 if the reason has none.
fn errno(error: &io::Error) -> i32 {
    match error.kind() {
        io::ErrorKind::NotFound => 2,
        io::ErrorKind::PermissionDenied => 13,
        io::ErrorKind::AlreadyExists => 17,
        io::ErrorKind::NotADirectory => 20,
        io::ErrorKind::IsADirectory => 21,
        io::ErrorKind::StorageFull => 28,
        // Windows numbers its errors differently.
        _ if cfg!(unix) => error.raw_os_error().unwrap_or(0),
        _ => 0,
    }
}

thread_local! {
    static SENTENCE: RefCell<CString> = RefCell::default();
    static OS_ERROR: Cell<i32> = const { Cell::new(0) };
    /// Whether this thread is in a call, and the message of the last panic in it.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the body of a call and converts its result, or its panic, to a status.
pub(crate) fn border(body: impl FnOnce() -> Outcome) -> wl_status {
    static HOOK: Once = Once::new();
    HOOK.call_once(report_panics);
    // A callback may call back into the library, so the outer call's value is restored.
    let outer = INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    INSIDE.set(outer);
    let failure = match outcome {
        Ok(Ok(())) => return WL_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // Dropping a payload may panic again.
            std::mem::forget(payload);
            let what = PANIC.take().unwrap_or_default();
            Failure::new(WL_ERROR_INTERNAL, format!("internal error: {what}"))
        }
    };
    let sentence = failure.sentence.replace('\0', "\u{fffd}");
    SENTENCE.set(CString::new(sentence).unwrap_or_default());
    OS_ERROR.set(failure.os_error);
    failure.status
}

/// Sends panics inside the library to the log and to [`border`] instead of standard error; other panics go to the previous hook.
fn report_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let worker = std::thread::current()
            .name()
            .is_some_and(|name| name.starts_with("waterline-"));
        if !worker && !INSIDE.get() {
            return before(info);
        }
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let sentence = format!("{place}: {}", text_of(info.payload()));
        log(wl_log_level::WL_LOG_ERROR, || sentence.clone());
        PANIC.set(Some(sentence));
    }));
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}

/// Returns a sentence with the reason why the last failed call on this thread did not return WL_OK, or "" if no call has failed. It is
/// valid until the next failed call on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn wl_last_error() -> *const c_char {
    // A thread that is exiting may have destroyed its sentence already.
    SENTENCE
        .try_with(|sentence| sentence.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Returns the errno.h number, such as ENOENT, of the file operation that the system refused in the last failed call on this thread; 0 if
/// that call failed for another reason or the system gives no number.
#[unsafe(no_mangle)]
pub extern "C" fn wl_last_os_error() -> i32 {
    OS_ERROR.try_with(Cell::get).unwrap_or(0)
}

/// Returns the name of a status, such as "WL_ERROR_IO", or "unknown status" for other numbers. Never NULL, and always valid.
#[unsafe(no_mangle)]
pub extern "C" fn wl_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 16] = [
        c"WL_OK",
        c"WL_ERROR_ARGUMENT",
        c"WL_ERROR_HANDLE",
        c"WL_ERROR_BUSY",
        c"WL_ERROR_ROOM",
        c"WL_ERROR_IO",
        c"WL_ERROR_MODEL",
        c"WL_ERROR_UNSUPPORTED",
        c"WL_ERROR_TEXT",
        c"WL_ERROR_CONTEXT",
        c"WL_ERROR_STATE",
        c"WL_ERROR_REWIND",
        c"WL_CANCELLED",
        c"WL_ERROR_INTERNAL",
        c"WL_ERROR_DEVICE",
        c"WL_ERROR_MEMORY",
    ];
    let name = usize::try_from(status)
        .ok()
        .and_then(|status| NAMES.get(status));
    name.unwrap_or(&c"unknown status").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence() -> String {
        // SAFETY: the sentence is a C string of this thread, and no other call replaces it meanwhile.
        unsafe { CStr::from_ptr(wl_last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_sentence_that_says_where() {
        assert_eq!(border(|| panic!("planted {}", 7)), WL_ERROR_INTERNAL);
        let said = sentence();
        assert!(
            said.contains("planted 7") && said.contains("status.rs"),
            "{said}"
        );
        assert_eq!(border(|| Ok(())), WL_OK);
        assert_eq!(sentence(), said, "success leaves the sentence alone");
    }

    #[test]
    fn a_payload_of_any_kind_is_caught() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in a drop");
            }
        }
        assert_eq!(
            border(|| std::panic::panic_any(Bomb)),
            wl_status::WL_ERROR_INTERNAL
        );
        assert!(sentence().contains("without a text"), "{}", sentence());
    }

    #[test]
    fn logits_of_a_damaged_model_are_no_wrong_argument() {
        let status = |error: Error| border(|| Err(Failure::from(error)));
        assert_eq!(status(Error::not_finite()), WL_ERROR_MODEL);
        assert_eq!(
            status(Error::invalid("logits", "too few")),
            WL_ERROR_ARGUMENT
        );
    }

    #[test]
    fn names_are_those_of_the_statuses() {
        let all = [
            WL_OK,
            WL_ERROR_ARGUMENT,
            WL_ERROR_HANDLE,
            WL_ERROR_BUSY,
            WL_ERROR_ROOM,
            WL_ERROR_IO,
            WL_ERROR_MODEL,
            WL_ERROR_UNSUPPORTED,
            WL_ERROR_TEXT,
            WL_ERROR_CONTEXT,
            WL_ERROR_STATE,
            WL_ERROR_REWIND,
            WL_CANCELLED,
            WL_ERROR_INTERNAL,
            WL_ERROR_DEVICE,
            WL_ERROR_MEMORY,
        ];
        for status in all {
            // SAFETY: the name is a C string.
            let name = unsafe { CStr::from_ptr(wl_status_name(status as i32)) };
            assert_eq!(name.to_str(), Ok(format!("{status:?}").as_str()));
        }
        for status in [-1, 16, i32::MAX, i32::MIN] {
            // SAFETY: the name is a C string.
            let name = unsafe { CStr::from_ptr(wl_status_name(status)) };
            assert_eq!(name, c"unknown status");
        }
    }
}
