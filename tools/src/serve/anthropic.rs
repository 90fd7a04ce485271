//! `/v1/messages` and `/v1/messages/count_tokens` of Anthropic's API.

use std::sync::Arc;

use hyper::Response;
use serde_json::{Value, json};
use waterline::{AnswerPart, Finish};

use super::App;
use super::answer::{Added, Reply};
use super::answers::{Form, Usage};
use super::draft::{Draft, call, result, text_of};
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::{Body, json_response};
use super::refusal::Refusal;
use super::request::{Conversation, MOST_VALUES, ToolChoice, messages, think};

/// The signature of thoughts. Clients return it with the thought; nothing depends on it.
const SIGNATURE: &str = "unsigned";

/// Converts a turn to messages for the template. Each result of a tool becomes a separate message: before a user's text, and
/// where it lies in an answer whose tools the provider ran.
fn turn(turn: &Value, all: &mut Vec<Value>) -> Result<(), Refusal> {
    let Some(role) = turn["role"].as_str() else {
        return Err(Refusal::bad("messages: expected a role"));
    };
    let blocks = match &turn["content"] {
        Value::Array(blocks) => blocks,
        Value::String(_) => {
            all.push(turn.clone());
            return Ok(());
        }
        _ => return Err(Refusal::bad("content: expected a text or a list of blocks")),
    };
    let mut draft = Draft::default();
    for block in blocks {
        let kind = block["type"].as_str().unwrap_or("");
        match kind {
            "text" | "document" | "search_result" | "image" => draft.add(block),
            "thinking" => draft.thought += block["thinking"].as_str().unwrap_or(""),
            "redacted_thinking" => {}
            "tool_use" | "server_tool_use" | "mcp_tool_use" => {
                let made = call(&block["id"], &block["name"], &block["input"]);
                draft.calls.push(made);
            }
            _ if kind.ends_with("tool_result") => {
                if role == "assistant" {
                    draft.finish(role, all);
                }
                all.push(result(&block["tool_use_id"], &block["content"]));
            }
            _ => {
                return Err(Refusal::bad(format!(
                    "content: expected blocks of type text, thinking, tool_use or tool_result, found {kind:?}"
                )));
            }
        }
    }
    draft.finish(role, all);
    Ok(())
}

/// Removes the first line of the instructions if it is a client's header that changes with every request: the unchanged
/// rest is then found in the prefix store.
fn stable(system: String) -> String {
    match system.split_once('\n') {
        Some((first, rest)) if first.starts_with("x-anthropic-") => rest.into(),
        _ => system,
    }
}

/// Converts the tools to functions. Tools that the provider runs have no schema; they are left out with a remark.
fn functions(tools: Vec<Value>, notes: &mut Vec<String>) -> Result<Vec<Value>, Refusal> {
    let mut functions = Vec::new();
    for mut tool in tools {
        let Some(name) = tool["name"].as_str().map(String::from) else {
            return Err(Refusal::bad("tools: expected a name"));
        };
        if !tool["input_schema"].is_object() {
            notes.push(format!(
                "the tool {name} is left out: it has no input_schema"
            ));
            continue;
        }
        functions.push(json!({ "type": "function", "function": {
            "name": name,
            "description": tool["description"].as_str().unwrap_or(""),
            "parameters": tool["input_schema"].take(),
            "strict": tool["strict"] == true,
        }}));
    }
    Ok(functions)
}

/// Moves the conversation out of the request. Remarks on its tools are added to `notes`.
fn conversation(
    app: &App,
    fields: &mut Fields,
    notes: &mut Vec<String>,
) -> Result<Conversation, Refusal> {
    let mut all = Vec::new();
    let system = text_of(fields.get("system"));
    if !system.is_empty() {
        all.push(json!({ "role": "system", "content": stable(system) }));
    }
    for message in fields.take_list("messages") {
        turn(&message, &mut all)?;
    }
    let choice = fields.get("tool_choice");
    let thinking = fields.get("thinking")["type"].as_str();
    Ok(Conversation {
        parallel: choice["disable_parallel_tool_use"] != true,
        choice: match (choice["type"].as_str(), choice["name"].as_str()) {
            (None | Some("auto"), _) => ToolChoice::Auto,
            (Some("none"), _) => ToolChoice::None,
            (Some("any"), _) => ToolChoice::Required,
            (Some("tool"), Some(name)) => ToolChoice::Named(name.into()),
            _ => {
                return Err(Refusal::bad(
                    "tool_choice: expected auto, any, tool or none",
                ));
            }
        },
        template: think(thinking.map(|kind| ["enabled", "adaptive"].contains(&kind))),
        tools: functions(fields.take_list("tools"), notes)?,
        messages: messages(all, &app.limits)?,
        truncates: false,
    })
}

/// `/v1/messages/count_tokens`.
pub async fn count(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_VALUES, Face::Anthropic)?;
    let conversation = conversation(app, &mut fields, &mut Vec::new())?;
    let options = conversation.options();
    let state = fields.text("state").map(|name| app.states.find(name));
    let state = state.transpose()?;
    let prompt = app.make(move |app| {
        let prompt = app.prompter.chat(&conversation.messages, options)?;
        match &state {
            Some(state) => app.after(state, &prompt),
            None => Ok(prompt),
        }
    });
    let tokens = prompt.await?.tokens.len();
    Ok(json_response(&json!({ "input_tokens": tokens })))
}

/// `/v1/messages`.
pub async fn answer(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_VALUES, Face::Anthropic)?;
    let format = fields.get("output_config")["format"].clone();
    fields.default("response_format", format);
    let mut settings = app.settings(&fields)?;
    let conversation = conversation(app, &mut fields, &mut settings.notes)?;
    let budget = fields.get("thinking")["budget_tokens"].as_u64();
    if let Some(budget) = budget {
        settings.thought_tokens = usize::try_from(budget).ok();
    }
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

/// The kind of block that holds a part, and the delta with the part's content.
fn delta(part: &AnswerPart) -> Option<(&'static str, Value)> {
    Some(match part {
        AnswerPart::Reasoning(text) => (
            "thinking",
            json!({ "type": "thinking_delta", "thinking": text }),
        ),
        AnswerPart::Content(text) => ("text", json!({ "type": "text_delta", "text": text })),
        AnswerPart::CallArguments(json) => (
            "tool_use",
            json!({ "type": "input_json_delta", "partial_json": json }),
        ),
        _ => return None,
    })
}

fn tool_use(app: &App, name: &str, id: Option<&str>, input: Value) -> Value {
    let id = id.map_or_else(|| app.id("toolu"), str::to_string);
    json!({ "type": "tool_use", "id": id, "name": name, "input": input })
}

fn stop_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(Finish::Length) => "max_tokens",
        _ if !reply.answer.calls.is_empty() => "tool_use",
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

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.index, "delta": delta })
    }

    /// Begins a block.
    fn start(&mut self, kind: &'static str, empty: Value, events: &mut Vec<Value>) {
        self.close(events);
        events.push(json!({
            "type": "content_block_start", "index": self.index, "content_block": empty,
        }));
        self.open = Some(kind);
    }

    /// Ends the open block.
    fn close(&mut self, events: &mut Vec<Value>) {
        if let Some(kind) = self.open.take() {
            if kind == "thinking" {
                let delta = json!({ "type": "signature_delta", "signature": SIGNATURE });
                events.push(self.delta(delta));
            }
            events.push(json!({ "type": "content_block_stop", "index": self.index }));
            self.index += 1;
        }
    }
}

impl Form for Anthropic {
    fn face(&self) -> Face {
        Face::Anthropic
    }

    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let reply = &replies[0];
        let mut content = Vec::new();
        let answer = &reply.answer;
        if !answer.reasoning.is_empty() {
            let thought = answer.reasoning.trim_end();
            content
                .push(json!({ "type": "thinking", "thinking": thought, "signature": SIGNATURE }));
        }
        if !answer.content.is_empty() {
            content.push(json!({ "type": "text", "text": answer.content }));
        }
        for call in &answer.calls {
            content.push(tool_use(app, &call.name, call.id.as_deref(), call.value()));
        }
        let mut object = self.message(app, content, usage);
        object["stop_reason"] = stop_reason(reply).into();
        object["stop_sequence"] = json!(reply.stop);
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
            if let AnswerPart::CallBegins { name, id } = part {
                let block = tool_use(app, name, id.as_deref(), json!({}));
                self.start("tool_use", block, &mut events);
            }
            let Some((kind, delta)) = delta(part) else {
                continue;
            };
            // Text continues in the open block.
            if self.open != Some(kind) {
                let empty = match kind {
                    "text" => json!({ "type": "text", "text": "" }),
                    _ => json!({ "type": "thinking", "thinking": "", "signature": "" }),
                };
                self.start(kind, empty, &mut events);
            }
            events.push(self.delta(delta));
        }
        if added.ends {
            self.close(&mut events);
            events.push(json!({
                "type": "message_delta",
                "delta": { "stop_reason": stop_reason(reply), "stop_sequence": reply.stop },
                "usage": usage.anthropic(),
            }));
            events.push(json!({ "type": "message_stop" }));
        }
        events
    }
}
