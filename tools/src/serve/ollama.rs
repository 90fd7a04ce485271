//! Ollama's interface: `/api/chat` and `/api/generate`, whose streams are lines of JSON, and the lists of models.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use hyper::Response;
use serde::Serialize;
use serde_json::{Value, json};
use waterline::{Answer, Finish, ToolCall};

use super::App;
use super::answer::{Added, Reply};
use super::answers::{Form, Usage};
use super::embeddings::{self, Input};
use super::exchange::Exchange;
use super::fields::{Face, Fields, object};
use super::http::{Body, json_response};
use super::models::Entry;
use super::native::has_infill;
use super::refusal::Refusal;
use super::request::{Conversation, MOST_VALUES, Settings, ToolChoice, messages, think};

/// The version of the interface, which clients compare.
pub const VERSION: &str = "0.13.3";

/// Checks a request. `options` and `format` become the fields of other interfaces. A `keep_alive` of 0 unloads the model afterwards, if it
/// is one of several.
fn read(app: &App, body: &[u8]) -> Result<Fields, Refusal> {
    let mut body = object(body, MOST_VALUES)?;
    if let Some(Value::Object(options)) = body.remove("options") {
        for (name, value) in options {
            body.entry(name).or_insert(value);
        }
    }
    match body.remove("format") {
        None | Some(Value::Null) => {}
        Some(Value::String(format)) if format.is_empty() => {}
        Some(Value::String(format)) if format == "json" => {
            body.insert("response_format".into(), json!({ "type": "json_object" }));
        }
        Some(schema @ Value::Object(_)) => {
            let format = json!({ "type": "json_schema", "schema": schema });
            body.insert("response_format".into(), format);
        }
        Some(_) => return Err(Refusal::bad("format: expected \"json\" or a schema")),
    }
    let mut fields = Fields::check(body, Face::Ollama)?;
    fields.default("stream", true);
    if ends_at_once(&fields) {
        app.leaves.store(true, Ordering::Relaxed);
    }
    Ok(fields)
}

/// A message in OpenAI's form.
fn message(mut message: Value) -> Value {
    if let Some(fields) = message.as_object_mut() {
        if let Some(thought) = fields.remove("thinking") {
            fields.insert("reasoning_content".into(), thought);
        }
        let images = fields.remove("images");
        if images.is_some_and(|images| images.as_array().is_some_and(|all| !all.is_empty())) {
            let text = json!({ "type": "text", "text": fields.get("content") });
            fields.insert("content".into(), json!([text, { "type": "image_url" }]));
        }
    }
    message
}

/// Whether the model should think: a flag, or how much.
fn thinking(fields: &Fields) -> Option<bool> {
    match fields.get("think") {
        Value::Null => None,
        Value::Bool(flag) => Some(*flag),
        level => Some(level != "none"),
    }
}

/// Whether `keep_alive` is no time: a number of seconds, or a text such as `0s`.
fn ends_at_once(fields: &Fields) -> bool {
    let keep_alive = fields.get("keep_alive");
    let text = keep_alive
        .as_str()
        .map(|text| text.trim_end_matches(char::is_alphabetic));
    let number = text.map_or(keep_alive.as_f64(), |text| text.parse().ok());
    number == Some(0.0)
}

/// `/api/chat`.
pub async fn chat(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = read(app, body)?;
    let all = fields.take_list("messages");
    converse(app, fields, all, true, exchange).await
}

/// The response of `/api/embed`.
#[derive(Serialize)]
struct Embedded<'a> {
    model: &'a str,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// `/api/embed`: vectors of one or more texts.
pub async fn embed(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = read(app, body)?;
    let inputs = embeddings::inputs(fields.take("input"))?;
    let truncates = *fields.get("truncate") != false;
    let vectors = app.embed(inputs, &fields, truncates, exchange).await?;
    embeddings::json(&Embedded {
        model: &app.name,
        embeddings: vectors.all,
        total_duration: vectors.time.as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: vectors.tokens,
    })
}

/// `/api/embeddings`: the vector of a text, in the older form.
pub async fn embed_one(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = read(app, body)?;
    let text = match fields.take("prompt") {
        Value::String(text) => Input::Text(text),
        _ => return Err(Refusal::bad("prompt: expected a text")),
    };
    let vectors = app.embed(vec![text], &fields, true, exchange).await?;
    embeddings::json(&BTreeMap::from([("embedding", &vectors.all[0])]))
}

/// `/api/generate`.
pub async fn generate(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = read(app, body)?;
    let prompt = fields.take("prompt");
    let text = prompt.as_str().unwrap_or("");
    let mut all = Vec::new();
    if let Some(system) = fields.text("system").filter(|system| !system.is_empty()) {
        all.push(json!({ "role": "system", "content": system }));
    }
    if !text.is_empty() {
        let images = fields.take("images");
        all.push(json!({ "role": "user", "content": text, "images": images }));
    }
    let suffix = fields.text("suffix").filter(|suffix| !suffix.is_empty());
    if suffix.is_none() && !fields.flag("raw") || text.is_empty() {
        let all = if text.is_empty() { Vec::new() } else { all };
        return converse(app, fields, all, false, exchange).await;
    }
    let settings = settings(app, &fields)?;
    let form = Ollama::new(false);
    let prompt = match suffix {
        Some(suffix) => {
            app.infill(text.into(), suffix.into(), String::new())
                .await?
        }
        None => {
            let text = text.to_string();
            app.make(move |app| app.prompter.text(&text)).await?
        }
    };
    app.respond(
        (vec![prompt], vec![Reply::default()]),
        settings,
        form,
        exchange,
    )
    .await
}

/// The settings of a request, with remarks on the fields that are left out.
fn settings(app: &App, fields: &Fields) -> Result<Settings, Refusal> {
    let mut settings = app.settings(fields)?;
    for name in ["template", "context"] {
        if !fields.get(name).is_null() {
            settings.notes.push(format!("{name} is left out"));
        }
    }
    Ok(settings)
}

async fn converse(
    app: &Arc<App>,
    mut fields: Fields,
    all: Vec<Value>,
    is_chat: bool,
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let form = Ollama::new(is_chat);
    if all.is_empty() {
        // Such a request loads the model or unloads it.
        let unloads = ends_at_once(&fields);
        let mut loaded = form.object(app, &Answer::default(), 0, true);
        loaded["done_reason"] = if unloads { "unload" } else { "load" }.into();
        return Ok(json_response(&loaded));
    }
    let settings = settings(app, &fields)?;
    let conversation = Conversation {
        template: think(thinking(&fields)),
        choice: ToolChoice::Auto,
        parallel: true,
        tools: fields.take_list("tools"),
        messages: messages(all.into_iter().map(message).collect(), &app.limits)?,
        truncates: *fields.get("truncate") != false,
    };
    app.converse(conversation, settings, form, exchange).await
}

/// The format of ollama's answers.
struct Ollama {
    is_chat: bool,
    /// The calls that a stream has sent.
    sent: usize,
}

impl Ollama {
    fn new(is_chat: bool) -> Self {
        Ollama { is_chat, sent: 0 }
    }

    /// An object with a part of an answer, whose first call has the index `first`.
    fn object(&self, app: &App, answer: &Answer, first: usize, is_done: bool) -> Value {
        let call = |(index, call): (usize, &ToolCall)| {
            json!({
                "id": call.id.clone().unwrap_or_else(|| app.id("call")),
                "function": { "index": first + index, "name": call.name, "arguments": call.value() },
            })
        };
        let calls: Vec<Value> = answer.calls.iter().enumerate().map(call).collect();
        let mut object = json!({
            "model": app.name, "created_at": jiff::Timestamp::now().to_string(), "done": is_done,
        });
        let mut message = json!({ "role": "assistant", "content": answer.content });
        if !answer.reasoning.is_empty() {
            message["thinking"] = answer.reasoning.clone().into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        if self.is_chat {
            object["message"] = message;
        } else {
            object["response"] = message["content"].take();
            if message["thinking"].is_string() {
                object["thinking"] = message["thinking"].take();
            }
        }
        object
    }

    /// Adds the end of an answer to an object.
    fn finish(object: &mut Value, reply: &Reply, usage: &Usage) {
        let is_cut = reply.finish == Some(Finish::Length);
        object["done_reason"] = if is_cut { "length" } else { "stop" }.into();
        if let (Some(object), Value::Object(counts)) = (object.as_object_mut(), usage.ollama()) {
            object.extend(counts);
        }
    }
}

impl Form for Ollama {
    fn face(&self) -> Face {
        Face::Ollama
    }

    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let reply = &replies[0];
        let mut answer = reply.answer.clone();
        answer.reasoning.truncate(answer.reasoning.trim_end().len());
        let mut object = self.object(app, &answer, 0, true);
        if !reply.logprobs.is_empty() {
            let tokenizer = &app.prompter.tokenizer;
            object["logprobs"] = reply.logprobs.iter().map(|t| t.entry(tokenizer)).collect();
        }
        Ollama::finish(&mut object, reply, usage);
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
        let mut answer = Answer::default();
        added.parts.iter().for_each(|part| answer.add(part));
        // Calls are sent whole. The last one may go on.
        let whole = reply
            .answer
            .calls
            .len()
            .saturating_sub(usize::from(!added.ends));
        let whole = whole.max(self.sent);
        answer.calls = reply.answer.calls[self.sent..whole].to_vec();
        if answer != Answer::default() || !added.logprobs.is_empty() {
            let mut object = self.object(app, &answer, self.sent, false);
            self.sent = whole;
            if !added.logprobs.is_empty() {
                let tokenizer = &app.prompter.tokenizer;
                object["logprobs"] = added.logprobs.iter().map(|t| t.entry(tokenizer)).collect();
            }
            events.push(object);
        }
        if added.ends {
            let mut object = self.object(app, &Answer::default(), 0, true);
            Ollama::finish(&mut object, reply, usage);
            events.push(object);
        }
        events
    }
}

/// A time in seconds since 1970, as text.
fn time_of(seconds: u64) -> Option<String> {
    let seconds = i64::try_from(seconds).ok();
    let time = seconds.and_then(|second| jiff::Timestamp::from_second(second).ok());
    time.map(|time| time.to_string())
}

/// A model's entry in ollama's lists.
fn card(name: &str, size: u64, modified: u64, family: &str) -> Value {
    json!({
        "name": name,
        "model": name,
        "modified_at": time_of(modified),
        "size": size,
        "digest": "",
        "details": {
            "parent_model": "", "format": "gguf", "family": family, "families": [family],
            "parameter_size": "", "quantization_level": "",
        },
    })
}

/// The entry of a loaded model.
fn card_of(app: &App) -> Value {
    let model = app.prompter.model();
    let size = model.weight_bytes() as u64;
    let mut card = card(&app.name, size, app.common.started, model.name());
    card["digest"] = json!(model.fingerprint().ok().map(|print| print.to_string()));
    card
}

/// `/api/tags`: the models that can be used.
pub fn tags(all: BTreeMap<String, Entry>) -> Value {
    let card = |(name, entry): (String, Entry)| match entry {
        Entry::Loaded(app) => card_of(&app),
        Entry::File(path) => {
            let file = path.metadata().ok();
            let modified = file.as_ref().and_then(|file| file.modified().ok());
            let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let seconds = modified.map_or(0, |time| time.as_secs());
            card(&name, file.map_or(0, |file| file.len()), seconds, "")
        }
    };
    json!({ "models": all.into_iter().map(card).collect::<Vec<_>>() })
}

/// `/api/ps`: the models in memory.
pub fn running(all: BTreeMap<String, Entry>) -> Value {
    let card = |entry| match entry {
        Entry::Loaded(app) => {
            let mut card = card_of(&app);
            card["expires_at"] = "9999-12-31T23:59:59Z".into();
            card["size_vram"] = 0.into();
            card["context_length"] = json!(app.context);
            Some(card)
        }
        Entry::File(_) => None,
    };
    json!({ "models": all.into_values().filter_map(card).collect::<Vec<_>>() })
}

/// `/api/show`: what the model can do.
pub fn show(app: &App) -> Value {
    let (mut card, family) = (card_of(app), app.prompter.model().name().to_string());
    let mut abilities = vec!["completion", "tools"];
    abilities.extend(has_infill(&app.prompter.tokenizer).then_some("insert"));
    let source = app.prompter.template.source();
    abilities.extend(source.contains("<think>").then_some("thinking"));
    let embedding = app.prompter.model().embedding();
    abilities.extend(embedding.pooling.is_some().then_some("embedding"));
    let context = app.context.or(app.prompter.model().trained_context());
    json!({
        "modelfile": "", "parameters": "", "license": "",
        "template": source,
        "details": card["details"].take(),
        "modified_at": card["modified_at"].take(),
        "capabilities": abilities,
        "model_info": {
            "general.architecture": family,
            format!("{family}.context_length"): context,
        },
    })
}
