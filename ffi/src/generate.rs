//! Generating text from a session, pushed to a callback or pulled piece by piece.

use std::ffi::{c_char, c_int, c_void};

use waterline::{GenerateOptions, ThoughtOptions, ThoughtTags};

use crate::generation::no_generation;
use crate::hooks::{Hooks, wl_logits_fn, wl_token_fn};
use crate::open_session::{with, with_settled};
use crate::params::{self, Tagged};
use crate::pointers::{list, place, put, text};
use crate::session::wl_session;
use crate::status::{Outcome, border, wl_status};

/// The reason why a generation ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum wl_finish {
    /// The model ended its answer.
    WL_FINISH_END = 0,
    /// A stop text was generated.
    WL_FINISH_STOP = 1,
    /// The maximum number of tokens was generated.
    WL_FINISH_LENGTH = 2,
    /// wl_session_cancel was called.
    WL_FINISH_CANCELLED = 3,
    /// The callback stopped it.
    WL_FINISH_CALLBACK = 4,
}

/// Parameters of a generation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_generate_params {
    /// sizeof(wl_generate_params).
    pub size: u32,
    /// 1 continues after the token that ends an answer; 0 by default.
    pub ignore_end: u32,
    /// The maximum number of tokens; 1024 by default.
    pub max_tokens: usize,
    /// Zero-terminated texts that end the generation and are not part of it; NULL by default.
    pub stop: *const *const c_char,
    /// The number of stop texts; 0 by default.
    pub stop_count: usize,
    /// Tokens that end the generation in addition to the model's; NULL by default.
    pub stop_tokens: *const u32,
    /// The number of stop tokens; 0 by default.
    pub stop_token_count: usize,
    /// 1 computes the log-probability of each token for `on_token`; the session then does not draft. 0 by default.
    pub logprobs: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// Called for each token; NULL by default.
    pub on_token: wl_token_fn,
    /// Called before each token is chosen; the session then does not draft. NULL by default.
    pub on_logits: wl_logits_fn,
    /// Passed to `on_token` and `on_logits`, so it must live as long as the generation; NULL by default.
    pub user: *mut c_void,
    /// The maximum number of tokens of the thought with which an answer begins; its closing tag follows them, and the answer. -1, the
    /// default, sets no limit; 0 closes the thought at once.
    pub thought_tokens: i64,
}

/// The result of a generation.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_generate_result {
    /// sizeof(wl_generate_result).
    pub size: u32,
    /// A wl_finish.
    pub finish: u32,
    /// The number of generated tokens, including a token that ends the answer.
    pub tokens: u64,
    /// The number of tokens of the message that were read first; 0 for a generation without a message.
    pub prompt_tokens: u64,
    /// The seconds that reading the message took.
    pub prompt_seconds: f64,
    /// The seconds that generating took, without the time between calls.
    pub seconds: f64,
    /// The number of tokens of the conversation that were not read again.
    pub reused_tokens: u64,
}

/// Receives a piece of text: `length` bytes of UTF-8, complete characters, with a zero byte after them, valid during the call. Returns 0 to
/// continue, anything else to stop. It may cancel or free the session; other calls on the session return WL_ERROR_BUSY. It must return
/// normally: no exceptions, no longjmp.
pub type wl_text_fn =
    Option<unsafe extern "C" fn(text: *const c_char, length: usize, user: *mut c_void) -> c_int>;

impl Default for wl_generate_params {
    fn default() -> Self {
        wl_generate_params {
            size: size_of::<Self>() as u32,
            ignore_end: 0,
            max_tokens: GenerateOptions::default().max_tokens,
            stop: std::ptr::null(),
            stop_count: 0,
            stop_tokens: std::ptr::null(),
            stop_token_count: 0,
            logprobs: 0,
            reserved: 0,
            on_token: None,
            on_logits: None,
            user: std::ptr::null_mut(),
            thought_tokens: -1,
        }
    }
}

// SAFETY: the struct holds numbers, functions and pointers that are checked before use or trusted, and its size comes first.
unsafe impl Tagged for wl_generate_params {}
// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_generate_result {}

/// Converts the struct at `from` to the library's options, or returns the defaults if it is NULL.
///
/// # Safety
/// `from` points to such a struct with the numbers of stops stored in it, or is NULL.
pub(crate) unsafe fn generate_options(
    from: *const wl_generate_params,
) -> Outcome<(GenerateOptions, Hooks)> {
    // SAFETY: `read` checks the size stored in the struct; the caller passes such a struct or NULL.
    let params = unsafe { params::read("wl_generate_params", from) }?;
    params::check_reserved("wl_generate_params.reserved", params.reserved)?;
    // SAFETY: `list` checks NULL, alignment and length; the caller passes `stop_count` texts.
    let stop = unsafe { list("wl_generate_params.stop", params.stop, params.stop_count) }?;
    let stop = stop.iter().map(|&stop| {
        // SAFETY: `text` checks NULL and UTF-8; the caller passes zero-terminated texts.
        unsafe { text("a stop text", stop, usize::MAX) }.map(str::to_string)
    });
    // SAFETY: `list` checks NULL, alignment and length; the caller passes `stop_token_count` tokens.
    let stop_tokens = unsafe {
        list(
            "wl_generate_params.stop_tokens",
            params.stop_tokens,
            params.stop_token_count,
        )
    }?;
    let mut options = GenerateOptions::default();
    options.max_tokens = params.max_tokens;
    options.stop = stop.collect::<Outcome<_>>()?;
    options.stop_at_eos = params.ignore_end == 0;
    options.stop_tokens.extend_from_slice(stop_tokens);
    options.logprobs = params.logprobs != 0;
    if let Ok(budget) = usize::try_from(params.thought_tokens) {
        // A conversation replaces the tags by those of its template.
        let mut thought = ThoughtOptions::new(ThoughtTags::THINK, false);
        thought.budget = Some(budget);
        options.thought = Some(thought);
    }
    let hooks = Hooks {
        on_token: params.on_token,
        on_logits: params.on_logits,
        user: params.user,
    };
    Ok((options, hooks))
}

/// Fills `params` with defaults; `size` is sizeof(wl_generate_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate_params_init(
    params: *mut wl_generate_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_generate_params", params, size) })
}

/// Generates text after the tokens read so far, and passes each piece to `on_text`, which may be NULL, with `user`. The session has read
/// every token of a piece before the callback receives it. `params` and `result`, whose size the caller has set, may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate(
    session: *mut wl_session,
    params: *const wl_generate_params,
    on_text: wl_text_fn,
    user: *mut c_void,
    result: *mut wl_generate_result,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes a function that can be called, and such structs or NULL.
        unsafe {
            params::check("wl_generate_result", result)?;
            inner.running = Some(inner.prepare(generate_options(params)?, false)?);
            inner.generate(on_text, user)?;
            inner.report(result)
        }
    })
}

/// Begins a generation that wl_generate_next advances, for programs that pull text instead of taking callbacks. `params` may be NULL. The
/// generation ends with any other call on the session except wl_logits, wl_session_get_info, wl_session_set_sampler, wl_session_cancel and
/// wl_session_clear_cancel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate_start(
    session: *mut wl_session,
    params: *const wl_generate_params,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes such a struct or NULL.
        let options = unsafe { generate_options(params) }?;
        inner.running = Some(inner.prepare(options, false)?);
        Ok(())
    })
}

/// Stores the next piece of the generation that wl_generate_start or wl_chat_start began: `length` bytes of UTF-8, complete characters,
/// with a zero byte after them, valid until the next call on the session. At the end `text` is NULL, `length` is 0, and `result`, whose
/// size the caller has set, is filled; it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate_next(
    session: *mut wl_session,
    text: *mut *const c_char,
    length: *mut usize,
    result: *mut wl_generate_result,
) -> wl_status {
    with(session, |inner| {
        place("the place for the text", text)?;
        place("the place for the length", length)?;
        // SAFETY: the caller passes such a struct or NULL.
        unsafe { params::check("wl_generate_result", result) }?;
        let more = inner.advance()?;
        let running = inner.running.as_ref().ok_or_else(no_generation)?;
        let (piece, bytes) = if more {
            running.piece()
        } else {
            (std::ptr::null(), 0)
        };
        // SAFETY: both are checked.
        unsafe {
            put(text, piece);
            put(length, bytes);
        }
        if more {
            return Ok(());
        }
        // SAFETY: the caller passes such a struct or NULL.
        unsafe { inner.report(result) }
    })
}
