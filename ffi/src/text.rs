//! Converts text to tokens and tokens to bytes.

use std::ffi::c_char;

use crate::model::{MODELS, wl_model};
use crate::pointers::{fill, place, put, slice, text};
use crate::status::{border, wl_status};

/// Writes the tokens of `text`, `length` bytes of UTF-8, to `tokens`, which has room for `room`, and their number to `count`. Returns
/// WL_ERROR_ROOM if they do not fit; with `tokens` NULL and `room` 0 only the number is written. No token is added before or after the
/// text. If `special` is not 0, the names of special tokens in the text become those tokens, as in a template; otherwise they are ordinary
/// characters, as they should be in user input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_tokenize(
    model: *const wl_model,
    text: *const c_char,
    length: usize,
    special: u32,
    tokens: *mut u32,
    room: usize,
    count: *mut usize,
) -> wl_status {
    border(|| {
        let tokenizer = MODELS.get(model)?.model.tokenizer()?;
        // SAFETY: the caller passes `length` bytes.
        let text = unsafe { self::text("text", text, length) }?;
        let found = match special {
            0 => tokenizer.encode(text)?,
            _ => tokenizer.encode_with_special(text)?,
        };
        // SAFETY: the caller provides room for `room` tokens.
        unsafe { fill(&found, None, tokens, room, count) }
    })
}

/// Writes the exact bytes of `tokens` and a zero byte to `bytes`, which has room for `room`, and the number of bytes without the zero byte
/// to `length`. The bytes may begin or end inside a character. Returns WL_ERROR_ROOM if bytes and zero byte do not fit; with `bytes` NULL
/// and `room` 0 only the length is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_detokenize(
    model: *const wl_model,
    tokens: *const u32,
    count: usize,
    bytes: *mut c_char,
    room: usize,
    length: *mut usize,
) -> wl_status {
    border(|| {
        let model = &MODELS.get(model)?.model;
        let tokenizer = model.tokenizer()?;
        // SAFETY: the caller passes `count` tokens.
        let tokens = unsafe { slice("tokens", tokens, count) }?;
        let mut text = Vec::new();
        model.check_token_ids(tokens)?;
        for &token in tokens {
            text.extend_from_slice(tokenizer.token_bytes(token));
        }
        // SAFETY: the caller provides room for `room` bytes.
        unsafe { fill(&text, Some(0), bytes.cast::<u8>(), room, length) }
    })
}

/// Stores a pointer to the exact bytes of a token, possibly part of a character, without a zero byte. They are valid until the model is
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_token_bytes(
    model: *const wl_model,
    token: u32,
    bytes: *mut *const c_char,
    length: *mut usize,
) -> wl_status {
    border(|| {
        let model = &MODELS.get(model)?.model;
        place("the place for the bytes", bytes)?;
        place("the place for the length", length)?;
        model.check_token_ids(&[token])?;
        let tokenizer = model.tokenizer()?;
        let found = tokenizer.token_bytes(token);
        // SAFETY: both are checked.
        unsafe {
            put(bytes, found.as_ptr().cast());
            put(length, found.len());
        }
        Ok(())
    })
}
