//! Answers split into content, thoughts and tool calls.

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::sync::{Mutex, TryLockError};

use serde_json::{Map, Value, json};
use waterline::{Answer, AnswerParser, AnswerPart, AnswerSyntax, ToolCall, Tools};

use crate::handles::Handles;
use crate::model::{MODELS, wl_model};
use crate::open_session::with;
use crate::params::{self, Tagged};
use crate::pointers::{place, put, slice, text};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, border, wl_status};

/// Splits the text of one answer into parts.
pub struct wl_answer_parser {
    _private: [u8; 0],
}

/// The kind of a part of an answer.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum wl_part_kind {
    /// No part: more text is needed.
    WL_PART_NONE = 0,
    /// More of the content.
    WL_PART_CONTENT = 1,
    /// More of the model's thoughts.
    WL_PART_REASONING = 2,
    /// A tool call begins: `text` is the function's name, `id` the call's id.
    WL_PART_CALL_BEGINS = 3,
    /// `id` is the id of the call, which the model wrote after the name.
    WL_PART_CALL_ID = 4,
    /// More of the call's arguments, which are JSON.
    WL_PART_CALL_ARGUMENTS = 5,
    /// The call is complete. A call that a limit cut has no such part.
    WL_PART_CALL_ENDS = 6,
    /// All content so far was a thought that no tag opened.
    WL_PART_CONTENT_WAS_REASONING = 7,
}

/// A part of an answer. Its texts have a zero byte after them and are valid until the next call on the parser.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_answer_part {
    /// sizeof(wl_answer_part).
    pub size: u32,
    /// A wl_part_kind.
    pub kind: u32,
    /// The number of the call, from 0; for other parts, of the last call before them.
    pub call: usize,
    /// The text of the part; NULL if its kind has none.
    pub text: *const c_char,
    /// The number of bytes of `text`.
    pub length: usize,
    /// The id of a call as the model wrote it, zero-terminated; NULL if there is none.
    pub id: *const c_char,
}

impl Default for wl_answer_part {
    fn default() -> Self {
        wl_answer_part {
            size: size_of::<Self>() as u32,
            kind: wl_part_kind::WL_PART_NONE as u32,
            call: 0,
            text: std::ptr::null(),
            length: 0,
            id: std::ptr::null(),
        }
    }
}

// SAFETY: numbers and pointers that are only written, the size first.
unsafe impl Tagged for wl_answer_part {}

/// A part that C has not taken yet.
#[derive(Default)]
struct Part {
    kind: Option<wl_part_kind>,
    call: usize,
    /// With a zero byte at the end.
    text: Option<String>,
    id: Option<CString>,
}

impl Part {
    fn new(kind: wl_part_kind, text: Option<&str>) -> Self {
        Part {
            kind: Some(kind),
            text: text.map(|text| format!("{text}\0")),
            ..Part::default()
        }
    }
}

/// The object of a parser's handle.
pub(crate) struct OpenParser {
    parser: AnswerParser,
    is_finished: bool,
    /// The first bytes of a character.
    incomplete: Vec<u8>,
    answer: Answer,
    /// Whether the last call has not ended.
    in_call: bool,
    parts: VecDeque<Part>,
    /// The memory that wl_answer_next's pointers refer to.
    taken: Part,
    /// The memory that wl_answer_json's pointer refers to, with a zero byte at the end.
    json: String,
}

static PARSERS: Handles<Mutex<OpenParser>> = Handles::new("answer parser");

impl OpenParser {
    /// Creates the parser of an answer that continues `before`.
    pub fn new(syntax: AnswerSyntax, before: &str) -> Self {
        let mut parser = AnswerParser::new(syntax);
        parser.push(before);
        OpenParser {
            parser,
            is_finished: false,
            incomplete: Vec::new(),
            answer: Answer::default(),
            in_call: false,
            parts: VecDeque::new(),
            taken: Part::default(),
            json: String::new(),
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Outcome {
        self.check_unfinished()?;
        let held = self.incomplete.len();
        let all = [&self.incomplete, bytes].concat();
        let valid = match std::str::from_utf8(&all) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(error) => {
                let at = error.valid_up_to().saturating_sub(held);
                let sentence =
                    format!("text is not UTF-8: byte {at} is part of an invalid sequence");
                return Err(Failure::argument(sentence));
            }
        };
        let (text, incomplete) = all.split_at(valid);
        let parts = self.parser.push(&String::from_utf8_lossy(text));
        self.incomplete = incomplete.to_vec();
        self.take(&parts);
        if !self.parser.is_in_call() {
            self.end_call();
        }
        Ok(())
    }

    fn finish(&mut self, is_cut: bool) -> Outcome {
        self.check_unfinished()?;
        self.is_finished = true;
        let rest = std::mem::take(&mut self.incomplete);
        let mut parts = self.parser.push(&String::from_utf8_lossy(&rest));
        if !(is_cut && self.parser.is_in_call()) {
            parts.extend(self.parser.finish(is_cut));
            self.take(&parts);
            self.end_call();
            return Ok(());
        }
        self.take(&parts);
        // The open call has no end, whatever follows.
        self.in_call = false;
        let rest = self.parser.finish(is_cut);
        self.take(&rest);
        Ok(())
    }

    fn check_unfinished(&self) -> Outcome {
        match self.is_finished {
            true => Err(Failure::argument(
                "the answer is finished; the next one needs a new parser",
            )),
            false => Ok(()),
        }
    }

    fn end_call(&mut self) {
        if std::mem::take(&mut self.in_call) {
            self.add(Part::new(wl_part_kind::WL_PART_CALL_ENDS, None));
        }
    }

    fn add(&mut self, part: Part) {
        // The number of the last call, whatever the part.
        let call = self.answer.calls.len().saturating_sub(1);
        self.parts.push_back(Part { call, ..part });
    }

    fn take(&mut self, parts: &[AnswerPart]) {
        use wl_part_kind::*;
        for part in parts {
            let id = |id: &str| CString::new(id.replace('\0', "\u{fffd}")).ok();
            let next = match part {
                AnswerPart::Content(text) => Part::new(WL_PART_CONTENT, Some(text)),
                AnswerPart::Reasoning(text) => Part::new(WL_PART_REASONING, Some(text)),
                AnswerPart::CallArguments(text) => Part::new(WL_PART_CALL_ARGUMENTS, Some(text)),
                AnswerPart::CallBegins { name, id: own } => Part {
                    id: own.as_deref().and_then(id),
                    ..Part::new(WL_PART_CALL_BEGINS, Some(name))
                },
                AnswerPart::CallId(own) => Part {
                    id: id(own),
                    ..Part::new(WL_PART_CALL_ID, None)
                },
                AnswerPart::ContentWasReasoning => Part::new(WL_PART_CONTENT_WAS_REASONING, None),
                _ => continue,
            };
            let is_of_call = matches!(part, AnswerPart::CallArguments(_) | AnswerPart::CallId(_));
            if !is_of_call {
                self.end_call();
            }
            self.answer.add(part);
            self.in_call |= matches!(part, AnswerPart::CallBegins { .. });
            self.add(next);
        }
    }

    /// Removes the next part, which stays alive until the next call.
    fn next(&mut self) -> wl_answer_part {
        self.taken = self.parts.pop_front().unwrap_or_default();
        let Part {
            kind,
            call,
            text,
            id,
        } = &self.taken;
        wl_answer_part {
            size: 0,
            kind: kind.map_or(0, |kind| kind as u32),
            call: *call,
            text: text
                .as_ref()
                .map_or(std::ptr::null(), |text| text.as_ptr().cast()),
            length: text.as_ref().map_or(0, |text| text.len() - 1),
            id: id.as_ref().map_or(std::ptr::null(), |id| id.as_ptr()),
        }
    }
}

/// Reads a complete answer.
pub(crate) fn read(syntax: AnswerSyntax, text: &str) -> Answer {
    let (mut parser, mut answer) = (AnswerParser::new(syntax), Answer::default());
    let mut parts = parser.push(text);
    parts.extend(parser.finish(false));
    parts.iter().for_each(|part| answer.add(part));
    answer
}

/// Converts an answer to a message's fields in OpenAI's form. `id` gives the id of a call by its index.
pub(crate) fn fields(
    answer: &Answer,
    id: impl Fn(usize, &ToolCall) -> Option<String>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("role".into(), "assistant".into());
    fields.insert("content".into(), answer.content.as_str().into());
    if !answer.reasoning.is_empty() {
        fields.insert("reasoning_content".into(), answer.reasoning.as_str().into());
    }
    let calls = answer.calls.iter().enumerate().map(|(index, call)| {
        let function = json!({ "name": call.name, "arguments": call.arguments });
        let mut json = Map::new();
        json.extend(id(index, call).map(|id| ("id".to_string(), id.into())));
        json.insert("type".into(), "function".into());
        json.insert("function".into(), function);
        Value::Object(json)
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        fields.insert("tool_calls".into(), calls.into());
    }
    fields
}

/// Converts the JSON of tools.
pub(crate) fn tools(json: &str) -> Outcome<Vec<Value>> {
    serde_json::from_str(json).map_err(|error| Failure::argument(format!("the tools: {error}")))
}

/// Runs `body` on a parser that no other call is using.
fn with_parser(
    parser: *const wl_answer_parser,
    body: impl FnOnce(&mut OpenParser) -> Outcome,
) -> wl_status {
    border(|| {
        let parser = PARSERS.get(parser)?;
        let mut parser = parser.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::new(
                wl_status::WL_ERROR_BUSY,
                "another call on this answer parser has not returned yet",
            ),
            TryLockError::Poisoned(_) => Failure::new(
                wl_status::WL_ERROR_INTERNAL,
                "an earlier call on this answer parser ended with an internal error",
            ),
        })?;
        body(&mut parser)
    })
}

/// Makes a parser for an answer of a model to `prompt`, `prompt_length` bytes, whose end says whether the answer begins inside a thought;
/// NULL and 0 mean a prompt that opens none. `tools`, `tools_length` bytes, is the JSON of wl_chat_tools; without tools an answer has no
/// calls. The model's template and vocabulary give the format of calls and thoughts. Free the parser with wl_answer_parser_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_parser_new(
    model: *const wl_model,
    tools: *const c_char,
    tools_length: usize,
    prompt: *const c_char,
    prompt_length: usize,
    parser: *mut *mut wl_answer_parser,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the parser", parser)?;
        // SAFETY: the caller passes `tools_length` bytes.
        let tools = match unsafe { text("tools", tools, tools_length) }? {
            "" => Vec::new(),
            json => self::tools(json)?,
        };
        // SAFETY: the caller passes `prompt_length` bytes.
        let prompt = unsafe { text("prompt", prompt, prompt_length) }?;
        let tokenizer = model.model.tokenizer()?;
        let template = model.model.chat_template_or_chatml()?;
        let is_token = |text: &str| tokenizer.token_id(text).is_some();
        let mut syntax = AnswerSyntax::of_model(template.source(), is_token, Tools(tools));
        syntax.start = syntax.start_after(prompt);
        let made = PARSERS.add(Mutex::new(OpenParser::new(syntax, "")));
        // SAFETY: checked.
        unsafe { put(parser, made) };
        Ok(())
    })
}

/// Makes a parser for the session's running answer, or for the next one if none is running; pass it the texts of that answer. A running
/// generation goes on, and is content only if it is no answer in a conversation. Free the parser with wl_answer_parser_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_parser(
    session: *mut wl_session,
    parser: *mut *mut wl_answer_parser,
) -> wl_status {
    with(session, |inner| {
        place("the place for the parser", parser)?;
        let made = PARSERS.add(Mutex::new(inner.parser(false)?));
        // SAFETY: checked.
        unsafe { put(parser, made) };
        Ok(())
    })
}

/// Makes a parser that has read the session's last answer, or another complete answer to the same conversation, `length` bytes:
/// wl_answer_next gives its parts, and wl_answer_json all of it. `is_cut` is 1 if a limit or a stop text ended the answer, so that a call at
/// its end may lack its rest, else 0. Free the parser with wl_answer_parser_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_chat_parse(
    session: *mut wl_session,
    text: *const c_char,
    length: usize,
    is_cut: u32,
    parser: *mut *mut wl_answer_parser,
) -> wl_status {
    with(session, |inner| {
        place("the place for the parser", parser)?;
        // SAFETY: the caller passes `length` bytes.
        let text = unsafe { self::text("text", text, length) }?;
        let is_cut = flag("is_cut", is_cut)?;
        let mut made = inner.parser(true)?;
        made.push(text.as_bytes())?;
        made.finish(is_cut)?;
        // SAFETY: checked.
        unsafe { put(parser, PARSERS.add(Mutex::new(made))) };
        Ok(())
    })
}

fn flag(what: &str, value: u32) -> Outcome<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Failure::argument(format!(
            "{what}: found {other}, expected 0 or 1"
        ))),
    }
}

/// Frees a parser; NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_parser_free(parser: *mut wl_answer_parser) -> wl_status {
    border(|| {
        if !parser.is_null() {
            PARSERS.remove(parser)?;
        }
        Ok(())
    })
}

/// Adds `length` bytes of the answer, which may begin or end inside a character. WL_ZERO_TERMINATED is no length here. Bytes that are not
/// UTF-8 are WL_ERROR_ARGUMENT, and none of them is added.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_push(
    parser: *mut wl_answer_parser,
    text: *const c_char,
    length: usize,
) -> wl_status {
    with_parser(parser, |parser| {
        // SAFETY: the caller passes `length` bytes.
        parser.push(unsafe { slice("text", text.cast::<u8>(), length) }?)
    })
}

/// Ends the answer; wl_answer_next then gives the parts that were held back. `is_cut` is 1 if a limit or a stop text ended it, so that a call
/// at its end may lack its rest, else 0: a forgotten end of a call is added.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_finish(parser: *mut wl_answer_parser, is_cut: u32) -> wl_status {
    with_parser(parser, |parser| parser.finish(flag("is_cut", is_cut)?))
}

/// Fills `part`, whose size the caller has set, with the next part of the text so far; its kind is WL_PART_NONE if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_next(
    parser: *mut wl_answer_parser,
    part: *mut wl_answer_part,
) -> wl_status {
    with_parser(parser, |parser| {
        place("the place for the part", part)?;
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::check("wl_answer_part", part) }?;
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_answer_part", part, parser.next()) }
    })
}

/// Stores a pointer to the answer so far as a message in JSON, and its length: {"role": "assistant", "content"}, with "reasoning_content" and
/// "tool_calls" if there are any; a call is {"id", "type": "function", "function": {"name", "arguments"}}, with the arguments as text and an
/// id only if the model wrote one. The text has a zero byte after it and is valid until the next call on the parser.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_answer_json(
    parser: *mut wl_answer_parser,
    json: *mut *const c_char,
    length: *mut usize,
) -> wl_status {
    with_parser(parser, |parser| {
        place("the place for the text", json)?;
        place("the place for the length", length)?;
        let message = fields(&parser.answer, |_, call| call.id.clone());
        parser.json = Value::Object(message).to_string();
        let bytes = parser.json.len();
        parser.json.push('\0');
        // SAFETY: both are checked.
        unsafe {
            put(json, parser.json.as_ptr().cast());
            put(length, bytes);
        }
        Ok(())
    })
}
