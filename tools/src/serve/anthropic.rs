//! `/v1/messages` and `/v1/messages/count_tokens` of Anthropic's API.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use waterline::{Finish, Grammar, TemplateOptions};

use super::App;
use super::answer::{Added, Part, Reply};
use super::answers::{Form, Usage};
use super::exchange::Exchange;
use super::http::{Body, Refusal, json_response};
use super::request::{Common, Conversation, MOST_VALUES, ToolChoice, messages, parse};

#[derive(Deserialize)]
struct Request {
    messages: Vec<Turn>,
    system: Option<Content>,
    #[serde(default)]
    tools: Vec<Tool>,
    tool_choice: Option<Choice>,
    thinking: Option<Value>,
    output_config: Option<OutputConfig>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Choice {
    Auto,
    None,
    Any {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Tool {
        name: String,
    },
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
    #[serde(default)]
    strict: bool,
}

impl Content {
    /// Returns the text; fails if a block holds anything else.
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
    /// Converts the turn to template messages. Each tool result becomes a separate message.
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

/// Removes the first line of the instructions if it is a client's header that changes with every request: the unchanged
/// rest is then found in the prefix store.
fn stable(system: String) -> String {
    match system.split_once('\n') {
        Some((first, rest)) if first.starts_with("x-anthropic-") => rest.into(),
        _ => system,
    }
}

impl Request {
    /// Moves the conversation out of the request.
    fn conversation(&mut self, app: &App) -> Result<Conversation, Refusal> {
        let mut all = Vec::new();
        if let Some(system) = self.system.take() {
            all.push(json!({ "role": "system", "content": stable(system.text()?) }));
        }
        for turn in std::mem::take(&mut self.messages) {
            all.extend(turn.messages()?);
        }
        let tool = |tool: Tool| {
            json!({ "type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
                "strict": tool.strict,
            }})
        };
        let one = matches!(
            self.tool_choice,
            Some(Choice::Any {
                disable_parallel_tool_use: true
            })
        );
        Ok(Conversation {
            parallel: !one,
            messages: messages(all, &app.limits)?,
            tools: std::mem::take(&mut self.tools)
                .into_iter()
                .map(tool)
                .collect(),
            choice: match self.tool_choice.take() {
                None | Some(Choice::Auto) => ToolChoice::Auto,
                Some(Choice::None) => ToolChoice::None,
                Some(Choice::Any { .. }) => ToolChoice::Required,
                Some(Choice::Tool { name }) => ToolChoice::Named(name),
            },
            template: thinking(
                match self.thinking.as_ref().and_then(|t| t["type"].as_str()) {
                    Some("enabled" | "adaptive") => Some(true),
                    Some(_) => Some(false),
                    None => None,
                },
            ),
        })
    }
}

fn thinking(thinking: Option<bool>) -> TemplateOptions {
    let mut options = TemplateOptions::default();
    options.thinking = thinking;
    options
}

/// `/v1/messages/count_tokens`.
pub async fn count(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body, MOST_VALUES)?;
    let conversation = request.conversation(app)?;
    let options = conversation.options();
    let prompt = app
        .make(move |app| app.prompter.chat(&conversation.messages, options))
        .await?;
    Ok(json_response(
        &json!({ "input_tokens": prompt.tokens.len() }),
    ))
}

/// `/v1/messages`.
pub async fn answer(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body, MOST_VALUES)?;
    let conversation = request.conversation(app)?;
    let mut settings = app.settings(request.common)?;
    let budget = request
        .thinking
        .as_ref()
        .and_then(|thinking| thinking["budget_tokens"].as_u64());
    if let Some(budget) = budget {
        settings.thought_tokens = usize::try_from(budget).ok();
    }
    if settings.n > 1 {
        return Err(Refusal::bad("n: expected 1"));
    }
    let format = request.output_config.and_then(|config| config.format);
    settings.form = format.map(|Format::JsonSchema { schema }| Grammar::JsonSchema(schema));
    let form = Anthropic {
        id: app.id("msg"),
        index: 0,
        open: None,
    };
    app.converse(conversation, settings, form, exchange).await
}

/// The format of Anthropic's responses.
struct Anthropic {
    id: String,
    /// The index of the open block of a stream, or else of the next block.
    index: usize,
    open: Option<&'static str>,
}

/// The block for a part: its kind, its empty start, and the delta with the part's content.
fn block(app: &App, part: &Part) -> (&'static str, Value, Value) {
    match part {
        Part::Thought(text) => (
            "thinking",
            json!({ "type": "thinking", "thinking": "", "signature": "" }),
            json!({ "type": "thinking_delta", "thinking": text }),
        ),
        Part::Text(text) => (
            "text",
            json!({ "type": "text", "text": "" }),
            json!({ "type": "text_delta", "text": text }),
        ),
        Part::Call(call) => (
            "tool_use",
            json!({ "type": "tool_use", "id": app.id("toolu"), "name": call.name, "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": call.arguments.to_string() }),
        ),
    }
}

fn stop_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(Finish::Length) => "max_tokens",
        _ if !reply.calls.is_empty() => "tool_use",
        Some(Finish::Stop) => "stop_sequence",
        _ => "end_turn",
    }
}

impl Anthropic {
    fn message(&self, app: &App, content: Vec<Value>, usage: &Usage) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": app.name,
            "content": content, "stop_reason": null, "stop_sequence": null, "usage": usage.anthropic(),
        })
    }

    /// Ends the open block.
    fn close(&mut self, events: &mut Vec<Value>) {
        if self.open.take().is_some() {
            events.push(json!({ "type": "content_block_stop", "index": self.index }));
            self.index += 1;
        }
    }
}

impl Form for Anthropic {
    fn whole(&self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let reply = &replies[0];
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
        let mut object = self.message(app, content, usage);
        object["stop_reason"] = stop_reason(reply).into();
        object
    }

    fn events(
        &mut self,
        app: &App,
        (_, reply): (usize, &Reply),
        added: Added,
        usage: &Usage,
    ) -> Vec<Value> {
        let mut events = Vec::new();
        if added.begins {
            let message = self.message(app, Vec::new(), usage);
            events.push(json!({ "type": "message_start", "message": message }));
        }
        for part in &added.parts {
            let (kind, empty, delta) = block(app, part);
            // Each call is a separate block; text continues in the open block.
            if self.open != Some(kind) || kind == "tool_use" {
                self.close(&mut events);
                events.push(json!({
                    "type": "content_block_start", "index": self.index, "content_block": empty,
                }));
                self.open = Some(kind);
            }
            events.push(json!({
                "type": "content_block_delta", "index": self.index, "delta": delta,
            }));
        }
        if added.ends {
            self.close(&mut events);
            events.push(json!({
                "type": "message_delta",
                "delta": { "stop_reason": stop_reason(reply), "stop_sequence": null },
                "usage": usage.anthropic(),
            }));
            events.push(json!({ "type": "message_stop" }));
        }
        events
    }
}
