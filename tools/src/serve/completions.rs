//! `/v1/completions`, `/tokenize` and `/detokenize`: texts and tokens without a template.

use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::App;
use super::answer::Reply;
use super::http::{Body, Events, Refusal, json_response};
use super::logprobs::{TokenLogprob, of_completion, text};
use super::openai::{Head, StreamOptions};
use super::prompt::Prompt;
use super::request::{Answers, MOST_LOGPROBS, OneOrMany, Sampling, finish_reason, parse, stops};
use super::scheduler::Event;

/// Most prompts of a request.
const MOST_PROMPTS: usize = 1024;
/// Tokens of a completion whose request gives no number, as OpenAI's interface has it.
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
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    stop: Option<OneOrMany<String>>,
    n: Option<usize>,
    logprobs: Option<usize>,
    #[serde(default)]
    echo: bool,
    #[serde(flatten)]
    sampling: Sampling,
}

/// Answers a request.
pub async fn complete(
    app: &Arc<App>,
    body: &[u8],
    stuck: &Arc<Notify>,
) -> Result<Response<Body>, Refusal> {
    let request: Request = parse(body)?;
    let stop = stops(request.stop)?;
    let numbers = (request.n, request.max_tokens.or(Some(TOKENS)));
    let mut settings = app.settings(request.sampling, numbers, stop)?;
    if request.logprobs.is_some_and(|top| top > MOST_LOGPROBS) {
        return Err(Refusal::bad(format!(
            "logprobs: expected at most {MOST_LOGPROBS}"
        )));
    }
    settings.logprobs = request.logprobs;
    settings.echo = request.echo && request.logprobs.is_some();
    let prompts = prompts(app, request.prompt).await?;
    let echoes: Vec<String> = prompts
        .iter()
        .map(|prompt| match request.echo {
            true => decode(app, &prompt.tokens[prompt.hidden..]),
            false => String::new(),
        })
        .collect();
    let n = settings.n;
    let hidden: Vec<usize> = prompts.iter().map(|prompt| prompt.hidden).collect();
    let replies: Vec<Reply> = (0..echoes.len() * n).map(|_| Reply::new(None)).collect();
    let answers = app.answers(prompts, &settings).await?;
    // Tokens that the request did not name are not echoed.
    let echoes = Echoes {
        texts: echoes,
        hidden,
        n,
    };
    let head = Head::new(app, "cmpl", "text_completion");
    if !request.stream {
        return whole(app, head, (answers, replies), echoes).await;
    }
    let (events, response) = Events::new(stuck);
    let usage = request.stream_options.is_some_and(|o| o.include_usage);
    tokio::spawn(stream(
        Arc::clone(app),
        head,
        (answers, replies),
        (events, usage),
        echoes,
    ));
    Ok(response)
}

/// The parts of prompts that are echoed.
struct Echoes {
    texts: Vec<String>,
    hidden: Vec<usize>,
    n: usize,
}

impl Echoes {
    fn text(&self, answer: usize) -> &str {
        &self.texts[answer / self.n]
    }

    fn logprobs(&self, answer: usize, mut tokens: Vec<TokenLogprob>) -> Vec<TokenLogprob> {
        let hidden = self.hidden[answer / self.n].min(tokens.len());
        tokens.drain(..hidden);
        tokens
    }
}

async fn prompts(app: &Arc<App>, prompts: Prompts) -> Result<Vec<Prompt>, Refusal> {
    let prompts = app
        .make(move |app| {
            let prompter = &app.prompter;
            let text = |text: &String| prompter.text(text);
            Ok(match prompts {
                Prompts::Text(one) => vec![text(&one)?],
                Prompts::Texts(all) => all.iter().map(text).collect::<Result<_, _>>()?,
                Prompts::Tokens(one) => vec![prompter.tokens(one)],
                Prompts::Lists(all) => all.into_iter().map(|one| prompter.tokens(one)).collect(),
            })
        })
        .await?;
    match (1..=MOST_PROMPTS).contains(&prompts.len()) {
        true => Ok(prompts),
        false => Err(Refusal::bad(format!(
            "prompt: expected 1 to {MOST_PROMPTS}"
        ))),
    }
}

fn decode(app: &App, tokens: &[u32]) -> String {
    let bytes = tokens
        .iter()
        .map(|&token| app.prompter.tokenizer.token_bytes(token));
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>().concat()).into_owned()
}

fn choice(index: usize, text: String, logprobs: Value, finish: Option<&str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
}

async fn whole(
    app: &App,
    head: Head,
    (mut answers, mut replies): (Answers, Vec<Reply>),
    echoes: Echoes,
) -> Result<Response<Body>, Refusal> {
    let read = |index, reply: &mut Reply, prompt| reply.logprobs = echoes.logprobs(index, prompt);
    answers.collect(&mut replies, read).await?;
    let choice = |(index, reply): (usize, &Reply)| {
        let logprobs = match reply.logprobs.is_empty() {
            true => Value::Null,
            false => of_completion(&app.prompter.tokenizer, &reply.logprobs, 0),
        };
        let text = echoes.text(index).to_string() + &reply.text;
        choice(index, text, logprobs, Some(finish_reason(reply)))
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
    echoes: Echoes,
) {
    let tokenizer = &app.prompter.tokenizer;
    let mut offsets = vec![0; replies.len()];
    let shown = |tokens: &[TokenLogprob], offset: &mut usize| {
        if tokens.is_empty() {
            return Value::Null;
        }
        let value = of_completion(tokenizer, tokens, *offset);
        let lengths = tokens
            .iter()
            .map(|token| text(tokenizer, token.token).chars().count());
        *offset += lengths.sum::<usize>();
        value
    };
    while let Some((index, event)) = answers.next().await {
        let choice = match event {
            Event::Failed(error) => return events.fail(None, error.into()).await,
            Event::Read(_, _, prompt) => {
                let text = echoes.text(index).to_string();
                let prompt = echoes.logprobs(index, prompt);
                if text.is_empty() && prompt.is_empty() {
                    continue;
                }
                choice(index, text, shown(&prompt, &mut offsets[index]), None)
            }
            Event::Piece {
                text,
                logprob,
                finish,
                ..
            } => {
                let logprobs = shown(logprob.as_slice(), &mut offsets[index]);
                replies[index].take(&text, logprob, finish);
                let reason = finish.map(|_| finish_reason(&replies[index]));
                if text.is_empty() && logprobs.is_null() && reason.is_none() {
                    continue;
                }
                choice(index, text, logprobs, reason)
            }
        };
        let chunk = head.object(true, json!([choice]));
        if !events.send(None, &chunk.to_string()).await {
            return;
        }
    }
    if with_usage {
        let mut last = head.object(true, json!([]));
        last["usage"] = answers.usage.openai();
        if !events.send(None, &last.to_string()).await {
            return;
        }
    }
    let _ = events.send(None, "[DONE]").await;
}

#[derive(Deserialize)]
struct ToTokens {
    #[serde(alias = "prompt")]
    content: String,
    #[serde(default, alias = "add_special_tokens")]
    add_special: bool,
}

/// `/tokenize`: the tokens of a text.
pub async fn tokenize(app: &Arc<App>, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let request: ToTokens = parse(body)?;
    let tokens = app
        .make(move |app| match request.add_special {
            true => Ok(app.prompter.text(&request.content)?.tokens),
            false => app.prompter.tokenizer.encode(&request.content),
        })
        .await?;
    Ok(json_response(&json!({
        "tokens": tokens, "count": tokens.len(), "max_model_len": app.context,
    })))
}

#[derive(Deserialize)]
struct ToText {
    tokens: Vec<u32>,
}

/// `/detokenize`: the text of tokens.
pub fn detokenize(app: &App, body: &[u8]) -> Result<Response<Body>, Refusal> {
    let request: ToText = parse(body)?;
    let text = decode(app, &request.tokens);
    Ok(json_response(&json!({ "content": text, "prompt": text })))
}
