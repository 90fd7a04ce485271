//! `/v1/completions`, `/tokenize` and `/detokenize`: text and tokens without a template.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::answer::Reply;
use super::cost::check_answers;
use super::exchange::Exchange;
use super::http::{Body, Refusal, json_response, text_response};
use super::openai::OpenAi;
use super::prompt::Prompt;
use super::request::{Common, MOST_IDS, MOST_LOGPROBS, parse};

/// Maximum prompts of a request.
const MOST_PROMPTS: usize = 1024;
/// Default number of tokens of a completion, as in OpenAI's API.
const TOKENS: usize = 16;

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct Request {
    prompt: Prompts,
    logprobs: Option<usize>,
    #[serde(default)]
    echo: bool,
    #[serde(flatten)]
    common: Common,
}

/// Answers a request.
pub async fn complete(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut request: Request = parse(body, MOST_IDS)?;
    let form = OpenAi::new(app, &request.common, false);
    request.common.max_tokens.get_or_insert(TOKENS);
    let mut settings = app.settings(request.common)?;
    settings.logprobs = request.logprobs;
    if settings.logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
        let reason = format!("logprobs: expected at most {MOST_LOGPROBS}");
        return Err(Refusal::bad(reason));
    }
    settings.echo = request.echo && request.logprobs.is_some();
    let prompts = app.make(move |app| request.prompt.tokens(app)).await?;
    if !(1..=MOST_PROMPTS).contains(&prompts.len()) {
        let reason = format!("prompt: expected 1 to {MOST_PROMPTS}");
        return Err(Refusal::bad(reason));
    }
    let tokenizer = &app.prompter.tokenizer;
    let bytes = |token| tokenizer.token_bytes(token).len();
    check_answers(&prompts, request.echo, &settings, bytes)?;
    let mut replies = Vec::new();
    for prompt in &prompts {
        let echo = if request.echo {
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
    fn tokens(self, app: &App) -> waterline::Result<Vec<Prompt>> {
        let prompter = &app.prompter;
        let text = |text: &String| prompter.text(text);
        Ok(match self {
            Prompts::Text(one) => vec![text(&one)?],
            Prompts::Texts(all) => all.iter().map(text).collect::<Result<_, _>>()?,
            Prompts::Tokens(one) => vec![prompter.tokens(one)?],
            Prompts::Lists(all) => {
                let prompts = all.into_iter().map(|one| prompter.tokens(one));
                prompts.collect::<Result<_, _>>()?
            }
        })
    }
}

fn decode(app: &App, tokens: &[u32]) -> String {
    let mut bytes = Vec::new();
    for &token in tokens {
        bytes.extend_from_slice(app.prompter.tokenizer.token_bytes(token));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Deserialize)]
struct ToTokens {
    #[serde(alias = "prompt")]
    content: String,
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
}

/// `/tokenize`: returns the tokens of a text.
pub async fn tokenize(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let request: ToTokens = parse(body, MOST_IDS)?;
    let prompt = app
        .make(move |app| {
            if request.add_special {
                app.prompter.text(&request.content)
            } else {
                let tokens = app.prompter.tokenizer.encode(&request.content)?;
                app.prompter.tokens(tokens)
            }
        })
        .await?;
    let tokens = &prompt.tokens[..];
    // Written as text: a value of each token would take ten times its memory.
    let (tokens, count) = (serde_json::to_string(tokens), tokens.len());
    let (tokens, context) = (tokens.unwrap_or_default(), json!(app.context));
    let text = format!("{{\"tokens\":{tokens},\"count\":{count},\"max_model_len\":{context}}}");
    Ok(text_response("application/json", text))
}

#[derive(Deserialize)]
struct ToText {
    tokens: Vec<u32>,
}

/// `/detokenize`: returns the text of tokens.
pub fn detokenize(app: &App, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let request: ToText = parse(body, MOST_IDS)?;
    let text = decode(app, &app.prompter.tokens(request.tokens)?.tokens);
    Ok(json_response(&json!({ "content": text, "prompt": text })))
}
