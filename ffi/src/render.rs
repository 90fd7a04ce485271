//! The text of a conversation, as the model's template writes it.

use std::ffi::c_char;

use serde_json::{Map, Value};
use waterline::{CallFormat, Message, TemplateOptions};

use crate::answer::tools;
use crate::model::{MODELS, wl_model};
use crate::params::{self, Tagged};
use crate::pointers::{fill, text};
use crate::status::{Failure, Outcome, border, wl_status};

/// A conversation to be rendered. The texts are zero-terminated JSON.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_render_params {
    /// sizeof(wl_render_params).
    pub size: u32,
    /// 1, the default, appends the beginning of the next answer; 0 does not.
    pub add_generation_prompt: u32,
    /// The messages, as for wl_session_set_messages.
    pub messages: *const c_char,
    /// The functions that the model may call, as for wl_chat_tools; NULL, the default, means none.
    pub tools: *const c_char,
    /// An object with more variables of the template, such as {"enable_thinking": false, "reasoning_effort": "low"}; NULL, the default, means
    /// none.
    pub variables: *const c_char,
}

impl Default for wl_render_params {
    fn default() -> Self {
        wl_render_params {
            size: size_of::<Self>() as u32,
            add_generation_prompt: 1,
            messages: std::ptr::null(),
            tools: std::ptr::null(),
            variables: std::ptr::null(),
        }
    }
}

// SAFETY: the struct holds numbers and pointers that are checked before use or trusted, and its size comes first.
unsafe impl Tagged for wl_render_params {}

impl wl_render_params {
    /// Converts the messages and the template's variables.
    ///
    /// # Safety
    /// The texts are zero-terminated or NULL.
    unsafe fn conversation(&self) -> Outcome<(Vec<Message>, TemplateOptions)> {
        // SAFETY: `text` checks NULL and UTF-8; the caller passes zero-terminated texts.
        let json = |what: &str, json| unsafe { text(what, json, usize::MAX) };
        let messages = json("wl_render_params.messages", self.messages)?;
        let messages = serde_json::from_str(messages)
            .map_err(|error| Failure::argument(format!("the messages: {error}")))?;
        let mut options = TemplateOptions::default();
        if !self.tools.is_null() {
            options.tools = tools(json("wl_render_params.tools", self.tools)?)?;
        }
        if !self.variables.is_null() {
            let variables = json("wl_render_params.variables", self.variables)?;
            let variables: Map<String, Value> = serde_json::from_str(variables)
                .map_err(|error| Failure::argument(format!("the variables: {error}")))?;
            for (name, value) in variables {
                options.set(&name, value)?;
            }
        }
        Ok((messages, options))
    }
}

/// Fills `params` with defaults; `size` is sizeof(wl_render_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_render_params_init(
    params: *mut wl_render_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_render_params", params, size) })
}

/// Writes a conversation as the model's template does, in ChatML if the model has none, and a zero byte to `text`, which has room for `room`
/// bytes, and the length without the zero byte to `length`. Returns WL_ERROR_ROOM if both do not fit; with `text` NULL and `room` 0 only the
/// length is written. If the template does not list tools, the system message has instructions for them, as with wl_chat_tools.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_render(
    model: *const wl_model,
    params: *const wl_render_params,
    text: *mut c_char,
    room: usize,
    length: *mut usize,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        // SAFETY: the caller passes such a struct or NULL.
        let params = unsafe { params::read("wl_render_params", params) }?;
        // SAFETY: the caller's texts are zero-terminated or NULL.
        let (messages, options) = unsafe { params.conversation() }?;
        let template = model.model.chat_template_or_chatml()?;
        let add_generation_prompt = params.add_generation_prompt != 0;
        let tokenizer = model.model.tokenizer()?;
        let is_token = |text: &str| tokenizer.token_id(text).is_some();
        let format = CallFormat::for_tools(template.source(), is_token);
        let rendered =
            template.render_with_options(&messages, add_generation_prompt, &options, format)?;
        // SAFETY: the caller provides room for `room` bytes.
        unsafe {
            fill(
                rendered.as_bytes(),
                Some(0),
                text.cast::<u8>(),
                room,
                length,
            )
        }
    })
}
