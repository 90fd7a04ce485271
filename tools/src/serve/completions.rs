//! `/v1/completions`, `/tokenize` and `/detokenize`: text and tokens without a template.

use std::fmt::Write;
use std::sync::Arc;

use hyper::Response;
use serde_json::{Value, json};

use super::App;
use super::answer::Reply;
use super::cost::check_answers;
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::{Body, json_response, text_response};
use super::openai::OpenAi;
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::request::MOST_IDS;

/// Maximum prompts of a request.
const MOST_PROMPTS: usize = 1024;
/// Default number of tokens of a completion, as in OpenAI's API.
const TOKENS: usize = 16;

/// The prompts of a request, each of texts and tokens.
pub struct Prompts(Vec<Vec<Piece>>);

/// A piece of a prompt.
enum Piece {
    Text(String),
    Token(u32),
}

/// Answers a request.
pub async fn complete(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_IDS, Face::Completions)?;
    let form = OpenAi::new(app, &fields, false);
    fields.default("max_tokens", TOKENS);
    // A flag asks for the most probable token.
    fields.default("top_logprobs", 1);
    let mut settings = app.settings(&fields)?;
    let echo = fields.flag("echo");
    settings.echo = echo && settings.logprobs.is_some();
    if echo && settings.state.is_some() {
        return Err(Refusal::bad("echo: cannot be combined with state"));
    }
    let prompts = match fields.text("suffix").filter(|suffix| !suffix.is_empty()) {
        Some(suffix) => {
            let prefix = fields.text("prompt").unwrap_or("").into();
            vec![app.infill(prefix, suffix.into(), String::new()).await?]
        }
        None => {
            let prompts = Prompts::read(&fields.take("prompt"))?;
            app.make(move |app| prompts.tokens(app)).await?
        }
    };
    if !(1..=MOST_PROMPTS).contains(&prompts.len()) {
        let reason = format!("prompt: expected 1 to {MOST_PROMPTS}");
        return Err(Refusal::bad(reason));
    }
    let tokenizer = &app.prompter.tokenizer;
    let bytes = |token| tokenizer.token_bytes(token).len();
    check_answers(&prompts, echo, &settings, bytes)?;
    let mut replies = Vec::new();
    for prompt in &prompts {
        let echo = if echo {
            decode(app, &prompt.tokens[prompt.hidden..])
        } else {
            String::new()
        };
        // The BOS token, which the request did not contain, is not echoed.
        let reply = || Reply::after(echo.clone(), prompt.hidden);
        replies.extend(std::iter::repeat_with(reply).take(settings.n));
    }
    app.respond((prompts, replies), settings, form, exchange)
        .await
}

impl Prompts {
    /// Reads a prompt, which is a text or a list of token ids and texts, or a list of prompts. A list of texts is several prompts.
    pub fn read(field: &Value) -> Result<Self, Refusal> {
        let is_many = |all: &[Value]| {
            all.iter().any(Value::is_array) || (!all.is_empty() && all.iter().all(Value::is_string))
        };
        match field {
            Value::Array(all) if is_many(all) => all
                .iter()
                .map(pieces)
                .collect::<Result<_, _>>()
                .map(Prompts),
            one => Ok(Prompts(vec![pieces(one)?])),
        }
    }

    /// The tokens of the prompts. A prompt that begins with a text has a BOS token before it.
    pub fn tokens(self, app: &App) -> waterline::Result<Vec<Prompt>> {
        let prompter = &app.prompter;
        let prompt = |pieces: Vec<Piece>| {
            let (count, mut tokens) = (pieces.len(), Vec::new());
            for (index, piece) in pieces.into_iter().enumerate() {
                match piece {
                    Piece::Text(text) if index == 0 => {
                        // The text alone keeps the number of tokens before it.
                        let prompt = prompter.text(&text)?;
                        if count == 1 {
                            return Ok(prompt);
                        }
                        tokens.extend_from_slice(&prompt.tokens);
                    }
                    Piece::Text(text) => tokens.extend(prompter.tokenizer.encode(&text)?),
                    Piece::Token(id) => tokens.push(id),
                }
            }
            prompter.tokens(tokens)
        };
        self.0.into_iter().map(prompt).collect()
    }
}

/// Reads the pieces of a prompt.
fn pieces(prompt: &Value) -> Result<Vec<Piece>, Refusal> {
    let piece = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        let text = value.as_str().map(|text| Piece::Text(text.into()));
        text.or(id.map(Piece::Token)).ok_or_else(|| {
            Refusal::bad(
                "prompt: expected a text, a list of token ids and texts, or a list of those",
            )
        })
    };
    match prompt {
        Value::Array(all) => all.iter().map(piece).collect(),
        Value::Object(fields) => Ok(vec![piece(fields.get("prompt_string").unwrap_or(prompt))?]),
        // A token alone is not a prompt.
        Value::Number(_) => Ok(vec![piece(&Value::Null)?]),
        one => Ok(vec![piece(one)?]),
    }
}

/// The text of tokens.
pub fn decode(app: &App, tokens: &[u32]) -> String {
    let mut bytes = Vec::new();
    for &token in tokens {
        bytes.extend_from_slice(app.prompter.tokenizer.token_bytes(token));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `/tokenize`: returns the tokens of a text, as ids or with their texts.
pub async fn tokenize(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let fields = Fields::parse(body, MOST_IDS, Face::Native)?;
    let content = fields.text("content").or(fields.text("prompt"));
    let content = content.ok_or_else(|| Refusal::bad("content: expected a text"))?;
    let content = content.to_string();
    let with_bos = fields.flag("add_special") || fields.flag("add_special_tokens");
    let with_pieces = fields.flag("with_pieces");
    drop(fields);
    let prompt = app.make(move |app| match with_bos {
        true => app.prompter.text(&content),
        false => app
            .prompter
            .tokens(app.prompter.tokenizer.encode(&content)?),
    });
    let prompt = prompt.await?;
    let tokens = &prompt.tokens[..];
    let piece = |id: &u32| {
        let bytes = app.prompter.tokenizer.token_bytes(*id);
        // A part of a character has no text.
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    // Written as text: a value of each token would take ten times its memory.
    let mut text = String::from("{\"tokens\":[");
    for (index, id) in tokens.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = match with_pieces {
            true => write!(text, "{comma}{}", piece(id)),
            false => write!(text, "{comma}{id}"),
        };
    }
    let (count, context) = (tokens.len(), json!(app.context));
    let _ = write!(text, "],\"count\":{count},\"max_model_len\":{context}}}");
    Ok(text_response("application/json", text))
}

/// `/detokenize`: returns the text of tokens.
pub fn detokenize(app: &App, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_IDS, Face::Native)?;
    let ids = fields.take_list("tokens");
    let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
    let ids = ids.ok_or_else(|| Refusal::bad("tokens: expected token ids"))?;
    let text = decode(app, &app.prompter.tokens(ids)?.tokens);
    Ok(json_response(&json!({ "content": text, "prompt": text })))
}
