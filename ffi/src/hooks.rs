//! The functions of C that a generation calls at each token.

use std::ffi::{c_char, c_int, c_void};

use waterline::{Generation, Piece, Session};

/// Takes a token that was generated and read, with its log-probability by the model alone, before bias, penalties and temperature (NaN
/// unless `logprobs` is 1), and the text that it completes: `length` bytes of UTF-8, with a zero byte after them, valid during the
/// call; none while a character or the beginning of a stop text is incomplete. Returns 0 to go on, anything else to stop after it.
/// Otherwise as wl_text_fn.
pub type wl_token_fn = Option<
    unsafe extern "C" fn(
        token: u32,
        logprob: f32,
        text: *const c_char,
        length: usize,
        user: *mut c_void,
    ) -> c_int,
>;

/// Sees the logits, `count` numbers, before a token is chosen by them; what it changes holds for that choice. Minus infinity forbids a
/// token. A GPU then sends all logits of every token. It must return: no exceptions, no longjmp.
pub type wl_logits_fn =
    Option<unsafe extern "C" fn(logits: *mut f32, count: usize, user: *mut c_void)>;

/// The functions that a generation calls.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    pub on_token: wl_token_fn,
    pub on_logits: wl_logits_fn,
    pub user: *mut c_void,
}

// SAFETY: `user` is not read here, only given back, on the thread that generates, as waterline.h says.
unsafe impl Send for Hooks {}

impl Hooks {
    /// Shows a piece with a token; true if the generation is to stop after it.
    pub fn show(&self, piece: &mut Piece) -> bool {
        let (Some(on_token), Some(token)) = (self.on_token, piece.token) else {
            return false;
        };
        let logprob = piece.logprob.unwrap_or(f32::NAN);
        let length = piece.text.len();
        piece.text.push('\0');
        // SAFETY: wl_generate_params was given a function that can be called with `user`; the text stays during the call.
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

    /// The next piece of a generation, any hook on logits called before.
    pub fn next(
        &self,
        generation: &mut Generation,
        session: &mut Session,
    ) -> Option<waterline::Result<Piece>> {
        let Some(on_logits) = self.on_logits else {
            return generation.next(session);
        };
        let mut hook = |logits: &mut [f32]| {
            // SAFETY: wl_generate_params was given a function that can be called with `user`; the numbers are this call's alone.
            unsafe { on_logits(logits.as_mut_ptr(), logits.len(), self.user) }
        };
        generation.next_with(session, Some(&mut hook))
    }
}
