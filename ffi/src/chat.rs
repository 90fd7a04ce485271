//! Conversations, formatted by the model's chat template.

use std::ffi::{c_char, c_void};
use std::time::Instant;

use serde_json::Value;
use waterline::{Answer, Chat, HistoryRead, Message, Role, Session, ToolCall};

use crate::answer::{self, OpenParser};

use crate::generate::{generate_options, wl_generate_params, wl_generate_result, wl_text_fn};
use crate::open_session::{Inner, with_settled};
use crate::params;
use crate::pointers::{fill, list, place_if_wanted, put_if_wanted, text};
use crate::progress::Hearing;
use crate::session::wl_session;
use crate::status::{Failure, Outcome, wl_status};

/// A message of a conversation. Both texts are zero-terminated.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_message {
    /// "system", "user", "assistant", or another role that the model's template accepts.
    pub role: *const c_char,
    /// The text.
    pub content: *const c_char,
}

impl Inner {
    /// Returns the conversation, which is started if there is none.
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
    /// Like [`wl_chat_start`].
    unsafe fn send(
        &mut self,
        message: *const c_char,
        length: usize,
        params: *const wl_generate_params,
    ) -> Outcome {
        // SAFETY: `text` checks NULL and UTF-8; the caller passes `length` bytes, or a zero byte.
        let message = unsafe { text("message", message, length) }?;
        // SAFETY: `read` checks the size stored in the struct; the caller passes such a struct or NULL.
        let options = unsafe { generate_options(params) }?;
        // Failures that do not depend on the message are reported before it is read.
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

/// Converts a message from C.
///
/// # Safety
/// Its texts are zero-terminated.
unsafe fn message(index: usize, message: &wl_message) -> Outcome<Message> {
    let of = |part| format!("messages[{index}].{part}");
    // SAFETY: `text` checks NULL and UTF-8; the caller passes a zero-terminated text.
    let role = unsafe { text(&of("role"), message.role, usize::MAX) }?;
    // SAFETY: `text` checks NULL and UTF-8; the caller passes a zero-terminated text.
    let content = unsafe { text(&of("content"), message.content, usize::MAX) }?;
    let role = Role::from(role.to_string());
    Ok(Message::new(role, content))
}

impl Inner {
    /// Replaces the conversation with these messages; returns the numbers of tokens reused and read.
    fn set_messages(&mut self, messages: Vec<Message>) -> Outcome<HistoryRead> {
        let mut hearing = Hearing::new(&self.session, self.progress);
        let clock = Instant::now();
        let (chat, session) = self.chat()?;
        let read = chat.set_messages(session, messages, |read, of| hearing.hear(read, of))?;
        self.prompt = Some((read, clock.elapsed()));
        Ok(read)
    }
}

impl Inner {
    /// Returns the parser of the running generation, or of the last one, if it is there; otherwise that of the next answer.
    pub fn parser(&mut self, or_last: bool) -> Outcome<OpenParser> {
        let running = self.running.as_ref();
        if let Some(running) = running.filter(|running| or_last || running.is_running()) {
            let (syntax, before) = running.syntax();
            return Ok(OpenParser::new(syntax.clone(), before));
        }
        let (chat, _) = self.chat()?;
        Ok(OpenParser::new(chat.answer_syntax()?, continued(chat)))
    }

    /// Adds the results of the calls in the last answer.
    fn add_results(&mut self, results: &[&str]) -> Outcome {
        let (chat, _) = self.chat()?;
        let mut messages = chat.messages().to_vec();
        let last = messages
            .last_mut()
            .filter(|last| last.role == Role::Assistant);
        let last =
            last.ok_or_else(|| Failure::argument("results: the last message is no answer"))?;
        let mut called = last.clone();
        if !last.fields.contains_key("tool_calls") {
            let read = answer::read(chat.answer_syntax()?, &last.content);
            called = message_of(&read, chat.messages().len())?;
        }
        let calls = called.fields.get("tool_calls").and_then(Value::as_array);
        let calls = calls.map_or(&[][..], Vec::as_slice);
        if calls.len() != results.len() {
            let sentence = format!(
                "results: found {}, expected {}, one for each call of the last answer",
                results.len(),
                calls.len()
            );
            return Err(Failure::argument(sentence));
        }
        if chat.lists_tools() {
            last.clone_from(&called);
            let results = calls.iter().zip(results);
            messages.extend(results.map(|(call, result)| tool_message(call, result)));
        } else {
            // Such a template knows calls and results as text only, and may know no other roles.
            let tagged = |result: &&str| format!("<tool_response>\n{result}\n</tool_response>");
            let tagged: Vec<String> = results.iter().map(tagged).collect();
            messages.push(Message::new(Role::User, tagged.join("\n")));
        }
        self.set_messages(messages)?;
        Ok(())
    }
}

/// The message with the result of a call.
fn tool_message(call: &Value, result: &str) -> Message {
    let mut message = Message::new(Role::Other("tool".into()), result);
    let name = call.get("function").unwrap_or(call).get("name");
    for (field, value) in [("tool_call_id", call.get("id")), ("name", name)] {
        let value = value.map(|value| (field.to_string(), value.clone()));
        message.fields.extend(value);
    }
    message
}

/// The message of an answer whose calls are fields. Calls without an id get one; `number` is the number of messages before.
fn message_of(answer: &Answer, number: usize) -> Outcome<Message> {
    let id = |index: usize, call: &ToolCall| {
        let made = format!("call_{number}_{index}");
        Some(call.id.clone().unwrap_or(made))
    };
    Message::try_from(answer::fields(answer, id))
        .map_err(|reason| Failure::argument(format!("the answer: {reason}")))
}

/// The text that the next answer continues.
pub(crate) fn continued(chat: &Chat) -> &str {
    let last = chat.messages().last().filter(|_| chat.awaits_answer());
    let last = last.filter(|last| last.role == Role::Assistant);
    last.map_or("", |last| last.content.as_str())
}

/// Adds the results of the calls in the last answer, in their order: `count` zero-terminated texts. wl_generate then gives the next answer.
/// In the conversation the calls become fields of the answer's message, as the template writes calls, and each result is a message of the
/// role "tool"; if the template lists no functions, the answer stays as it is, and the user sends the results between <tool_response> tags.
/// A session that has read the answer reads it again if the template writes it differently than the model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_results(
    session: *mut wl_session,
    results: *const *const c_char,
    count: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: `list` checks NULL, alignment and length; the caller passes `count` texts.
        let results = unsafe { list("results", results, count) }?;
        let results = results.iter().enumerate().map(|(index, &result)| {
            // SAFETY: `text` checks NULL and UTF-8; the caller passes zero-terminated texts.
            unsafe { text(&format!("results[{index}]"), result, usize::MAX) }
        });
        inner.add_results(&results.collect::<Outcome<Vec<_>>>()?)
    })
}

/// Replaces the conversation with `count` messages: the messages may extend, edit or drop thinking text from the earlier ones, or come from
/// another process. The part that the session's state or its store has read already is not read again.
///
/// The model's template decides which messages it accepts. If the last message is the user's, wl_generate gives the answer, which becomes
/// part of the conversation; if the last message is an answer, wl_generate continues it. wl_chat_say adds a message. On errors the
/// conversation is unchanged; on WL_CANCELLED the session has read only the first tokens of the messages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_set_messages(
    session: *mut wl_session,
    messages: *const wl_message,
    count: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `count` messages.
        let messages = unsafe { list("messages", messages, count) }?;
        let messages = messages.iter().enumerate().map(|(index, message)| {
            // SAFETY: the caller's texts are zero-terminated.
            unsafe { self::message(index, message) }
        });
        inner.set_messages(messages.collect::<Outcome<_>>()?)?;
        Ok(())
    })
}

/// Like wl_chat_set_messages, for messages in JSON: an array of objects with "role", "content" (a text, null, or parts of type "text"), and
/// other fields that the template uses, such as "name" or "tool_calls". The numbers of tokens reused and read are written to `reused` and
/// `read`, which may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_set_messages(
    session: *mut wl_session,
    json: *const c_char,
    length: usize,
    reused: *mut usize,
    read: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `length` bytes.
        let json = unsafe { text("json", json, length) }?;
        let messages = serde_json::from_str(json)
            .map_err(|error| Failure::argument(format!("the messages: {error}")))?;
        place_if_wanted("the place for the tokens reused", reused)?;
        place_if_wanted("the place for the tokens read", read)?;
        let found = inner.set_messages(messages)?;
        // SAFETY: the caller passes destinations or NULL.
        unsafe {
            put_if_wanted("the place for the tokens reused", reused, found.reused)?;
            put_if_wanted("the place for the tokens read", read, found.read)
        }
    })
}

/// Sets the instructions before the first message of the conversation; an empty text removes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_system(
    session: *mut wl_session,
    text: *const c_char,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `length` bytes.
        let text = unsafe { self::text("text", text, length) }?;
        Ok(inner.chat()?.0.set_system(text)?)
    })
}

/// Sets whether the model's template requests thinking text before the answer, from the next message on: 1 or 0, or -1 for the template's
/// default. Templates without such a switch ignore it.
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

/// Sets the functions that the model may call, from the next message on: a JSON array of schemas in the format of the model's template,
/// such as {"type": "function", "function": {"name", "description", "parameters"}}. An empty array removes them. A call that the model
/// makes is part of its text, which wl_chat_parser and wl_chat_parse split; wl_chat_results answers it. If the template does not list
/// functions, instructions at the end of the system message do, or before the first user message if the template has no system message;
/// they are no part of wl_chat_messages_json. WL_ERROR_TEXT if the template does not write them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_tools(
    session: *mut wl_session,
    json: *const c_char,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `length` bytes.
        let json = unsafe { text("json", json, length) }?;
        Ok(inner.chat()?.0.set_tools(answer::tools(json)?)?)
    })
}

/// Sets a variable of the model's template from the next message on, such as "reasoning_effort"; `json` is its value as zero-terminated
/// JSON, NULL or null leaves it undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_variable(
    session: *mut wl_session,
    name: *const c_char,
    json: *const c_char,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: `text` checks NULL and UTF-8; the caller passes a zero-terminated text.
        let name = unsafe { text("name", name, usize::MAX) }?;
        let mut value = Value::Null;
        if !json.is_null() {
            // SAFETY: as above.
            let json = unsafe { text("json", json, usize::MAX) }?;
            value = serde_json::from_str(json)
                .map_err(|error| Failure::argument(format!("{name}: {error}")))?;
        }
        Ok(inner.chat()?.0.set_variable(name, value)?)
    })
}

/// Sends a message and passes the answer, piece by piece, to `on_text`, which may be NULL, with `user`. Only the new message is read,
/// because the state holds the conversation before it. If the message cannot be read completely, it is not part of the conversation.
/// However the answer ends, the text generated so far is part of the conversation. `params` and `result` are as in wl_generate.
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
    // SAFETY: `check` and `send` check the pointers; the caller passes `length` bytes or a zero byte, such structs or NULL, and a function
    // that can be called.
    with_settled(session, |inner| unsafe {
        params::check("wl_generate_result", result)?;
        inner.send(message, length, params)?;
        inner.generate(on_text, user)?;
        inner.report(result)
    })
}

/// Sends a message and begins the answer, which wl_generate_next advances. If a call ends the generation early, as wl_generate_start
/// describes, the text generated so far is the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_start(
    session: *mut wl_session,
    message: *const c_char,
    length: usize,
    params: *const wl_generate_params,
) -> wl_status {
    // SAFETY: `send` checks the pointers; the caller passes `length` bytes or a zero byte, and such a struct or NULL.
    with_settled(session, |inner| unsafe {
        inner.send(message, length, params)
    })
}

/// Removes the last message of the user and everything after it. With a store or marks in wl_session_params, the state before that message
/// can be restored at once; without them the earlier messages may be read again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_undo(session: *mut wl_session) -> wl_status {
    with_settled(session, |inner| {
        let (chat, session) = inner.chat()?;
        match chat.undo(session)? {
            Some(_) => Ok(()),
            None => Err(Failure::argument("there is no message to undo")),
        }
    })
}

/// Writes the conversation as a JSON array of {"role", "content"} and a zero byte to `json`, which has room for `room` bytes, and the
/// length without the zero byte to `length`. Returns WL_ERROR_ROOM if both do not fit; with `json` NULL and `room` 0 only the length is
/// written.
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
        // SAFETY: the caller provides room for `room` bytes.
        unsafe { fill(&text, Some(0), json.cast::<u8>(), room, length) }
    })
}
