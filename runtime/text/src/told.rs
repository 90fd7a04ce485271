//! Tells a model of its tools in messages if its template does not list them, as such a template knows neither calls nor their results.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::jinja::marked::Mark;
use super::template::Rendering;
use super::turns::template_error;
use super::{CallFormat, ChatTemplate, Message, Role, TemplateOptions, Tools};
use crate::cancel::Canceller;
use crate::error::Result;

/// Messages that list the tools, as far as the template does not.
pub(crate) struct Told<'m> {
    pub messages: Cow<'m, [Message]>,
    /// The instructions in the messages.
    instructions: Option<String>,
}

impl<'m> Told<'m> {
    /// The messages for a template: unchanged if it lists tools or there are none. Otherwise the system message, or the first user message
    /// if the template omits system messages, ends with instructions for calls in this format; and calls and results become texts if the
    /// template omits results.
    pub fn new(
        template: &ChatTemplate,
        messages: &'m [Message],
        options: &TemplateOptions,
        format: &CallFormat,
    ) -> Self {
        if options.tools.is_empty() || Tools::are_listed(template.source()) {
            return Told {
                messages: messages.into(),
                instructions: None,
            };
        }
        let instructions = Tools(options.tools.clone()).instructions(format);
        let mut messages = messages.to_vec();
        if messages.iter().any(Message::is_result) && !shows(template, options, &result_turns(), 2)
        {
            messages = as_texts(messages);
        }
        let system = Message::new(Role::System, "instructions");
        let system = [system, Message::new(Role::User, "question")];
        let role = match shows(template, options, &system, 0) {
            true => Role::System,
            false => Role::User,
        };
        match messages.iter_mut().find(|message| message.role == role) {
            Some(first) if role == Role::User => first.prepend(&instructions),
            Some(first) if first.content.contains(&instructions) => {}
            Some(first) => first.content += &format!("\n\n{instructions}"),
            None => messages.insert(0, Message::new(role, &*instructions)),
        }
        Told {
            messages: messages.into(),
            instructions: Some(instructions),
        }
    }

    /// Checks that a rendering of the messages shows the instructions.
    pub fn check(&self, rendering: &Rendering) -> Result<()> {
        match &self.instructions {
            Some(text) if !rendering.text.as_str().contains(text) => Err(template_error(
                "it lists no tools and leaves out the messages that would",
            )),
            _ => Ok(()),
        }
    }
}

/// A conversation with a result at index 2.
fn result_turns() -> [Message; 4] {
    let call = serde_json::json!([{
        "id": "call00001", "type": "function", "function": { "name": "f", "arguments": {} },
    }]);
    let mut turns = [
        Message::new(Role::User, "question"),
        Message::new(Role::Assistant, ""),
        Message::new(Role::Other("tool".into()), "result"),
        Message::new(Role::Assistant, "answer"),
    ];
    turns[1].fields = Map::from_iter([("tool_calls".into(), call)]);
    turns
}

/// Whether the template shows the message with this index.
fn shows(
    template: &ChatTemplate,
    options: &TemplateOptions,
    messages: &[Message],
    index: usize,
) -> bool {
    let rendering = template.render_with(messages, false, options, &Canceller::default());
    rendering.is_ok_and(|it| {
        let is_whole = it.messages.len() == messages.len();
        is_whole && it.text.range_of(Mark::Content(index)).is_some()
    })
}

/// The messages with their calls as texts in the generic format, and results as the user's.
fn as_texts(messages: Vec<Message>) -> Vec<Message> {
    let mut texts: Vec<Message> = Vec::new();
    let mut follows_result = false;
    for mut message in messages {
        let mut calls: Vec<String> = message.calls().map(|call| call_text(call)).collect();
        if !calls.is_empty() {
            if !message.content.is_empty() {
                calls.insert(0, std::mem::take(&mut message.content));
            }
            message.content = calls.join("\n");
            message.fields.shift_remove("tool_calls");
        }
        let is_result = message.is_result();
        if is_result {
            let content = &message.content;
            let content = format!("<tool_response>\n{content}\n</tool_response>");
            message = Message::new(Role::User, content);
        }
        // Many templates want the roles to alternate.
        match texts.last_mut() {
            Some(last) if follows_result && message.role == Role::User => {
                last.content += &format!("\n{}", message.content);
            }
            _ => texts.push(message),
        }
        follows_result = is_result;
    }
    texts
}

fn call_text(call: &Map<String, Value>) -> String {
    let part = |name| call.get(name).unwrap_or(&Value::Null);
    let (name, arguments) = (part("name"), part("arguments"));
    format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
}
