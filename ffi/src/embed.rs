//! Vectors of texts.

use std::ffi::c_char;

use waterline::{EmbedOptions, Pooling};

use crate::model::{MODELS, wl_model};
use crate::open_session::with_settled;
use crate::params::{self, Tagged, check_reserved};
use crate::pointers::{ZERO_TERMINATED, fill, slice, text};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, border, wl_status};

/// How the final states of a text become its vector.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum wl_pooling {
    /// As the model's files state it.
    WL_POOLING_MODEL = 0,
    /// The mean of all states.
    WL_POOLING_MEAN = 1,
    /// The state of the first token.
    WL_POOLING_CLS = 2,
    /// The state of the last token.
    WL_POOLING_LAST = 3,
}

/// Parameters of vectors.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_embed_params {
    /// sizeof(wl_embed_params).
    pub size: u32,
    /// A wl_pooling; WL_POOLING_MODEL by default.
    pub pooling: u32,
    /// 1 for vectors of unit length, 0 for others; -1, the default, as the model's files state it.
    pub normalize: i32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// The length to which vectors are cut, which the model's files must allow; 0, the default, does not cut them.
    pub dimensions: usize,
}

impl Default for wl_embed_params {
    fn default() -> Self {
        wl_embed_params {
            size: 0,
            pooling: wl_pooling::WL_POOLING_MODEL as u32,
            normalize: -1,
            reserved: 0,
            dimensions: 0,
        }
    }
}

// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_embed_params {}

impl wl_embed_params {
    fn options(&self) -> Outcome<EmbedOptions> {
        check_reserved("wl_embed_params.reserved", self.reserved)?;
        let mut options = EmbedOptions::default();
        let kinds = [
            (wl_pooling::WL_POOLING_MODEL, None),
            (wl_pooling::WL_POOLING_MEAN, Some(Pooling::Mean)),
            (wl_pooling::WL_POOLING_CLS, Some(Pooling::Cls)),
            (wl_pooling::WL_POOLING_LAST, Some(Pooling::Last)),
        ];
        let kind = kinds.iter().find(|(kind, _)| *kind as u32 == self.pooling);
        let wrong = || {
            let found = self.pooling;
            let sentence = format!("wl_embed_params.pooling: found {found}, expected a wl_pooling");
            Failure::argument(sentence)
        };
        options.pooling = kind.ok_or_else(wrong)?.1;
        options.normalize = match self.normalize {
            -1 => None,
            0 => Some(false),
            1 => Some(true),
            number => {
                return Err(Failure::argument(format!(
                    "wl_embed_params.normalize: found {number}, expected -1, 0 or 1"
                )));
            }
        };
        options.dimensions = Some(self.dimensions).filter(|&length| length > 0);
        Ok(options)
    }
}

/// Fills `params` with defaults; `size` is sizeof(wl_embed_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_embed_params_init(
    params: *mut wl_embed_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_embed_params", params, size) })
}

/// Like wl_tokenize, for a text whose vector wl_embed computes: with the tokens that the tokenizer puts around a text. `task` names a
/// prompt of the model's files that comes before the text, such as "query"; NULL means the files' default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_embed_tokenize(
    model: *const wl_model,
    text: *const c_char,
    length: usize,
    task: *const c_char,
    tokens: *mut u32,
    room: usize,
    count: *mut usize,
) -> wl_status {
    border(|| {
        let model = &MODELS.get(model)?.model;
        // SAFETY: the caller passes `length` bytes.
        let text = unsafe { self::text("text", text, length) }?;
        let task = match task.is_null() {
            true => None,
            // SAFETY: the caller passes a zero-terminated text.
            false => Some(unsafe { self::text("task", task, ZERO_TERMINATED) }?),
        };
        let found = model.embedding_tokens(text, task)?;
        // SAFETY: the caller provides room for `room` tokens.
        unsafe { fill(&found, None, tokens, room, count) }
    })
}

/// Computes the vector of a text of `count` tokens and writes it to `vector`, which has room for `room` numbers, and its length to
/// `length`; `params` may be NULL. Returns WL_ERROR_ROOM if it does not fit; with `vector` NULL and `room` 0 only the length is written and
/// nothing is read. The session forgets everything else that it has read. No logits are computed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_embed(
    session: *mut wl_session,
    tokens: *const u32,
    count: usize,
    params: *const wl_embed_params,
    vector: *mut f32,
    room: usize,
    length: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `count` tokens.
        let tokens = unsafe { slice("tokens", tokens, count) }?;
        // SAFETY: the caller passes such a struct or NULL.
        let options = unsafe { params::read("wl_embed_params", params) }?.options()?;
        let zeros = inner.session.model().pooler(&options)?.vector();
        // SAFETY: the caller provides room for `room` numbers.
        unsafe { fill(&zeros, None, vector, room, length) }?;
        if vector.is_null() {
            return Ok(());
        }
        inner.chat = None;
        let found = inner.session.embed(tokens, &options)?;
        // SAFETY: the caller provides room for `room` numbers.
        unsafe { fill(&found, None, vector, room, length) }
    })
}
