//! `/v1/chat/completions`.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use waterline::Grammar;

use super::App;
use super::answer::{Part, Reply};
use super::http::{Body, Events, Refusal, json_response};
use super::request::{
    Answers, MOST_LOGPROBS, OneOrMany, Sampling, finish_reason, messages, parse, stops,
};
use super::scheduler::Event;
use crate::calls::Call;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Value>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    #[serde(alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    stop: Option<OneOrMany<String>>,
    n: Option<usize>,
    #[serde(default)]
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    chat_template_kwargs: Option<Value>,
    reasoning_effort: Option<String>,
    response_format: Option<Format>,
    #[serde(flatten)]
    sampling: Sampling,
}

#[derive(Deserialize, Clone, Copy)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

/// The form of an answer.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
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

impl Format {
    fn grammar(self) -> Option<Grammar> {
        match self {
            Format::Text => None,
            Format::JsonObject => Some(Grammar::JsonObject),
            Format::JsonSchema { json_schema } => Some(Grammar::JsonSchema(json_schema.schema)),
            Format::Regex { regex } => Some(Grammar::Regex(regex)),
            Format::Lark { lark } => Some(Grammar::Lark(lark)),
        }
    }
}

impl Request {
    /// Whether the model is to think; none leaves it to the template.
    fn thinking(&self) -> Option<bool> {
        let from_template = self.chat_template_kwargs.as_ref().and_then(|options| {
            let names = ["enable_thinking", "thinking"];
            names.iter().find_map(|name| options.get(*name)?.as_bool())
        });
        let is_none = self.reasoning_effort.as_deref() == Some("none");
        from_template.or(is_none.then_some(false))
    }
}

/// Answers a request.
pub async fn chat(
    app: &Arc<App>,
    body: &[u8],
    stuck: &Arc<Notify>,
) -> Result<Response<Body>, Refusal> {
    let request: Request = parse(body)?;
    let thinking = request.thinking();
    let stop = stops(request.stop)?;
    let mut settings = app.settings(request.sampling, (request.n, request.max_tokens), stop)?;
    if request.logprobs == Some(true) {
        let top = request.top_logprobs.unwrap_or(0);
        if top > MOST_LOGPROBS {
            let reason = format!("top_logprobs: expected at most {MOST_LOGPROBS}");
            return Err(Refusal::bad(reason));
        }
        settings.logprobs = Some(top);
    }
    settings.form = request.response_format.and_then(Format::grammar);
    let tools = match &request.tool_choice {
        Some(Value::String(choice)) if choice == "none" => Vec::new(),
        Some(Value::String(choice)) if choice != "auto" => {
            return Err(Refusal::bad("tool_choice: expected \"auto\" or \"none\""));
        }
        Some(Value::Object(_)) => {
            return Err(Refusal::bad("tool_choice: a tool cannot be forced"));
        }
        _ => request.tools.unwrap_or_default(),
    };
    let messages = messages(request.messages, &app.limits)?;
    let prompt = app
        .conversation(messages, (tools.clone(), thinking))
        .await?;
    let Some(template) = prompt.template.clone() else {
        return Err(Refusal::bad("messages: no template"));
    };
    let reply = app.reply(&template, &tools, &mut settings.generate);
    let answers = app.answers(vec![prompt], &settings).await?;
    let replies: Vec<Reply> = (0..settings.n).map(|_| reply()).collect();
    let head = Head::new(app, "chatcmpl", "chat.completion");
    if !request.stream {
        return whole(app, head, answers, replies).await;
    }
    let (events, response) = Events::new(stuck);
    let usage = request.stream_options.is_some_and(|o| o.include_usage);
    tokio::spawn(stream(
        Arc::clone(app),
        head,
        (answers, replies),
        (events, usage),
    ));
    Ok(response)
}

/// The fields that every object of an answer has.
pub struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Head {
    pub fn new(app: &App, prefix: &str, object: &'static str) -> Self {
        Head {
            id: app.id(prefix),
            object,
            created: super::now(),
            model: app.name.clone(),
        }
    }

    /// The object; chunks of a stream have a name of their own.
    pub fn object(&self, is_chunk: bool, choices: Value) -> Value {
        let end = if is_chunk && self.object == "chat.completion" {
            ".chunk"
        } else {
            ""
        };
        json!({
            "id": self.id,
            "object": format!("{}{end}", self.object),
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

fn call(app: &App, call: &Call) -> Value {
    json!({
        "id": app.id("call"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments.to_string() },
    })
}

async fn whole(
    app: &App,
    head: Head,
    mut answers: Answers,
    mut replies: Vec<Reply>,
) -> Result<Response<Body>, Refusal> {
    answers.collect(&mut replies, |_, _, _| {}).await?;
    let tokenizer = &app.prompter.tokenizer;
    let choice = |(index, reply): (usize, &Reply)| {
        let mut message = json!({ "role": "assistant", "content": reply.text });
        if !reply.thought.is_empty() {
            message["reasoning_content"] = reply.thought.trim_end().into();
        }
        if !reply.calls.is_empty() {
            message["tool_calls"] = reply.calls.iter().map(|c| call(app, c)).collect();
            if reply.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        let entries: Vec<Value> = reply.logprobs.iter().map(|l| l.entry(tokenizer)).collect();
        let logprobs = (!entries.is_empty()).then(|| json!({ "content": entries }));
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_reason(reply),
        })
    };
    let mut object = head.object(false, replies.iter().enumerate().map(choice).collect());
    object["usage"] = answers.usage.openai();
    object["timings"] = answers.usage.timings();
    Ok(json_response(&object))
}

async fn stream(
    app: Arc<App>,
    head: Head,
    (mut answers, mut replies): (Answers, Vec<Reply>),
    (events, with_usage): (Events, bool),
) {
    let chunk = |index: usize, delta: Value, logprobs: Value, finish: Option<&str>| {
        let choice = json!({
            "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish,
        });
        head.object(true, json!([choice])).to_string()
    };
    while let Some((index, event)) = answers.next().await {
        let mut chunks = Vec::new();
        match event {
            Event::Failed(error) => return events.fail(None, error.into()).await,
            Event::Read(..) => {
                let delta = json!({ "role": "assistant", "content": "" });
                chunks.push(chunk(index, delta, Value::Null, None));
            }
            Event::Piece {
                text,
                logprob,
                finish,
                ..
            } => {
                let reply = &mut replies[index];
                let calls = reply.calls.len();
                let entry = logprob.as_ref().map(|l| l.entry(&app.prompter.tokenizer));
                let mut logprobs = entry.map_or(Value::Null, |e| json!({ "content": [e] }));
                let added = reply.take(&text, logprob, finish);
                let mut number = calls;
                for part in added {
                    let delta = match part {
                        Part::Thought(text) => json!({ "reasoning_content": text }),
                        Part::Text(text) => json!({ "content": text }),
                        Part::Call(called) => {
                            let mut called = call(&app, &called);
                            called["index"] = number.into();
                            number += 1;
                            json!({ "tool_calls": [called] })
                        }
                    };
                    chunks.push(chunk(index, delta, logprobs.take(), None));
                }
                if !logprobs.is_null() {
                    chunks.push(chunk(index, json!({}), logprobs, None));
                }
                if finish.is_some() {
                    let reason = finish_reason(reply);
                    chunks.push(chunk(index, json!({}), Value::Null, Some(reason)));
                }
            }
        }
        for chunk in chunks {
            if !events.send(None, &chunk).await {
                return;
            }
        }
    }
    if with_usage {
        let mut last = head.object(true, json!([]));
        last["usage"] = answers.usage.openai();
        last["timings"] = answers.usage.timings();
        if !events.send(None, &last.to_string()).await {
            return;
        }
    }
    let _ = events.send(None, "[DONE]").await;
}
