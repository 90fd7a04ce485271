//! `/v1/chat/completions`, and the objects shared with `/v1/completions`.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use waterline::{Finish, Grammar, TemplateOptions};

use super::App;
use super::answer::{Added, Part, Reply};
use super::answers::{Form, Usage};
use super::exchange::Exchange;
use super::http::{Body, Refusal};
use super::logprobs::{TokenLogprob, of_completion};
use super::request::{
    Common, Conversation, MOST_LOGPROBS, MOST_VALUES, ToolChoice, messages, parse,
};
use crate::calls::Call;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Value>,
    #[serde(default)]
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<Value>,
    reasoning_effort: Option<Value>,
    documents: Option<Value>,
    response_format: Option<ResponseFormat>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: Schema },
    Regex { regex: String },
    Lark { lark: String },
}

#[derive(Deserialize)]
struct Schema {
    schema: Value,
}

impl ResponseFormat {
    fn grammar(self) -> Option<Grammar> {
        match self {
            ResponseFormat::Text => None,
            ResponseFormat::JsonObject => Some(Grammar::JsonObject),
            ResponseFormat::JsonSchema { json_schema } => {
                Some(Grammar::JsonSchema(json_schema.schema))
            }
            ResponseFormat::Regex { regex } => Some(Grammar::Regex(regex)),
            ResponseFormat::Lark { lark } => Some(Grammar::Lark(lark)),
        }
    }
}

impl Request {
    /// The variables of the template.
    fn template(&mut self) -> Result<TemplateOptions, Refusal> {
        let mut template = TemplateOptions::default();
        let named = [
            ("reasoning_effort", self.reasoning_effort.take()),
            ("documents", self.documents.take()),
        ];
        for (name, value) in named {
            match value {
                Some(value) if name == "reasoning_effort" && value == "none" => {
                    template.thinking = Some(false);
                }
                value => template.set(name, value.unwrap_or_default())?,
            }
        }
        match self.chat_template_kwargs.take() {
            None | Some(Value::Null) => {}
            Some(Value::Object(variables)) => {
                for (name, value) in variables {
                    template.set(&name, value)?;
                }
            }
            Some(_) => return Err(Refusal::bad("chat_template_kwargs: expected an object")),
        }
        Ok(template)
    }

    fn tool_choice(&self) -> Result<ToolChoice, Refusal> {
        let choice = self.tool_choice.as_ref().unwrap_or(&Value::Null);
        Ok(match choice.as_str() {
            Some("none") => ToolChoice::None,
            Some("required") => ToolChoice::Required,
            Some("auto") => ToolChoice::Auto,
            None if choice.is_null() => ToolChoice::Auto,
            _ => match choice["function"]["name"].as_str() {
                Some(name) => ToolChoice::Named(name.into()),
                None => {
                    return Err(Refusal::bad(
                        "tool_choice: expected \"auto\", \"none\", \"required\" or a function's name",
                    ));
                }
            },
        })
    }
}

/// Answers a request.
pub async fn chat(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body, MOST_VALUES)?;
    let (template, choice) = (request.template()?, request.tool_choice()?);
    let form = OpenAi::new(app, &request.common, true);
    let mut settings = app.settings(request.common)?;
    if request.logprobs == Some(true) {
        settings.logprobs = Some(request.top_logprobs.unwrap_or(0));
    }
    if settings.logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
        let reason = format!("top_logprobs: expected at most {MOST_LOGPROBS}");
        return Err(Refusal::bad(reason));
    }
    settings.form = request.response_format.and_then(ResponseFormat::grammar);
    let conversation = Conversation {
        messages: messages(request.messages, &app.limits)?,
        tools: request.tools.unwrap_or_default(),
        choice,
        parallel: request.parallel_tool_calls != Some(false),
        template,
    };
    app.converse(conversation, settings, form, exchange).await
}

/// The format of OpenAI's responses, for chats and text completions.
pub struct OpenAi {
    id: String,
    created: u64,
    is_chat: bool,
    /// Whether a stream ends with a usage chunk.
    with_usage: bool,
    /// For each answer, the number of characters in the tokens whose log-probabilities were reported so far.
    offsets: Vec<usize>,
}

impl OpenAi {
    pub fn new(app: &App, request: &Common, is_chat: bool) -> Self {
        OpenAi {
            id: app.id(if is_chat { "chatcmpl" } else { "cmpl" }),
            created: super::now(),
            is_chat,
            with_usage: request.stream_options.is_some_and(|o| o.include_usage),
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
        _ if !reply.calls.is_empty() => "tool_calls",
        _ => "stop",
    }
}

fn call(app: &App, index: usize, call: &Call) -> Value {
    json!({
        "index": index,
        "id": app.id("call"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments.to_string() },
    })
}

fn message(app: &App, reply: &Reply) -> Value {
    let mut message = json!({ "role": "assistant", "content": reply.text });
    if !reply.thought.is_empty() {
        message["reasoning_content"] = reply.thought.trim_end().into();
    }
    if !reply.calls.is_empty() {
        let calls = reply.calls.iter().enumerate();
        message["tool_calls"] = calls.map(|(i, c)| call(app, i, c)).collect();
        if reply.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    message
}

impl Form for OpenAi {
    fn whole(&self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let choice = |(index, reply): (usize, &Reply)| {
            let mut choice = json!({
                "index": index,
                "logprobs": self.logprobs(app, &reply.logprobs, 0),
                "finish_reason": finish_reason(reply),
            });
            if self.is_chat {
                choice["message"] = message(app, reply);
            } else {
                choice["text"] = reply.text.clone().into();
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

        let mut number = reply.calls.len();
        number -= (added.parts.iter().filter(|p| matches!(p, Part::Call(_)))).count();
        let mut deltas = Vec::new();
        if added.begins && self.is_chat {
            deltas.push(json!({ "role": "assistant", "content": "" }));
        }
        for part in &added.parts {
            deltas.push(match part {
                Part::Thought(text) => json!({ "reasoning_content": text }),
                Part::Text(text) => json!({ "content": text }),
                Part::Call(made) => {
                    number += 1;
                    json!({ "tool_calls": [call(app, number - 1, made)] })
                }
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
