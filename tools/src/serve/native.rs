//! Interfaces of llama.cpp's server: `/completion`, `/infill`, `/apply-template`, `/props` and `/slots`.

use std::sync::Arc;

use hyper::Response;
use serde_json::{Value, json};
use waterline::{AnswerPart, Finish, Tokenizer};

use super::App;
use super::answer::{Added, Reply};
use super::answers::{Form, Usage};
use super::completions::{Prompts, decode};
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::{Body, json_response};
use super::logprobs::TokenLogprob;
use super::openai::conversation;
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::request::{MOST_IDS, MOST_VALUES};
use super::scheduler::Progress;

/// The tokens around the texts before and after a gap, and before its content, as models name them.
const INFILL: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["<PRE>", "<SUF>", "<MID>"],
];

fn infill_tokens(tokenizer: &Tokenizer) -> Option<[u32; 3]> {
    let ids = |[prefix, suffix, middle]: [&str; 3]| {
        let id = |name| tokenizer.token_id(name);
        Some([id(prefix)?, id(suffix)?, id(middle)?])
    };
    INFILL.into_iter().find_map(ids)
}

/// Whether the vocabulary has the tokens of [`App::infill`].
pub fn has_infill(tokenizer: &Tokenizer) -> bool {
    infill_tokens(tokenizer).is_some()
}

impl App {
    /// The prompt for the text between `prefix` and `suffix`, which begins with `beginning`.
    pub async fn infill(
        self: &Arc<Self>,
        prefix: String,
        suffix: String,
        beginning: String,
    ) -> Result<Prompt, Refusal> {
        let marks = infill_tokens(&self.prompter.tokenizer);
        let [before, after, middle] = marks.ok_or_else(|| {
            Refusal::bad("suffix: the model's vocabulary has no tokens that mark a gap")
        })?;
        self.make(move |app| {
            let encode = |text: &str| app.prompter.tokenizer.encode(text);
            let mut tokens: Vec<u32> = app.prompter.model().bos().into_iter().collect();
            tokens.push(before);
            tokens.extend(encode(&prefix)?);
            tokens.push(after);
            tokens.extend(encode(&suffix)?);
            tokens.push(middle);
            tokens.extend(encode(&beginning)?);
            app.prompter.tokens(tokens)
        })
        .await
    }
}

/// `/completion`.
pub async fn complete(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_IDS, Face::Native)?;
    let prompts = Prompts::read(&fields.take("prompt"))?;
    let prompts = app.make(move |app| prompts.tokens(app)).await?;
    answer(app, &fields, prompts, exchange).await
}

/// `/infill`: the text between `input_prefix` and `input_suffix`.
pub async fn infill(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let fields = Fields::parse(body, MOST_VALUES, Face::Native)?;
    let text = |name: &str| fields.text(name).unwrap_or("").to_string();
    let mut prefix = text("input_prefix");
    // Other files come first.
    let extra = fields.get("input_extra").as_array().into_iter().flatten();
    let extra: String = extra.filter_map(|file| file["text"].as_str()).collect();
    prefix.insert_str(0, &extra);
    let prompt = app
        .infill(prefix, text("input_suffix"), text("prompt"))
        .await?;
    answer(app, &fields, vec![prompt], exchange).await
}

async fn answer(
    app: &Arc<App>,
    fields: &Fields,
    prompts: Vec<Prompt>,
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut settings = app.settings(fields)?;
    settings.logprobs = settings.logprobs.filter(|&top| top > 0);
    let form = Native {
        with_progress: fields.flag("return_progress"),
    };
    let count = prompts.len() * settings.n;
    let replies = std::iter::repeat_with(Reply::default).take(count).collect();
    app.respond((prompts, replies), settings, form, exchange)
        .await
}

/// `/apply-template`: the text of a conversation.
pub async fn apply_template(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_VALUES, Face::Chat)?;
    let conversation = conversation(app, &mut fields)?;
    let options = conversation.options();
    let prompt = app
        .make(move |app| app.prompter.chat(&conversation.messages, options))
        .await?;
    let text = decode(app, &prompt.tokens);
    Ok(json_response(&json!({ "prompt": text })))
}

/// `/props`: the server's settings.
pub fn props(app: &App) -> Value {
    let params = app.sampling.params(app.prompter.model());
    let info = app.prompter.info();
    json!({
        "default_generation_settings": {
            "n_ctx": app.context.unwrap_or(0),
            "params": {
                "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p,
                "repeat_penalty": params.repetition_penalty, "presence_penalty": params.presence_penalty,
                "frequency_penalty": params.frequency_penalty, "n_predict": app.limits.tokens,
            },
        },
        "total_slots": app.parallel,
        "model_alias": app.name,
        "model_path": app.name,
        "modalities": { "vision": false, "audio": false },
        "chat_template": info["chat_template"],
        "bos_token": info["bos_token"],
        "eos_token": info["eos_token"],
        "build_info": concat!("waterline ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    })
}

/// `/slots`: which sessions answer, without their texts.
pub fn slots(app: &App) -> Value {
    let busy = app.processing();
    let slot = |id: usize| json!({ "id": id, "n_ctx": app.context.unwrap_or(0), "is_processing": id < busy });
    (0..app.parallel).map(slot).collect()
}

/// The format of `/completion`.
struct Native {
    with_progress: bool,
}

/// The log-probabilities of tokens.
fn probabilities(app: &App, tokens: &[TokenLogprob]) -> Value {
    let tokenizer = &app.prompter.tokenizer;
    tokens.iter().map(|token| token.entry(tokenizer)).collect()
}

/// An object about the answer with this index.
fn object(app: &App, index: usize, content: &str, usage: &Usage) -> Value {
    let (prompt, generated) = usage.counts();
    json!({
        "index": index, "content": content, "tokens": [], "id_slot": -1, "stop": false, "model": app.name,
        "tokens_predicted": generated, "tokens_evaluated": prompt,
    })
}

/// Adds the end of an answer to an object.
fn finish(object: &mut Value, reply: &Reply, usage: &Usage) {
    object["stop"] = true.into();
    object["stop_type"] = match reply.finish {
        Some(Finish::End) => "eos",
        Some(Finish::Stop) => "word",
        Some(Finish::Length) => "limit",
        _ => "none",
    }
    .into();
    object["stopping_word"] = reply.stop.as_deref().unwrap_or("").into();
    object["has_new_line"] = reply.answer.content.contains('\n').into();
    object["truncated"] = false.into();
    object["timings"] = usage.timings();
    object["tokens_cached"] = object["timings"]["cache_n"].clone();
    if let Some(receipt) = &reply.receipt {
        object["receipt"] = json!(receipt);
    }
}

impl Form for Native {
    fn face(&self) -> Face {
        Face::Native
    }

    fn progress(&self, app: &App, progress: Progress, usage: &Usage) -> Option<Value> {
        let mut event = object(app, 0, "", usage);
        event["prompt_progress"] = usage.progress(progress);
        self.with_progress.then_some(event)
    }

    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value {
        let one = |(index, reply): (usize, &Reply)| {
            let mut object = object(app, index, &reply.answer.content, usage);
            finish(&mut object, reply, usage);
            if !reply.logprobs.is_empty() {
                object["completion_probabilities"] = probabilities(app, &reply.logprobs);
            }
            object
        };
        let mut all: Vec<Value> = replies.iter().enumerate().map(one).collect();
        match all.len() {
            1 => all.remove(0),
            _ => all.into(),
        }
    }

    fn events(
        &mut self,
        app: &App,
        (index, reply): (usize, &Reply),
        added: Added,
        usage: &Usage,
    ) -> Vec<Value> {
        let text = |part: &AnswerPart| match part {
            AnswerPart::Content(text) => text.clone(),
            _ => String::new(),
        };
        let text: String = added.parts.iter().map(text).collect();
        let mut events = Vec::new();
        if !text.is_empty() || !added.logprobs.is_empty() {
            let mut event = object(app, index, &text, usage);
            if !added.logprobs.is_empty() {
                event["completion_probabilities"] = probabilities(app, &added.logprobs);
            }
            events.push(event);
        }
        if added.ends {
            let mut event = object(app, index, "", usage);
            finish(&mut event, reply, usage);
            events.push(event);
        }
        events
    }
}
