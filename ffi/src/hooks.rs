//! The C callbacks that a generation calls at each token.

use std::ffi::{c_char, c_int, c_void};

use waterline::{Generation, Piece, Session};

/// Receives a token that was generated and read, its log-probability, and the text that it completes. The log-probability is the model's
/// alone, before bias, penalties and temperature (NaN unless `logprobs` is 1). The text is `length` bytes of UTF-8 with a zero byte after
/// them, valid during the call; it is empty while a character or the beginning of a stop text is incomplete. Returns 0 to continue,
/// anything else to stop after this token. Otherwise like wl_text_fn.
pub type wl_token_fn = Option<
    unsafe extern "C" fn(
        token: u32,
        logprob: f32,
        text: *const c_char,
        length: usize,
        user: *mut c_void,
    ) -> c_int,
>;

/// Called with the `count` logits before each choice; its changes apply to that choice only. Minus infinity forbids a token. A GPU must
/// then copy all logits of every token to the host. It must return normally: no exceptions, no longjmp.
pub type wl_logits_fn =
    Option<unsafe extern "C" fn(logits: *mut f32, count: usize, user: *mut c_void)>;

/// The callbacks of a generation.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    pub on_token: wl_token_fn,
    pub on_logits: wl_logits_fn,
    pub user: *mut c_void,
}

// SAFETY: `user` is never dereferenced here, only passed back, on the thread that generates, as waterline.h documents.
unsafe impl Send for Hooks {}

impl Hooks {
    /// Passes a piece with a token to `on_token`; returns true if the generation must stop after it.
    pub fn show(&self, piece: &mut Piece) -> bool {
        let (Some(on_token), Some(token)) = (self.on_token, piece.token) else {
            return false;
        };
        let logprob = piece.logprob.unwrap_or(f32::NAN);
        let length = piece.text.len();
        piece.text.push('\0');
        // SAFETY: wl_generate_params holds a function that can be called with `user`; the text outlives the call.
        let stops = unsafe {
            on_token(
                token,
                logprob,
                piece.text.as_ptr().cast(),
                length,
                self.user,
            )
        };
        piece.text.pop();
        stops != 0
    }

    /// Returns the next piece of a generation, after calling `on_logits` if it is set.
    pub fn next(
        &self,
        generation: &mut Generation,
        session: &mut Session,
    ) -> Option<waterline::Result<Piece>> {
        let Some(on_logits) = self.on_logits else {
            return generation.next(session);
        };
        let mut hook = |logits: &mut [f32]| {
            // SAFETY: wl_generate_params holds a function that can be called with `user`; nothing else accesses the logits during the call.
            unsafe { on_logits(logits.as_mut_ptr(), logits.len(), self.user) }
        };
        generation.next_with(session, Some(&mut hook))
    }
}
