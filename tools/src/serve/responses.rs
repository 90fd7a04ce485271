//! `/v1/responses` of OpenAI's API. A response that a later request continues is found among the last ones.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Response;
use serde_json::{Value, json};
use waterline::{AnswerPart, Finish};

use super::App;
use super::answer::{Added, Reply};
use super::answers::{Form, Usage};
use super::draft::{Draft, call, result};
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::Body;
use super::openai::{template, tool_choice};
use super::refusal::Refusal;
use super::request::{Conversation, MOST_VALUES, messages};

/// Most responses that can be continued, and most bytes of their conversations.
const MOST_KEPT: usize = 1024;
const MOST_KEPT_BYTES: usize = 64 << 20;
/// The beginning of a thought that a client keeps for us. Thoughts of other servers are encrypted.
const THOUGHT_MARK: &str = "waterline:";
/// Fields of the request that the response repeats, with their defaults.
const REPEATED: [(&str, Value); 9] = [
    ("instructions", Value::Null),
    ("max_tokens", Value::Null),
    ("metadata", Value::Null),
    ("previous_response_id", Value::Null),
    ("reasoning", Value::Null),
    ("temperature", Value::Null),
    ("text", Value::Null),
    ("top_p", Value::Null),
    ("user", Value::Null),
];

/// The conversations of the last responses.
#[derive(Default)]
pub struct Kept(Mutex<VecDeque<Conversed>>);

struct Conversed {
    id: String,
    messages: Vec<Value>,
    bytes: usize,
}

impl Kept {
    fn add(&self, id: &str, messages: Vec<Value>) {
        let bytes = messages
            .iter()
            .map(|message| message.to_string().len())
            .sum();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_front(Conversed {
            id: id.into(),
            messages,
            bytes,
        });
        let mut total = 0;
        all.retain(|one| {
            total += one.bytes;
            total <= MOST_KEPT_BYTES
        });
        all.truncate(MOST_KEPT);
    }

    fn find(&self, id: &str) -> Result<Vec<Value>, Refusal> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().find(|one| one.id == id);
        found.map(|one| one.messages.clone()).ok_or_else(|| {
            let reason = format!("Previous response with id '{id}' not found.");
            Refusal::bad(reason).named("previous_response_not_found", "previous_response_id")
        })
    }
}

/// Converts the items of `input` to messages. The reasoning, text and calls of an answer become one message.
fn read_items(input: &Value, all: &mut Vec<Value>, notes: &mut Vec<String>) -> Result<(), Refusal> {
    let items = match input {
        Value::String(text) => {
            all.push(json!({ "role": "user", "content": text }));
            return Ok(());
        }
        Value::Array(items) => items,
        _ => return Err(Refusal::bad("input: expected a text or a list of items")),
    };
    let mut draft = Draft::default();
    for item in items {
        let role = item["role"].as_str().unwrap_or("");
        match item["type"].as_str().unwrap_or("message") {
            "message" if !role.is_empty() => {
                // A second text begins another answer.
                if role != "assistant" || !draft.is_empty() {
                    draft.finish("assistant", all);
                }
                match &item["content"] {
                    Value::Array(parts) => parts.iter().for_each(|part| draft.add(part)),
                    content => draft.add(content),
                }
                if role != "assistant" {
                    draft.finish(role, all);
                }
            }
            "function_call" => {
                draft
                    .calls
                    .push(call(&item["call_id"], &item["name"], &item["arguments"]));
            }
            "function_call_output" => {
                draft.finish("assistant", all);
                all.push(result(&item["call_id"], &item["output"]));
            }
            "reasoning" => {
                if !draft.is_empty() {
                    draft.finish("assistant", all);
                }
                draft.thought += &thought(item);
            }
            other => notes.push(format!("an item of type {other} is left out")),
        }
    }
    draft.finish("assistant", all);
    Ok(())
}

/// The thought in a reasoning item.
fn thought(item: &Value) -> String {
    let texts = |key: &str| -> String {
        let parts = item[key].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    let own = item["encrypted_content"].as_str();
    let own = own.and_then(|text| text.strip_prefix(THOUGHT_MARK));
    let content = texts("content");
    match own {
        Some(own) => own.into(),
        None if content.is_empty() => texts("summary"),
        None => content,
    }
}

/// Converts the tools to functions. Tools that the provider runs are left out with a remark.
fn functions(tools: &[Value], notes: &mut Vec<String>) -> Vec<Value> {
    let mut functions = Vec::new();
    for tool in tools {
        if tool["type"] != "function" {
            let kind = tool["type"].as_str().unwrap_or("");
            notes.push(format!("a tool of type {kind} is left out"));
            continue;
        }
        functions.push(json!({ "type": "function", "function": {
            "name": tool["name"],
            "description": tool["description"].as_str().unwrap_or(""),
            "parameters": tool["parameters"],
            "strict": tool["strict"] == true,
        }}));
    }
    functions
}

/// Answers a request.
pub async fn respond(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_VALUES, Face::Responses)?;
    for name in ["background", "conversation", "prompt"] {
        if !fields.get(name).is_null() && *fields.get(name) != false {
            let reason =
                format!("{name}: this server keeps nothing between requests but responses");
            return Err(Refusal::bad(reason));
        }
    }
    let format = fields.get("text")["format"].clone();
    fields.default("response_format", format);
    let effort = fields.get("reasoning")["effort"].clone();
    fields.default("reasoning_effort", effort);
    let mut settings = app.settings(&fields)?;
    let includes = |name: &str| {
        let mut all = fields.get("include").as_array().into_iter().flatten();
        all.any(|included| *included == name)
    };
    let hides_thoughts = includes("reasoning.encrypted_content");
    if includes("message.output_text.logprobs") {
        settings.logprobs = Some(fields.whole("top_logprobs").map_or(0, |top| top as usize));
    }
    let mut all = match fields.text("previous_response_id") {
        Some(id) => app.common.responses.find(id)?,
        None => Vec::new(),
    };
    read_items(fields.get("input"), &mut all, &mut settings.notes)?;
    let tools = fields.take_list("tools");
    let mut repeated = json!({
        "parallel_tool_calls": *fields.get("parallel_tool_calls") != false,
        "store": *fields.get("store") != false,
        "truncation": fields.text("truncation").unwrap_or("disabled"),
        "tool_choice": fields.text("tool_choice").unwrap_or("auto"),
        "tools": tools,
    });
    for (name, default) in REPEATED {
        let value = fields.get(name);
        repeated[name] = if value.is_null() {
            default
        } else {
            value.clone()
        };
    }
    repeated["max_output_tokens"] = repeated["max_tokens"].take();
    if repeated["text"].is_null() {
        repeated["text"] = json!({ "format": { "type": "text" } });
    }
    let mut system = Vec::new();
    if let Some(text) = fields.text("instructions") {
        system.push(json!({ "role": "system", "content": text }));
    }
    let conversation = Conversation {
        template: template(&mut fields)?,
        choice: tool_choice(fields.get("tool_choice"))?,
        parallel: repeated["parallel_tool_calls"] == true,
        tools: functions(&tools, &mut settings.notes),
        messages: messages(system.into_iter().chain(all.clone()).collect(), &app.limits)?,
        truncates: repeated["truncation"] == "auto",
    };
    let form = Responses {
        id: app.id("resp"),
        created: super::now(),
        is_kept: repeated["store"] == true,
        hides_thoughts,
        repeated,
        messages: all,
        sequence: 0,
        items: Vec::new(),
        open: None,
    };
    app.converse(conversation, settings, form, exchange).await
}

/// The format of responses.
struct Responses {
    id: String,
    created: u64,
    /// The fields of the request that the response repeats.
    repeated: Value,
    /// The conversation without the instructions.
    messages: Vec<Value>,
    is_kept: bool,
    /// Whether thoughts are also returned in the form that clients keep.
    hides_thoughts: bool,
    /// The number of the next event.
    sequence: usize,
    /// The output items that have ended.
    items: Vec<Value>,
    open: Option<Item>,
}

/// An output item that is still written.
struct Item {
    kind: Kind,
    id: String,
    /// The text, or the arguments of a call.
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, PartialEq)]
enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn new(app: &App, kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call { .. } => "fc",
        };
        Item {
            kind,
            id: app.id(prefix),
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    /// The part that holds the text; `None` for a call.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Message => Some(json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            })),
            Kind::Call { .. } => None,
        }
    }

    /// The item, with its text once it has ended.
    fn value(&self, has_ended: bool, hides_thoughts: bool) -> Value {
        let status = if has_ended {
            "completed"
        } else {
            "in_progress"
        };
        let content: Vec<Value> = self.part().into_iter().filter(|_| has_ended).collect();
        match &self.kind {
            Kind::Message => json!({
                "id": self.id, "type": "message", "role": "assistant", "status": status, "content": content,
            }),
            Kind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content,
                "encrypted_content": hides_thoughts.then(|| format!("{THOUGHT_MARK}{}", self.text)),
            }),
            Kind::Call { id, name } => json!({
                "id": self.id, "type": "function_call", "call_id": id, "status": status,
                "name": name, "arguments": self.text,
            }),
        }
    }

    /// The names of the events of its text.
    fn event(&self) -> &'static str {
        match self.kind {
            Kind::Reasoning => "response.reasoning_text",
            Kind::Message => "response.output_text",
            Kind::Call { .. } => "response.function_call_arguments",
        }
    }
}

impl Responses {
    /// The response as it is now.
    fn response(&self, app: &App, status: &str, usage: Option<&Usage>) -> Value {
        let reason = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "model": app.name,
            "output": self.items, "error": null, "incomplete_details": reason,
            "usage": usage.map(Usage::responses),
        });
        for (name, value) in self.repeated.as_object().into_iter().flatten() {
            response[name] = value.clone();
        }
        response
    }

    /// The response at its end, which a later request may continue.
    fn end(&mut self, app: &App, reply: &Reply, usage: &Usage) -> Value {
        if self.is_kept {
            let mut all = std::mem::take(&mut self.messages);
            let mut ignored = Vec::new();
            // These items are our own.
            let _ = read_items(&Value::Array(self.items.clone()), &mut all, &mut ignored);
            app.common.responses.add(&self.id, all);
        }
        let status = match reply.finish {
            Some(Finish::Length) => "incomplete",
            _ => "completed",
        };
        self.response(app, status, Some(usage))
    }

    /// Adds an event about the item with index `self.items.len()`.
    fn push(&mut self, events: &mut Vec<Value>, kind: String, mut event: Value) {
        event["type"] = kind.into();
        event["sequence_number"] = self.sequence.into();
        event["output_index"] = self.items.len().into();
        self.sequence += 1;
        events.push(event);
    }

    /// Adds an event about the response.
    fn push_response(&mut self, events: &mut Vec<Value>, kind: &str, response: Value) {
        let sequence = self.sequence;
        self.sequence += 1;
        events.push(json!({ "type": kind, "sequence_number": sequence, "response": response }));
    }

    /// Begins an item.
    fn start(&mut self, app: &App, kind: Kind, events: &mut Vec<Value>) {
        self.close(events);
        let item = Item::new(app, kind);
        self.push(
            events,
            "response.output_item.added".into(),
            json!({ "item": item.value(false, false) }),
        );
        if let Some(part) = item.part() {
            let about = json!({ "item_id": item.id, "content_index": 0, "part": part });
            self.push(events, "response.content_part.added".into(), about);
        }
        self.open = Some(item);
    }

    /// Adds text to the open item.
    fn write(&mut self, text: &str, logprobs: Vec<Value>, events: &mut Vec<Value>) {
        let Some(mut item) = self.open.take() else {
            return;
        };
        item.text.push_str(text);
        let mut delta = json!({ "item_id": item.id, "delta": text });
        if item.part().is_some() {
            delta["content_index"] = 0.into();
        }
        if item.kind == Kind::Message {
            delta["logprobs"] = logprobs.clone().into();
            item.logprobs.extend(logprobs);
        }
        self.push(events, format!("{}.delta", item.event()), delta);
        self.open = Some(item);
    }

    /// Ends the open item.
    fn close(&mut self, events: &mut Vec<Value>) {
        let Some(item) = self.open.take() else {
            return;
        };
        let mut done = json!({ "item_id": item.id });
        match &item.kind {
            Kind::Call { name, .. } => {
                (done["name"], done["arguments"]) = (name.clone().into(), item.text.clone().into());
            }
            _ => (done["content_index"], done["text"]) = (0.into(), item.text.clone().into()),
        }
        if item.kind == Kind::Message {
            done["logprobs"] = item.logprobs.clone().into();
        }
        self.push(events, format!("{}.done", item.event()), done);
        if let Some(part) = item.part() {
            let part = json!({ "item_id": item.id, "content_index": 0, "part": part });
            self.push(events, "response.content_part.done".into(), part);
        }
        let value = item.value(true, self.hides_thoughts);
        self.push(
            events,
            "response.output_item.done".into(),
            json!({ "item": value }),
        );
        self.items.push(value);
    }

    /// Adds the parts of an answer, with the events that report them.
    fn take(&mut self, app: &App, added: &Added) -> Vec<Value> {
        let mut events = Vec::new();
        let tokenizer = &app.prompter.tokenizer;
        let mut logprobs: Vec<Value> = added.logprobs.iter().map(|t| t.entry(tokenizer)).collect();
        for part in &added.parts {
            let (kind, text) = match part {
                AnswerPart::Reasoning(text) => (Kind::Reasoning, text),
                AnswerPart::Content(text) => (Kind::Message, text),
                AnswerPart::CallBegins { name, id } => {
                    let (id, name) = (id.clone(), name.clone());
                    let id = id.unwrap_or_else(|| app.id("call"));
                    self.start(app, Kind::Call { id, name }, &mut events);
                    continue;
                }
                AnswerPart::CallArguments(json) => {
                    self.write(json, Vec::new(), &mut events);
                    continue;
                }
                // A stream cannot take back what it sent.
                _ => continue,
            };
            let logprobs = match kind {
                Kind::Message => std::mem::take(&mut logprobs),
                _ => Vec::new(),
            };
            if self.open.as_ref().is_none_or(|item| item.kind != kind) {
                self.start(app, kind, &mut events);
            }
            self.write(text, logprobs, &mut events);
        }
        if added.ends {
            if self.items.is_empty() && self.open.is_none() {
                self.start(app, Kind::Message, &mut events);
                self.write("", logprobs, &mut events);
            }
            self.close(&mut events);
        }
        events
    }
}

impl Form for Responses {
    fn face(&self) -> Face {
        Face::Responses
    }

    fn begin(&mut self, app: &App) -> Vec<Value> {
        let mut events = Vec::new();
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response(app, "in_progress", None);
            self.push_response(&mut events, kind, response);
        }
        events
    }

    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let reply = &replies[0];
        let mut parts = Vec::new();
        let answer = reply.answer.clone();
        let thought = answer.reasoning.trim_end();
        parts.extend((!thought.is_empty()).then(|| AnswerPart::Reasoning(thought.into())));
        parts.extend((!answer.content.is_empty()).then_some(AnswerPart::Content(answer.content)));
        for call in answer.calls {
            let (name, id) = (call.name, call.id);
            parts.push(AnswerPart::CallBegins { name, id });
            parts.push(AnswerPart::CallArguments(call.arguments));
        }
        let added = Added {
            parts,
            logprobs: reply.logprobs.clone(),
            ends: true,
            ..Added::default()
        };
        self.take(app, &added);
        self.end(app, reply, usage)
    }

    fn events(
        &mut self,
        app: &App,
        (_, reply): (usize, &Reply),
        added: Added,
        usage: &Usage,
    ) -> Vec<Value> {
        let mut events = self.take(app, &added);
        if added.ends {
            let response = self.end(app, reply, usage);
            let kind = format!("response.{}", response["status"].as_str().unwrap_or(""));
            self.push_response(&mut events, &kind, response);
        }
        events
    }

    fn failed(&mut self, app: &App, refusal: &Refusal) -> Value {
        let mut response = self.response(app, "failed", None);
        response["error"] = json!({ "code": "server_error", "message": refusal.message });
        let mut events = Vec::new();
        self.push_response(&mut events, "response.failed", response);
        events.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_items_of_an_answer_become_one_message() {
        let input = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "waterline:hm"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "web_search_call", "id": "w"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
            {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "y"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
            {"role": "assistant", "content": "d"},
            {"role": "assistant", "content": "e"},
        ]);
        let (mut all, mut notes) = (Vec::new(), Vec::new());
        read_items(&input, &mut all, &mut notes).expect("items");
        let names = |value: &Value| [value["role"].clone(), value["content"].clone()];
        let found: Vec<_> = all.iter().map(names).collect();
        let expected = [
            ["user", "a\nb"],
            ["assistant", "c"],
            ["tool", "x"],
            ["tool", "y"],
            ["assistant", "d"],
            ["assistant", "e"],
        ];
        assert_eq!(found, expected.map(|pair| pair.map(Value::from)));
        assert_eq!(all[1]["reasoning_content"], "hm");
        assert_eq!(all[1]["tool_calls"][1]["function"]["name"], "g");
        assert_eq!(notes, ["an item of type web_search_call is left out"]);
    }

    #[test]
    fn conversations_are_kept_within_bounds() {
        let kept = Kept::default();
        let large = vec![json!("x".repeat(MOST_KEPT_BYTES / 3))];
        for number in 0..4 {
            kept.add(&format!("{number}"), large.clone());
        }
        let has = |id| kept.find(id).is_ok();
        assert_eq!(["0", "1", "2", "3"].map(has), [false, false, true, true]);
        for number in 0..MOST_KEPT {
            kept.add(&format!("n{number}"), Vec::new());
        }
        assert!(!has("3") && has("n0"));
    }
}
