//! Conversations: turns as the model's chat template has them.

use std::ffi::{c_char, c_void};
use std::time::Instant;

use waterline::{Chat, HistoryRead, Message, Role, Session};

use crate::generate::{generate_options, wl_generate_params, wl_generate_result, wl_text_fn};
use crate::open_session::{Inner, with_settled};
use crate::params;
use crate::pointers::{fill, place_if_wanted, put_if_wanted, slice, text};
use crate::progress::Hearing;
use crate::session::wl_session;
use crate::status::{Failure, Outcome, wl_status};

/// A message of a conversation. Both texts end at their zero byte.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_message {
    /// "system", "user", "assistant", or another that the model's template takes.
    pub role: *const c_char,
    /// What is said.
    pub content: *const c_char,
}

impl Inner {
    /// The conversation, begun if there is none.
    fn chat(&mut self) -> Outcome<(&mut Chat, &mut Session)> {
        let chat = match self.chat.take() {
            Some(chat) => chat,
            None => Chat::new(&self.session)?,
        };
        Ok((self.chat.insert(chat), &mut self.session))
    }

    /// Sends a message and begins the answer.
    ///
    /// # Safety
    /// As [`wl_chat_start`].
    unsafe fn send(
        &mut self,
        message: *const c_char,
        length: usize,
        params: *const wl_generate_params,
    ) -> Outcome {
        // SAFETY: `text` checks NULL and UTF-8; the caller gives as many bytes as it says, or a zero byte.
        let message = unsafe { text("message", message, length) }?;
        // SAFETY: `read` checks the size that the struct says; the caller gives such a struct or NULL.
        let options = unsafe { generate_options(params) }?;
        // What can fail without the message comes before it.
        self.chat()?;
        let mut running = self.prepare(options, true)?;
        let mut hearing = Hearing::new(&self.session, self.progress);
        let clock = Instant::now();
        let (chat, session) = self.chat()?;
        let read = chat.send(session, message, |read, of| hearing.hear(read, of))?;
        running.prompt(read, clock.elapsed());
        self.running = Some(running);
        Ok(())
    }
}

/// A message of C's.
///
/// # Safety
/// Its texts end at their zero bytes.
unsafe fn message(index: usize, message: &wl_message) -> Outcome<Message> {
    let of = |part| format!("messages[{index}].{part}");
    // SAFETY: `text` checks NULL and UTF-8; the caller gives as many bytes as it says, or a zero byte.
    let role = unsafe { text(&of("role"), message.role, usize::MAX) }?;
    // SAFETY: `text` checks NULL and UTF-8; the caller gives as many bytes as it says, or a zero byte.
    let content = unsafe { text(&of("content"), message.content, usize::MAX) }?;
    let role = Role::from(role.to_string());
    Ok(Message::new(role, content))
}

impl Inner {
    /// The conversation becomes these messages; how many tokens were reused and read.
    fn set_messages(&mut self, messages: Vec<Message>) -> Outcome<HistoryRead> {
        let mut hearing = Hearing::new(&self.session, self.progress);
        let clock = Instant::now();
        let (chat, session) = self.chat()?;
        let read = chat.set_messages(session, messages, |read, of| hearing.hear(read, of))?;
        self.prompt = Some((read, clock.elapsed()));
        Ok(read)
    }
}

/// The conversation becomes `count` messages, whatever it was before: a history that grew, was edited, lost its thinking text or comes
/// from another process. What the states at hand have read of it, the session's own and those of its store, is not read again.
///
/// The model's template decides which messages it takes. After a last message of the user, wl_generate gives the answer, which
/// becomes part of the conversation, and where the last message is an answer, it goes on with it; wl_chat_say adds a message.
/// On errors the conversation is as it was; on WL_CANCELLED the session has read some first tokens of the messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_set_messages(
    session: *mut wl_session,
    messages: *const wl_message,
    count: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives so many messages.
        let messages = unsafe { slice("messages", messages, count) }?;
        let messages = messages.iter().enumerate().map(|(index, message)| {
            // SAFETY: the caller's texts end at zero bytes.
            unsafe { self::message(index, message) }
        });
        inner.set_messages(messages.collect::<Outcome<_>>()?)?;
        Ok(())
    })
}

/// As wl_chat_set_messages, for messages as JSON: an array of objects with "role", "content" (a text, null, or parts of type "text"), and
/// whatever else the template takes, such as "name" or "tool_calls". How many tokens were reused and read is written to `reused`
/// and `read`, which may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_set_messages(
    session: *mut wl_session,
    json: *const c_char,
    length: usize,
    reused: *mut usize,
    read: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives so many bytes.
        let json = unsafe { text("json", json, length) }?;
        let messages = serde_json::from_str(json)
            .map_err(|error| Failure::argument(format!("the messages: {error}")))?;
        place_if_wanted("the place for the tokens reused", reused)?;
        place_if_wanted("the place for the tokens read", read)?;
        let found = inner.set_messages(messages)?;
        // SAFETY: the caller gives places or NULL.
        unsafe {
            put_if_wanted("the place for the tokens reused", reused, found.reused)?;
            put_if_wanted("the place for the tokens read", read, found.read)
        }
    })
}

/// Sets the instructions ahead of the conversation, before its first message; an empty text removes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_system(
    session: *mut wl_session,
    text: *const c_char,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives so many bytes.
        let text = unsafe { self::text("text", text, length) }?;
        Ok(inner.chat()?.0.set_system(text)?)
    })
}

/// Sets, from the next message on, whether the model's template requests a thought before the answer: 1 or 0, or -1 as the template does
/// by default. Templates without such a switch ignore it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_thinking(session: *mut wl_session, thinking: i32) -> wl_status {
    with_settled(session, |inner| {
        let thinking = match thinking {
            -1 => None,
            0 => Some(false),
            1 => Some(true),
            other => {
                let reason = format!("thinking: found {other}, expected 0, 1 or -1");
                return Err(Failure::argument(reason));
            }
        };
        Ok(inner.chat()?.0.set_thinking(thinking)?)
    })
}

/// Names, from the next message on, the functions that the model may call: a JSON array of schemas as the model's template takes them,
/// such as {"type": "function", "function": {"name", "description", "parameters"}}. An empty array removes them. A call that the model
/// makes is part of its text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_tools(
    session: *mut wl_session,
    json: *const c_char,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller gives so many bytes.
        let json = unsafe { text("json", json, length) }?;
        let tools = serde_json::from_str(json)
            .map_err(|error| Failure::argument(format!("the tools: {error}")))?;
        Ok(inner.chat()?.0.set_tools(tools)?)
    })
}

/// Sends a message and gives the answer, piece by piece, to `on_text`, which may be NULL, with `user`. Only what is new
/// is read: the conversation before is in the state. If the message cannot be read as a whole, it was not sent.
/// Whatever ends the answer, it is part of the conversation as far as it came. `params` and `result` as in wl_generate.
///
/// A session is a conversation from the first wl_chat call on until wl_session_reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_say(
    session: *mut wl_session,
    message: *const c_char,
    length: usize,
    params: *const wl_generate_params,
    on_text: wl_text_fn,
    user: *mut c_void,
    result: *mut wl_generate_result,
) -> wl_status {
    // SAFETY: `check` and `send` check the pointers; the caller gives a text as long as it says, such structs or NULL, and a function
    // that can be called.
    with_settled(session, |inner| unsafe {
        params::check("wl_generate_result", result)?;
        inner.send(message, length, params)?;
        inner.generate(on_text, user)?;
        inner.report(result)
    })
}

/// Sends a message and begins the answer, which wl_generate_next carries on. A call that ends the generation early, as
/// wl_generate_start says, makes what was generated the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_start(
    session: *mut wl_session,
    message: *const c_char,
    length: usize,
    params: *const wl_generate_params,
) -> wl_status {
    // SAFETY: `send` checks the pointers; the caller gives a text as long as it says, and such a struct or NULL.
    with_settled(session, |inner| unsafe {
        inner.send(message, length, params)
    })
}

/// Takes back the last message of the user and what follows it. A store or marks in wl_session_params make the state before it
/// available at once; without them the messages before may be read again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_undo(session: *mut wl_session) -> wl_status {
    with_settled(session, |inner| {
        let (chat, session) = inner.chat()?;
        match chat.undo(session)? {
            Some(_) => Ok(()),
            None => Err(Failure::argument("nothing has been said yet")),
        }
    })
}

/// Writes the conversation to `json`, which has room for `room` bytes, as an array of {"role", "content"} with a zero
/// byte after it; `length` is its length without it. WL_ERROR_ROOM if both do not fit; with `json` NULL and `room` 0
/// only the length is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_messages_json(
    session: *mut wl_session,
    json: *mut c_char,
    room: usize,
    length: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        let messages = inner.chat.as_ref().map_or(&[][..], Chat::messages);
        let text = serde_json::to_vec(messages)
            .map_err(|error| Failure::argument(format!("the conversation: {error}")))?;
        // SAFETY: the caller gives so much room.
        unsafe { fill(&text, Some(0), json.cast::<u8>(), room, length) }
    })
}
