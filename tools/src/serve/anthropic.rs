//! `/v1/messages` and `/v1/messages/count_tokens`, as Anthropic's clients speak.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;
use waterline::{Finish, Grammar, Message};

use super::App;
use super::answer::{Part, Reply};
use super::http::{Body, Events, Refusal, json_response};
use super::request::{Answers, OneOrMany, Sampling, messages, parse, stops};
use super::scheduler::Event;

#[derive(Deserialize)]
struct Request {
    messages: Vec<Turn>,
    system: Option<Content>,
    max_tokens: Option<usize>,
    #[serde(default)]
    stream: bool,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    thinking: Option<Value>,
    output_config: Option<OutputConfig>,
    #[serde(flatten)]
    sampling: Sampling,
}

#[derive(Deserialize)]
struct OutputConfig {
    format: Option<Format>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
    JsonSchema { schema: Value },
}

#[derive(Deserialize)]
struct Turn {
    role: String,
    content: Content,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    RedactedThinking {},
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Content>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Tool {
    name: String,
    #[serde(default)]
    description: String,
    input_schema: Value,
}

impl Content {
    /// The text of blocks that hold nothing else.
    fn text(self) -> Result<String, Refusal> {
        let blocks = match self {
            Content::Text(text) => return Ok(text),
            Content::Blocks(blocks) => blocks,
        };
        let text = |block| match block {
            Block::Text { text } => Ok(text),
            _ => Err(Refusal::bad("content: expected a text")),
        };
        let texts = blocks
            .into_iter()
            .map(text)
            .collect::<Result<Vec<_>, _>>()?;
        Ok(texts.join("\n"))
    }
}

impl Turn {
    /// The messages that a template has for it: results of tools are messages of their own.
    fn messages(self) -> Result<Vec<Value>, Refusal> {
        let blocks = match self.content {
            Content::Text(text) => {
                return Ok(vec![json!({ "role": self.role, "content": text })]);
            }
            Content::Blocks(blocks) => blocks,
        };
        let (mut texts, mut calls, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let mut thought = String::new();
        for block in blocks {
            match block {
                Block::Text { text } => texts.push(text),
                Block::Thinking { thinking } => thought.push_str(&thinking),
                Block::RedactedThinking {} => {}
                Block::ToolUse { id, name, input } => calls.push(json!({
                    "id": id, "type": "function",
                    "function": { "name": name, "arguments": input },
                })),
                Block::ToolResult {
                    tool_use_id,
                    content,
                } => {
                    let content = content.map_or(Ok(String::new()), Content::text)?;
                    all.push(json!({
                        "role": "tool", "tool_call_id": tool_use_id, "content": content,
                    }));
                }
                Block::Other => {
                    let reason =
                        "content: expected blocks of type text, thinking, tool_use or tool_result";
                    return Err(Refusal::bad(reason));
                }
            }
        }
        if !texts.is_empty() || !calls.is_empty() {
            let mut message = json!({ "role": self.role, "content": texts.join("\n") });
            if !thought.is_empty() {
                message["reasoning_content"] = thought.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            all.push(message);
        }
        Ok(all)
    }
}

/// Instructions without the line that some clients change with every request, so that what follows it is read once.
fn stable(system: String) -> String {
    match system.split_once('\n') {
        Some((first, rest)) if first.starts_with("x-anthropic-") => rest.into(),
        _ => system,
    }
}

/// The messages, and what the template is given besides: the tools and whether to think.
type Conversation = (Vec<Message>, (Vec<Value>, Option<bool>));

/// The conversation of a request.
fn conversation(app: &App, request: &mut Request) -> Result<Conversation, Refusal> {
    let mut all = Vec::new();
    if let Some(system) = request.system.take() {
        all.push(json!({ "role": "system", "content": stable(system.text()?) }));
    }
    for turn in std::mem::take(&mut request.messages) {
        all.extend(turn.messages()?);
    }
    let without = request
        .tool_choice
        .as_ref()
        .is_some_and(|choice| choice["type"] == "none");
    let tools = request
        .tools
        .take()
        .filter(|_| !without)
        .unwrap_or_default();
    let tool = |tool: Tool| {
        json!({ "type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
        }})
    };
    let thinking = match request.thinking.as_ref().and_then(|t| t["type"].as_str()) {
        Some("enabled" | "adaptive") => Some(true),
        Some(_) => Some(false),
        None => None,
    };
    let tools = tools.into_iter().map(tool).collect();
    Ok((messages(all, &app.limits)?, (tools, thinking)))
}

/// `/v1/messages/count_tokens`.
pub async fn count(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body)?;
    let (messages, (tools, thinking)) = conversation(app, &mut request)?;
    let prompt = app.conversation(messages, (tools, thinking)).await?;
    Ok(json_response(
        &json!({ "input_tokens": prompt.tokens.len() }),
    ))
}

/// `/v1/messages`.
pub async fn answer(
    app: &Arc<App>,
    body: &[u8],
    stuck: &Arc<Notify>,
) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body)?;
    let (messages, (tools, thinking)) = conversation(app, &mut request)?;
    let stop = stops(request.stop_sequences.map(OneOrMany::Many))?;
    let mut settings = app.settings(request.sampling, (None, request.max_tokens), stop)?;
    let format = request.output_config.and_then(|config| config.format);
    settings.form = format.map(|Format::JsonSchema { schema }| Grammar::JsonSchema(schema));
    let prompt = app
        .conversation(messages, (tools.clone(), thinking))
        .await?;
    let Some(template) = prompt.template.clone() else {
        return Err(Refusal::bad("messages: no template"));
    };
    let reply = app.reply(&template, &tools, &mut settings.generate)();
    let answers = app.answers(vec![prompt], &settings).await?;
    let id = app.id("msg");
    if !request.stream {
        return whole(app, id, answers, reply).await;
    }
    let (events, response) = Events::new(stuck);
    tokio::spawn(stream(Arc::clone(app), id, (answers, reply), events));
    Ok(response)
}

fn message(app: &App, id: &str, content: Vec<Value>) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": app.name,
        "content": content, "stop_reason": null, "stop_sequence": null,
    })
}

fn stop_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(Finish::Length) => "max_tokens",
        _ if !reply.calls.is_empty() => "tool_use",
        Some(Finish::Stop) => "stop_sequence",
        _ => "end_turn",
    }
}

async fn whole(
    app: &App,
    id: String,
    mut answers: Answers,
    mut reply: Reply,
) -> Result<Response<Body>, Refusal> {
    let one = std::slice::from_mut(&mut reply);
    answers.collect(one, |_, _, _| {}).await?;
    let mut content = Vec::new();
    if !reply.thought.is_empty() {
        let thought = reply.thought.trim_end();
        content.push(json!({ "type": "thinking", "thinking": thought, "signature": "" }));
    }
    if !reply.text.is_empty() {
        content.push(json!({ "type": "text", "text": reply.text }));
    }
    for call in &reply.calls {
        content.push(json!({
            "type": "tool_use", "id": app.id("toolu"), "name": call.name, "input": call.arguments,
        }));
    }
    let mut object = message(app, &id, content);
    object["stop_reason"] = stop_reason(&reply).into();
    object["usage"] = answers.usage.anthropic();
    Ok(json_response(&object))
}

/// The block that a stream is in.
#[derive(PartialEq, Clone, Copy)]
enum Open {
    None,
    Thinking,
    Text,
}

async fn stream(
    app: Arc<App>,
    id: String,
    (mut answers, mut reply): (Answers, Reply),
    events: Events,
) {
    let (mut index, mut open) = (0, Open::None);
    while let Some((_, event)) = answers.next().await {
        let mut list: Vec<Value> = Vec::new();
        match event {
            Event::Failed(error) => return events.fail(Some("error"), error.into()).await,
            Event::Read(..) => {
                let mut message = message(&app, &id, Vec::new());
                message["usage"] = answers.usage.anthropic();
                list.push(json!({ "type": "message_start", "message": message }));
            }
            Event::Piece {
                text,
                logprob,
                finish,
                ..
            } => {
                for part in reply.take(&text, logprob, finish) {
                    let kind = match &part {
                        Part::Thought(_) => Open::Thinking,
                        Part::Text(_) => Open::Text,
                        Part::Call(_) => Open::None,
                    };
                    if open != Open::None && open != kind {
                        list.push(json!({ "type": "content_block_stop", "index": index }));
                        (index, open) = (index + 1, Open::None);
                    }
                    block(&app, &part, (&mut index, &mut open), &mut list);
                }
                if finish.is_some() {
                    if open != Open::None {
                        list.push(json!({ "type": "content_block_stop", "index": index }));
                    }
                    list.push(json!({
                        "type": "message_delta",
                        "delta": { "stop_reason": stop_reason(&reply), "stop_sequence": null },
                        "usage": answers.usage.anthropic(),
                    }));
                    list.push(json!({ "type": "message_stop" }));
                }
            }
        }
        for event in list {
            let name = event["type"].as_str().map(String::from);
            if !events.send(name.as_deref(), &event.to_string()).await {
                return;
            }
        }
    }
}

/// The events of a part of an answer; text goes on in the block that is open.
fn block(app: &App, part: &Part, (index, open): (&mut usize, &mut Open), list: &mut Vec<Value>) {
    let (kind, begin, delta) = match part {
        Part::Thought(text) => (
            Open::Thinking,
            json!({ "type": "thinking", "thinking": "", "signature": "" }),
            json!({ "type": "thinking_delta", "thinking": text }),
        ),
        Part::Text(text) => (
            Open::Text,
            json!({ "type": "text", "text": "" }),
            json!({ "type": "text_delta", "text": text }),
        ),
        Part::Call(call) => (
            Open::None,
            json!({ "type": "tool_use", "id": app.id("toolu"), "name": call.name, "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": call.arguments.to_string() }),
        ),
    };
    if *open != kind || kind == Open::None {
        list.push(
            json!({ "type": "content_block_start", "index": *index, "content_block": begin }),
        );
    }
    list.push(json!({ "type": "content_block_delta", "index": *index, "delta": delta }));
    *open = kind;
    if kind == Open::None {
        list.push(json!({ "type": "content_block_stop", "index": *index }));
        *index += 1;
    }
}
