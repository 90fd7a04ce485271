//! `/v1/chat/completions`, and the objects shared with `/v1/completions`.

use std::sync::Arc;

use hyper::Response;
use serde_json::{Value, json};
use waterline::{AnswerPart, Finish, TemplateOptions, ToolCall};

use super::App;
use super::answer::{Added, Reply};
use super::answers::{Form, Usage};
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::Body;
use super::logprobs::{TokenLogprob, of_completion};
use super::refusal::Refusal;
use super::request::{Conversation, MOST_VALUES, ToolChoice, messages};
use super::scheduler::Progress;

/// The variables of the template.
pub fn template(fields: &mut Fields) -> Result<TemplateOptions, Refusal> {
    let mut template = TemplateOptions::default();
    for name in ["reasoning_effort", "documents"] {
        match fields.take(name) {
            value if name == "reasoning_effort" && value == "none" => {
                template.thinking = Some(false);
            }
            value => template.set(name, value)?,
        }
    }
    if let Value::Object(variables) = fields.take("chat_template_kwargs") {
        for (name, value) in variables {
            template.set(&name, value)?;
        }
    }
    Ok(template)
}

/// Reads `tool_choice`, which names a function in an object of its own or beside its type.
pub fn tool_choice(choice: &Value) -> Result<ToolChoice, Refusal> {
    Ok(match choice.as_str() {
        Some("none") => ToolChoice::None,
        Some("required" | "any") => ToolChoice::Required,
        Some("auto") => ToolChoice::Auto,
        None if choice.is_null() => ToolChoice::Auto,
        _ => match choice["function"]["name"]
            .as_str()
            .or(choice["name"].as_str())
        {
            Some(name) => ToolChoice::Named(name.into()),
            None => {
                return Err(Refusal::bad(
                    "tool_choice: expected \"auto\", \"none\", \"required\" or a function's name",
                ));
            }
        },
    })
}

/// Moves the conversation out of a request.
pub fn conversation(app: &App, fields: &mut Fields) -> Result<Conversation, Refusal> {
    Ok(Conversation {
        template: template(fields)?,
        choice: tool_choice(fields.get("tool_choice"))?,
        parallel: *fields.get("parallel_tool_calls") != false,
        tools: fields.take_list("tools"),
        messages: messages(fields.take_list("messages"), &app.limits)?,
        truncates: false,
    })
}

/// Answers a request.
pub async fn chat(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_VALUES, Face::Chat)?;
    let form = OpenAi::new(app, &fields, true);
    let settings = app.settings(&fields)?;
    let conversation = conversation(app, &mut fields)?;
    app.converse(conversation, settings, form, exchange).await
}

/// The format of OpenAI's responses, for chats and text completions.
pub struct OpenAi {
    id: String,
    created: u64,
    is_chat: bool,
    /// Whether a stream ends with a usage chunk.
    with_usage: bool,
    /// Whether a stream reports how much of the prompt is read, as llama.cpp's does.
    with_progress: bool,
    /// For each answer, the number of characters in the tokens whose log-probabilities were reported so far.
    offsets: Vec<usize>,
}

impl OpenAi {
    pub fn new(app: &App, fields: &Fields, is_chat: bool) -> Self {
        OpenAi {
            id: app.id(if is_chat { "chatcmpl" } else { "cmpl" }),
            created: super::now(),
            is_chat,
            with_usage: fields.get("stream_options")["include_usage"] == true,
            with_progress: fields.flag("return_progress"),
            offsets: Vec::new(),
        }
    }

    fn object(&self, app: &App, is_chunk: bool, choices: Vec<Value>) -> Value {
        let object = match (self.is_chat, is_chunk) {
            (false, _) => "text_completion",
            (true, false) => "chat.completion",
            (true, true) => "chat.completion.chunk",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": app.name, "choices": choices,
        })
    }

    fn logprobs(&self, app: &App, tokens: &[TokenLogprob], offset: usize) -> Value {
        let tokenizer = &app.prompter.tokenizer;
        match (tokens.is_empty(), self.is_chat) {
            (true, _) => Value::Null,
            (_, true) => {
                let entries: Vec<Value> = tokens.iter().map(|t| t.entry(tokenizer)).collect();
                json!({ "content": entries })
            }
            (_, false) => of_completion(tokenizer, tokens, offset),
        }
    }
}

fn finish_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(Finish::Length) => "length",
        _ if !reply.answer.calls.is_empty() => "tool_calls",
        _ => "stop",
    }
}

fn call(app: &App, index: usize, call: &ToolCall) -> Value {
    json!({
        "index": index,
        "id": call.id.clone().unwrap_or_else(|| app.id("call")),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

fn message(app: &App, reply: &Reply) -> Value {
    let answer = &reply.answer;
    let mut message = json!({ "role": "assistant", "content": answer.content });
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.trim_end().into();
    }
    if !answer.calls.is_empty() {
        let calls = answer.calls.iter().enumerate();
        message["tool_calls"] = calls.map(|(i, c)| call(app, i, c)).collect();
        if answer.content.is_empty() {
            message["content"] = Value::Null;
        }
    }
    message
}

impl Form for OpenAi {
    fn face(&self) -> Face {
        match self.is_chat {
            true => Face::Chat,
            false => Face::Completions,
        }
    }

    fn progress(&self, app: &App, progress: Progress, usage: &Usage) -> Option<Value> {
        let mut choice = json!({ "index": 0, "finish_reason": null });
        match self.is_chat {
            true => choice["delta"] = json!({ "role": "assistant", "content": null }),
            false => choice["text"] = "".into(),
        }
        let mut object = self.object(app, true, vec![choice]);
        object["prompt_progress"] = usage.progress(progress);
        self.with_progress.then_some(object)
    }

    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let choice = |(index, reply): (usize, &Reply)| {
            let mut choice = json!({
                "index": index,
                "logprobs": self.logprobs(app, &reply.logprobs, 0),
                "finish_reason": finish_reason(reply),
            });
            if self.is_chat {
                choice["message"] = message(app, reply);
            } else {
                choice["text"] = reply.answer.content.clone().into();
            }
            if let Some(receipt) = &reply.receipt {
                choice["receipt"] = json!(receipt);
            }
            choice
        };
        let choices = replies.iter().enumerate().map(choice).collect();
        let mut object = self.object(app, false, choices);
        object["usage"] = usage.openai();
        object["timings"] = usage.timings();
        object
    }

    fn events(
        &mut self,
        app: &App,
        (index, reply): (usize, &Reply),
        added: Added,
        _: &Usage,
    ) -> Vec<Value> {
        self.offsets.resize(self.offsets.len().max(index + 1), 0);
        let mut logprobs = self.logprobs(app, &added.logprobs, self.offsets[index]);
        let tokenizer = &app.prompter.tokenizer;
        let lengths = added.logprobs.iter().map(|t| t.characters(tokenizer));
        self.offsets[index] += lengths.sum::<usize>();

        let begin = |part: &&AnswerPart| matches!(part, AnswerPart::CallBegins { .. });
        let mut number = reply.answer.calls.len() - added.parts.iter().filter(begin).count();
        let mut deltas = Vec::new();
        if added.begins && self.is_chat {
            deltas.push(json!({ "role": "assistant", "content": "" }));
        }
        for part in &added.parts {
            deltas.push(match part {
                AnswerPart::Reasoning(text) => json!({ "reasoning_content": text }),
                AnswerPart::Content(text) => json!({ "content": text }),
                AnswerPart::CallBegins { name, id } => {
                    number += 1;
                    let made = ToolCall {
                        name: name.clone(),
                        id: id.clone(),
                        arguments: String::new(),
                    };
                    json!({ "tool_calls": [call(app, number - 1, &made)] })
                }
                AnswerPart::CallArguments(json) => {
                    let function = json!({ "arguments": json });
                    json!({ "tool_calls": [{ "index": number.saturating_sub(1), "function": function }] })
                }
                // A stream cannot take back what it sent.
                _ => continue,
            });
        }
        // The end of an answer, or log-probabilities without text, need a choice with an empty delta.
        if added.ends || (deltas.is_empty() && !logprobs.is_null()) {
            deltas.push(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        let chunk = |(place, mut delta): (usize, Value)| {
            let ends = added.ends && place == last;
            let mut choice = json!({
                "index": index,
                "logprobs": logprobs.take(),
                "finish_reason": ends.then(|| finish_reason(reply)),
            });
            if self.is_chat {
                choice["delta"] = delta;
            } else {
                let text = delta["content"].take();
                choice["text"] = if text.is_null() { "".into() } else { text };
            }
            if let Some(receipt) = reply.receipt.as_ref().filter(|_| ends) {
                choice["receipt"] = json!(receipt);
            }
            self.object(app, true, vec![choice])
        };
        deltas.into_iter().enumerate().map(chunk).collect()
    }

    fn last(&self, app: &App, usage: &Usage) -> String {
        let mut last = String::new();
        if self.with_usage {
            let mut object = self.object(app, true, Vec::new());
            object["usage"] = usage.openai();
            object["timings"] = usage.timings();
            last = format!("data: {object}\n\n");
        }
        last + "data: [DONE]\n\n"
    }
}
