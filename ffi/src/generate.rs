//! Generation: text out of a session, pushed to a callback or pulled piece by piece.

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use waterline::{Finish, GenerateOptions, Generation, HistoryRead, Piece, Role, Session};

use crate::hooks::{Hooks, wl_logits_fn, wl_token_fn};
use crate::open_session::{Inner, with, with_settled};
use crate::params::{self, Tagged};
use crate::pointers::{place, put, slice, text};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, border, wl_status};

/// Why a generation ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum wl_finish {
    /// The model ended its answer.
    WL_FINISH_END = 0,
    /// A stop text was met.
    WL_FINISH_STOP = 1,
    /// As many tokens as were allowed.
    WL_FINISH_LENGTH = 2,
    /// wl_session_cancel was called.
    WL_FINISH_CANCELLED = 3,
    /// The callback ended it.
    WL_FINISH_CALLBACK = 4,
}

/// When a generation ends.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_generate_params {
    /// sizeof(wl_generate_params).
    pub size: u32,
    /// 1 goes on after the token that ends an answer; 0 by default.
    pub ignore_end: u32,
    /// Most tokens; 1024 by default.
    pub max_tokens: usize,
    /// Texts, each up to its zero byte, that end the generation and are not part of it; NULL by default.
    pub stop: *const *const c_char,
    /// The number of stop texts; 0 by default.
    pub stop_count: usize,
    /// Tokens that end the generation besides the model's own; NULL by default.
    pub stop_tokens: *const u32,
    /// The number of stop tokens; 0 by default.
    pub stop_token_count: usize,
    /// 1 computes the log-probability of each token, which `on_token` gets; a session then drafts nothing. 0 by default.
    pub logprobs: u32,
    /// 0.
    pub reserved: u32,
    /// Called for each token; NULL by default.
    pub on_token: wl_token_fn,
    /// Called before each token is chosen; a session then drafts nothing. NULL by default.
    pub on_logits: wl_logits_fn,
    /// Passed to `on_token` and `on_logits`, so it lives as long as the generation; NULL by default.
    pub user: *mut c_void,
}

/// How a generation ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_generate_result {
    /// sizeof(wl_generate_result).
    pub size: u32,
    /// A wl_finish.
    pub finish: u32,
    /// Tokens that were generated, one that ends the answer included.
    pub tokens: u64,
    /// Tokens of the message that were read before; 0 for a generation without a message.
    pub prompt_tokens: u64,
    /// Seconds that reading the message took.
    pub prompt_seconds: f64,
    /// Seconds that generating took, without those between the calls.
    pub seconds: f64,
    /// Tokens of the conversation that were not read again.
    pub reused_tokens: u64,
}

/// Takes a piece of text: `length` bytes of UTF-8, whole characters, with a zero byte after them, valid during the call.
/// Returns 0 to go on, anything else to stop. It may cancel or free the session; other calls on the session return
/// WL_ERROR_BUSY. It must return: no exceptions, no longjmp.
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
        }
    }
}

// SAFETY: numbers, functions and pointers that are believed or checked when they are used, the size first.
unsafe impl Tagged for wl_generate_params {}
// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_generate_result {}

/// A generation that has begun.
pub(crate) struct Running {
    generation: Generation,
    hooks: Hooks,
    logprobs: bool,
    /// Set by a hook: no token follows.
    stopped: bool,
    /// The reason why a batch could choose no token.
    failed: Option<Failure>,
    /// The text generated so far, if it is the answer in a conversation.
    answer: Option<String>,
    /// The last piece, with a zero byte after it.
    piece: String,
    finish: Option<wl_finish>,
    prompt: HistoryRead,
    prompt_time: Duration,
    time: Duration,
}

impl Running {
    /// Takes in how the message was read, and how long that took.
    pub fn prompt(&mut self, read: HistoryRead, time: Duration) {
        (self.prompt, self.prompt_time) = (read, time);
    }

    /// The next piece with a text, or the one after which a hook stops.
    fn next(&mut self, session: &mut Session) -> Option<waterline::Result<Piece>> {
        let clock = Instant::now();
        let next = loop {
            let mut next = self.hooks.next(&mut self.generation, session);
            let Some(Ok(piece)) = &mut next else {
                break next;
            };
            self.stopped = self.hooks.show(piece);
            if self.stopped || !piece.text.is_empty() {
                break next;
            }
        };
        self.time += clock.elapsed();
        next
    }

    /// Keeps a piece, and adds it to the answer.
    fn keep(&mut self, piece: Piece) {
        self.piece = piece.text;
        if let Some(answer) = &mut self.answer {
            answer.push_str(&self.piece);
        }
        self.piece.push('\0');
    }

    /// True unless a batch could choose no token.
    pub fn goes_on(&self) -> bool {
        self.failed.is_none()
    }

    /// The last piece: its bytes, with a zero byte after them, and their number.
    pub fn piece(&self) -> (*const c_char, usize) {
        (self.piece.as_ptr().cast(), self.piece.len() - 1)
    }

    fn result(&self) -> wl_generate_result {
        wl_generate_result {
            size: 0,
            finish: self.finish.unwrap_or(wl_finish::WL_FINISH_CANCELLED) as u32,
            tokens: self.generation.tokens() as u64,
            prompt_tokens: self.prompt.read as u64,
            prompt_seconds: self.prompt_time.as_secs_f64(),
            seconds: self.time.as_secs_f64(),
            reused_tokens: self.prompt.reused as u64,
        }
    }
}

impl Inner {
    /// A generation to begin with. It is an answer in the conversation to a message that is sent, or if messages wait for one.
    pub fn prepare(
        &mut self,
        (mut options, hooks): (GenerateOptions, Hooks),
        sends: bool,
    ) -> Outcome<Running> {
        let chat = self.chat.as_ref();
        let chat = chat.filter(|chat| sends || chat.awaits_answer());
        if let Some(chat) = chat.filter(|_| options.stop_at_eos) {
            options.stop_tokens.extend(chat.end_token());
        }
        let logprobs = options.logprobs;
        let mut generation = Generation::new(self.session.model(), options)?;
        if let Some(form) = self.form.clone() {
            let last = chat.and_then(|chat| chat.messages().last());
            let goes_on = !sends && last.is_some_and(|last| last.role == Role::Assistant);
            let opens_thought = match chat.filter(|_| !goes_on) {
                Some(chat) => chat.opens_thought()?,
                None => false,
            };
            generation.constrain(if opens_thought {
                form.after_thought()
            } else {
                form
            });
        }
        let answer = chat.map(|_| String::new());
        let prompt = self.prompt.take().filter(|_| answer.is_some());
        let prompt = prompt.unwrap_or_default();
        Ok(Running {
            generation: match hooks.on_logits {
                Some(_) => generation,
                None => generation.with_drafts(&self.session),
            },
            hooks,
            logprobs,
            stopped: false,
            failed: None,
            answer,
            piece: String::new(),
            finish: None,
            prompt: prompt.0,
            prompt_time: prompt.1,
            time: Duration::ZERO,
        })
    }

    /// Generates the next piece and keeps it; false at the end.
    fn advance(&mut self) -> Outcome<bool> {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        if let Some(failure) = running.failed.take() {
            self.end(wl_finish::WL_FINISH_CANCELLED)?;
            return Err(failure);
        }
        if running.finish.is_some() {
            return Ok(false);
        }
        if running.stopped {
            self.end(wl_finish::WL_FINISH_CALLBACK)?;
            return Ok(false);
        }
        match running.next(&mut self.session) {
            Some(Ok(piece)) if piece.text.is_empty() => {
                self.end(wl_finish::WL_FINISH_CALLBACK)?;
                Ok(false)
            }
            Some(Ok(piece)) => {
                running.keep(piece);
                Ok(true)
            }
            Some(Err(error)) => {
                self.end(wl_finish::WL_FINISH_CANCELLED)?;
                Err(error.into())
            }
            None => {
                let finish = finish(running.generation.finish());
                self.end(finish)?;
                Ok(false)
            }
        }
    }

    /// True if the generation takes a token of a batch next; where it does not, it has ended.
    pub fn wants_token(&mut self) -> Outcome<bool> {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        if running.hooks.on_logits.is_some() || running.logprobs {
            return Err(Failure::new(
                wl_status::WL_ERROR_UNSUPPORTED,
                "a batch computes no log-probabilities and calls no on_logits",
            ));
        }
        running.generation.leave(&mut self.session)?;
        if running.failed.is_some() {
            return Ok(false);
        }
        if running.finish.is_none() && !running.stopped && running.generation.wants_token() {
            if !self.session.canceller().take() {
                return Ok(true);
            }
            self.end(wl_finish::WL_FINISH_CANCELLED)?;
            return Ok(false);
        }
        // Nothing but the end can follow.
        self.advance()?;
        Ok(false)
    }

    /// True if the next token is chosen under a constraint.
    pub fn chooses(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.generation.chooses())
    }

    /// Chooses the next token for a batch; none if that fails, which the next call of wl_generate_next says.
    pub fn choose(&mut self) -> Option<u32> {
        let running = self.running.as_mut()?;
        let chosen = running.generation.choose(&mut self.session);
        chosen
            .map_err(|error| running.failed = Some(error.into()))
            .ok()
    }

    /// Takes in a token that the session has read in a batch, in so much time.
    pub fn take_token(&mut self, token: u32, time: Duration) -> Outcome {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        running.time += time;
        let mut piece = running.generation.push(token);
        running.stopped = running.hooks.show(&mut piece);
        running.keep(piece);
        match (running.generation.finish(), running.stopped) {
            (None, false) => Ok(()),
            (None, true) => self.end(wl_finish::WL_FINISH_CALLBACK),
            (ended, _) => self.end(finish(ended)),
        }
    }

    /// Ends the generation: what was generated is the answer.
    fn end(&mut self, finish: wl_finish) -> Outcome {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        running.finish = Some(finish);
        running.generation.leave(&mut self.session)?;
        let answer = running.answer.take();
        if let (Some(answer), Some(chat)) = (answer, &mut self.chat) {
            chat.answered(&mut self.session, &answer)?;
        }
        Ok(())
    }

    /// Ends a generation that was left in the middle.
    pub fn settle(&mut self) -> Outcome {
        if self.running.as_ref().is_some_and(|r| r.finish.is_none()) {
            self.end(wl_finish::WL_FINISH_CALLBACK)?;
        }
        self.running = None;
        Ok(())
    }

    /// Generates to the end, and shows each piece.
    ///
    /// # Safety
    /// The function can be called with `user`.
    pub unsafe fn generate(&mut self, on_text: wl_text_fn, user: *mut c_void) -> Outcome {
        while self.advance()? {
            let (Some(on_text), Some(running)) = (on_text, &self.running) else {
                continue;
            };
            let (piece, length) = running.piece();
            // SAFETY: the caller gives a function that can be called with `user`; the piece ends with a zero byte and stays
            // during the call.
            if unsafe { on_text(piece, length, user) } != 0 {
                self.end(wl_finish::WL_FINISH_CALLBACK)?;
            }
        }
        Ok(())
    }

    /// Writes how the generation ended, unless the place is NULL.
    ///
    /// # Safety
    /// There is such a struct at `result`, or it is NULL.
    pub unsafe fn report(&self, result: *mut wl_generate_result) -> Outcome {
        match &self.running {
            // SAFETY: `write` checks the size that the struct says; the caller gives such a struct.
            Some(running) if !result.is_null() => unsafe {
                params::write("wl_generate_result", result, running.result())
            },
            _ => Ok(()),
        }
    }
}

fn finish(finish: Option<Finish>) -> wl_finish {
    match finish {
        Some(Finish::End) => wl_finish::WL_FINISH_END,
        Some(Finish::Stop) => wl_finish::WL_FINISH_STOP,
        Some(Finish::Length) => wl_finish::WL_FINISH_LENGTH,
        Some(Finish::Cancelled) | None => wl_finish::WL_FINISH_CANCELLED,
    }
}

fn no_generation() -> Failure {
    Failure::argument("no generation has been started on this session, or another call ended it")
}

/// The library's options from those at `from`, or defaults if it is NULL.
///
/// # Safety
/// What is there is such a struct, with as many stops as it says.
pub(crate) unsafe fn generate_options(
    from: *const wl_generate_params,
) -> Outcome<(GenerateOptions, Hooks)> {
    // SAFETY: `read` checks the size that the struct says; the caller gives such a struct or NULL.
    let params = unsafe { params::read("wl_generate_params", from) }?;
    // SAFETY: `slice` checks NULL, alignment and length; the caller gives as many values as it says.
    let stop = unsafe { slice("wl_generate_params.stop", params.stop, params.stop_count) }?;
    let stop = stop.iter().map(|&stop| {
        // SAFETY: `text` checks NULL and UTF-8; the caller gives as many bytes as it says, or a zero byte.
        unsafe { text("a stop text", stop, usize::MAX) }.map(str::to_string)
    });
    // SAFETY: `slice` checks NULL, alignment and length; the caller gives as many values as it says.
    let stop_tokens = unsafe {
        slice(
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
    // SAFETY: the caller gives a struct of this size.
    border(|| unsafe { params::init("wl_generate_params", params, size) })
}

/// Generates text after what has been read, and gives each piece to `on_text`, which may be NULL, with `user`. Every
/// token that is shown has been read by the session. `params` and `result`, whose size the caller has set, may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate(
    session: *mut wl_session,
    params: *const wl_generate_params,
    on_text: wl_text_fn,
    user: *mut c_void,
    result: *mut wl_generate_result,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives a function that can be called, and such structs or NULL.
        unsafe {
            params::check("wl_generate_result", result)?;
            inner.running = Some(inner.prepare(generate_options(params)?, false)?);
            inner.generate(on_text, user)?;
            inner.report(result)
        }
    })
}

/// Begins a generation that wl_generate_next carries on, for programs that pull text instead of taking callbacks.
/// `params` may be NULL. Any call on the session but wl_generate_next, wl_logits, wl_session_get_info,
/// wl_session_set_sampler and the two that cancel ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_generate_start(
    session: *mut wl_session,
    params: *const wl_generate_params,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives such a struct or NULL.
        let options = unsafe { generate_options(params) }?;
        inner.running = Some(inner.prepare(options, false)?);
        Ok(())
    })
}

/// Gives the next piece of the generation that wl_generate_start or wl_chat_start has begun: `length` bytes of UTF-8,
/// whole characters, with a zero byte after them, valid until the next call on the session. At the end `text` is NULL,
/// `length` 0, and `result` is filled, whose size the caller has set; it may be NULL.
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
        // SAFETY: the caller gives such a struct or NULL.
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
        // SAFETY: the caller gives such a struct or NULL.
        unsafe { inner.report(result) }
    })
}
