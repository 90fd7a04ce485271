//! Vectors of texts: `/v1/embeddings`, and their computation for every interface.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::Response;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::unbounded_channel;
use waterline::internal::base64;
use waterline::{Error, GenerateOptions, SamplerParams, TokenIds};

use super::App;
use super::app::full_queue;
use super::exchange::Exchange;
use super::fields::{Face, Fields};
use super::http::{Body, text_response};
use super::refusal::Refusal;
use super::request::MOST_IDS;
use super::scheduler::{Event, Job, Texts};

/// Maximum texts of a request, as in OpenAI's API.
const MOST_TEXTS: usize = 2048;
/// Maximum numbers in the vectors of a request.
const MOST_NUMBERS: usize = 1 << 22;

/// A text or its tokens.
pub enum Input {
    Text(String),
    Tokens(Vec<u32>),
}

/// The vectors of a request.
pub struct Vectors {
    pub all: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub tokens: usize,
    pub time: Duration,
}

/// The response of `/v1/embeddings`.
#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

/// A vector as numbers, or as the base64 text of its little-endian f32s.
#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'a> {
    Floats(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Answers a request to `/v1/embeddings`.
pub async fn answer(
    app: &Arc<App>,
    body: &[u8],
    exchange: &Arc<Exchange>,
) -> Result<Response<Body>, Refusal> {
    let mut fields = Fields::parse(body, MOST_IDS, Face::Embeddings)?;
    let is_base64 = match fields.text("encoding_format") {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(Refusal::bad("encoding_format: expected float or base64")),
    };
    let inputs = inputs(fields.take("input"))?;
    let vectors = app.embed(inputs, &fields, false, exchange).await?;
    json(&List {
        object: "list",
        data: (vectors.all.iter().enumerate())
            .map(|(index, vector)| Entry::new(index, vector, is_base64))
            .collect(),
        model: &app.name,
        usage: Usage {
            prompt_tokens: vectors.tokens,
            total_tokens: vectors.tokens,
        },
    })
}

impl<'a> Entry<'a> {
    fn new(index: usize, vector: &'a [f32], is_base64: bool) -> Self {
        let bytes = || vector.iter().flat_map(|x| x.to_le_bytes());
        Entry {
            object: "embedding",
            index,
            embedding: match is_base64 {
                true => Numbers::Base64(base64::encode(&bytes().collect::<Vec<u8>>())),
                false => Numbers::Floats(vector),
            },
        }
    }
}

/// A response of numbers, written without a value for each.
pub fn json(value: &impl Serialize) -> Result<Response<Body>, Refusal> {
    let text = serde_json::to_string(value);
    let text = text.map_err(|error| Refusal::bad(error.to_string()))?;
    Ok(text_response("application/json", text))
}

/// Reads a text, a list of token ids, or a list of those.
pub fn inputs(field: Value) -> Result<Vec<Input>, Refusal> {
    let wrong = || Refusal::bad("input: expected a text, a list of token ids, or a list of those");
    let one = |value: Value| match value {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(ids) => {
            let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
            let ids = ids.iter().map(id).collect::<Option<_>>();
            ids.map(Input::Tokens).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    };
    match field {
        Value::Array(all) if !all.first().is_some_and(Value::is_number) => {
            all.into_iter().map(one).collect()
        }
        field => Ok(vec![one(field)?]),
    }
}

/// Counts the request among those that the server works on.
struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl App {
    /// Computes the vectors of a request. If `truncates`, a text keeps only as many tokens as the context holds.
    pub async fn embed(
        self: &Arc<Self>,
        inputs: Vec<Input>,
        fields: &Fields,
        truncates: bool,
        exchange: &Arc<Exchange>,
    ) -> Result<Vectors, Refusal> {
        exchange.model(&self.name);
        let dimensions = fields.whole("dimensions");
        let dimensions = dimensions.and_then(|length| usize::try_from(length).ok());
        let options = self.common.args.vectors.options(dimensions);
        let pooler = self.prompter.model().pooler(&options);
        let pooler = pooler.map_err(|error| match error {
            Error::Unsupported { what, .. } => Refusal::bad(what),
            Error::Invalid { what, .. } if what == "pooling" => {
                let reason = "this model has no pooled output; serve --pooling chooses one";
                Refusal::bad(reason).named("model_not_supported", "model")
            }
            error => Refusal::from(error).named("invalid_value", "dimensions"),
        })?;
        let length = pooler.vector().len();
        let most = MOST_TEXTS.min(MOST_NUMBERS / length);
        if !(1..=most).contains(&inputs.len()) {
            let found = inputs.len();
            let reason = format!("input: found {found} texts, expected 1 to {most}");
            return Err(Refusal::bad(reason));
        }
        let tokens = self.make(move |app| {
            let prompter = &app.prompter;
            let tokens = |input| match input {
                Input::Text(text) => prompter.vector(&text),
                Input::Tokens(ids) => prompter.model().token_ids(ids),
            };
            inputs
                .into_iter()
                .map(tokens)
                .collect::<Result<VecDeque<TokenIds>, _>>()
        });
        let mut tokens = tokens.await?;
        let context = self.context.unwrap_or(usize::MAX);
        for ids in &mut tokens {
            match ids.len() {
                0 => return Err(Refusal::bad("input: a text has no tokens")),
                length if length <= context => {}
                _ if truncates => {
                    *ids = self.prompter.model().token_ids(ids[..context].to_vec())?;
                }
                length => return Err(Refusal::context_full(length, context)),
            }
        }
        self.submit(Texts { tokens, options }, exchange).await
    }

    /// Submits texts to the scheduler and waits for their vectors.
    async fn submit(&self, texts: Texts, exchange: &Arc<Exchange>) -> Result<Vectors, Refusal> {
        let count = texts.tokens.len();
        let tokens = texts.tokens.iter().map(|ids| ids.len()).sum();
        let place = self.queue.enter(1, tokens)?;
        let (events, mut receiver) = unbounded_channel();
        let begun = Instant::now();
        let submitted = self.queue.jobs.send(Job {
            index: 0,
            prompt: Arc::default(),
            borders: Vec::new(),
            sampler: SamplerParams::default(),
            generate: GenerateOptions::default(),
            form: None,
            logprobs: None,
            echo: false,
            owner: 0,
            texts: Some(texts),
            deadline: begun + Duration::from_secs(self.limits.seconds),
            turns: None,
            events,
            exchange: Arc::clone(exchange),
            place: Some(place),
        });
        submitted.map_err(|_| full_queue())?;
        self.active.fetch_add(1, Ordering::Relaxed);
        let _active = Active(Arc::clone(&self.active));
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            match receiver.recv().await {
                Some((_, Event::Vector(vector))) => all.push(vector),
                Some((_, Event::Failed(error))) => return Err(error.into()),
                Some(_) => {}
                None => {
                    let reason = "its thread failed and starts again".into();
                    let device = "the model".into();
                    return Err(Error::Device { device, reason }.into());
                }
            }
        }
        Ok(Vectors {
            all,
            tokens,
            time: begun.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn inputs_are_texts_or_tokens_or_lists_of_them() {
        let shape = |value| {
            let kind = |input: &Input| match input {
                Input::Text(text) => text.clone(),
                Input::Tokens(ids) => format!("{ids:?}"),
            };
            let read = inputs(value).map(|all| all.iter().map(kind).collect::<Vec<_>>());
            read.map_err(|refusal| refusal.message)
        };
        assert_eq!(shape(json!("a")), Ok(vec!["a".to_string()]));
        assert_eq!(shape(json!(["a", "b"])).map(|all| all.len()), Ok(2));
        assert_eq!(shape(json!([1, 2])), Ok(vec!["[1, 2]".to_string()]));
        let mixed = vec!["[1, 2]".to_string(), "a".to_string()];
        assert_eq!(shape(json!([[1, 2], "a"])), Ok(mixed));
        for wrong in [
            json!(null),
            json!(3),
            json!([1, "a"]),
            json!([[-1]]),
            json!([{}]),
        ] {
            assert!(shape(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
