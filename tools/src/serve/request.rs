//! Fields that requests of all interfaces have, and the way from a prompt to its answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use waterline::{
    Constraint, Finish, GenerateOptions, Grammar, Message, SamplerParams, TemplateOptions,
};

use super::answer::{Parts, Reply};
use super::http::Refusal;
use super::logprobs::TokenLogprob;
use super::prompt::{Prompt, Templated};
use super::scheduler::{Event, Job};
use super::{App, Limits};
use crate::calls::{Calls, Format, Tools};

/// Most answers to a request.
const MOST_ANSWERS: usize = 128;
/// Most stop texts.
const MOST_STOPS: usize = 64;
/// Most alternatives that are reported for a token.
pub const MOST_LOGPROBS: usize = 20;

/// One thing or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn list(self) -> Vec<T> {
        match self {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

/// How tokens are chosen, under the names that clients use.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    seed: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    logit_bias: Option<HashMap<String, f32>>,
}

impl Sampling {
    /// The sampler's parameters; what the request leaves out is the server's.
    pub fn params(self, mut params: SamplerParams) -> Result<SamplerParams, Refusal> {
        let set = |value: Option<f32>, to: &mut f32| *to = value.unwrap_or(*to);
        set(self.temperature, &mut params.temperature);
        // Zero keeps the most probable token alone.
        set(
            self.top_p.map(|p| p.max(f32::MIN_POSITIVE)),
            &mut params.top_p,
        );
        set(self.min_p, &mut params.min_p);
        set(self.presence_penalty, &mut params.presence_penalty);
        set(self.frequency_penalty, &mut params.frequency_penalty);
        set(self.repetition_penalty, &mut params.repetition_penalty);
        if let Some(k) = self.top_k {
            params.top_k = usize::try_from(k).unwrap_or(0);
        }
        if let Some(seed) = self.seed {
            params.seed = seed as u64;
        }
        for (token, bias) in self.logit_bias.unwrap_or_default() {
            let token = token
                .parse()
                .map_err(|_| Refusal::bad(format!("logit_bias: {token:?} is no token id")))?;
            params.logit_bias.push((token, bias));
        }
        params.logit_bias.sort_by_key(|(token, _)| *token);
        params.validate()?;
        Ok(params)
    }
}

/// How answers are generated.
pub struct Settings {
    pub sampler: SamplerParams,
    pub generate: GenerateOptions,
    /// Answers to each prompt.
    pub n: usize,
    pub logprobs: Option<usize>,
    pub echo: bool,
    /// The form of answers.
    pub form: Option<Grammar>,
}

/// Stop texts of a request, with the server's bound.
pub fn stops(stop: Option<OneOrMany<String>>) -> Result<Vec<String>, Refusal> {
    let mut stops = stop.map_or_else(Vec::new, OneOrMany::list);
    stops.retain(|stop| !stop.is_empty());
    match stops.len() > MOST_STOPS {
        true => Err(Refusal::bad(format!(
            "stop: expected at most {MOST_STOPS} texts"
        ))),
        false => Ok(stops),
    }
}

/// The JSON of a body.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("the body: {error}")))
}

/// Messages as a template takes them: instructions are the system's, and arguments of calls are values.
pub fn messages(values: Vec<Value>, limits: &Limits) -> Result<Vec<Message>, Refusal> {
    if values.is_empty() || values.len() > limits.messages {
        let most = limits.messages;
        return Err(Refusal::bad(format!(
            "messages: expected 1 to {most} of them"
        )));
    }
    let message = |(index, mut value): (usize, Value)| {
        if value["role"] == "developer" {
            value["role"] = "system".into();
        }
        let calls = value.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let arguments = &mut call["function"]["arguments"];
            if let Some(text) = arguments.as_str()
                && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
            {
                *arguments = object;
            }
        }
        serde_json::from_value(value)
            .map_err(|error| Refusal::bad(format!("messages[{index}]: {error}")))
    };
    values.into_iter().enumerate().map(message).collect()
}

/// The answers to a request, as they come.
pub struct Answers {
    receiver: UnboundedReceiver<(usize, Event)>,
    first: Option<(usize, Event)>,
    left: usize,
    pub usage: Usage,
}

/// Tokens and times of a request.
#[derive(Default)]
pub struct Usage {
    prompt: usize,
    reused: usize,
    generated: usize,
    begun: Option<Instant>,
    read: Option<Instant>,
}

impl Answers {
    /// Waits until the first prompt is read.
    ///
    /// # Errors
    /// Why it was not.
    async fn begun(mut self) -> Result<Self, Refusal> {
        match self.next().await {
            Some((_, Event::Failed(error))) => Err(error.into()),
            first => {
                self.first = first;
                Ok(self)
            }
        }
    }

    /// Waits for the ends of all answers, each in its place of `replies`. `read` gets the log-probabilities of a prompt's own tokens.
    ///
    /// # Errors
    /// Why one of them failed.
    pub async fn collect(
        &mut self,
        replies: &mut [Reply],
        read: impl Fn(usize, &mut Reply, Vec<TokenLogprob>),
    ) -> Result<(), Refusal> {
        while let Some((index, event)) = self.next().await {
            match event {
                Event::Failed(error) => return Err(error.into()),
                Event::Read(_, _, prompt) => read(index, &mut replies[index], prompt),
                Event::Piece {
                    text,
                    logprob,
                    finish,
                    ..
                } => {
                    replies[index].take(&text, logprob, finish);
                }
            }
        }
        Ok(())
    }

    /// The next event; none once all answers have ended.
    pub async fn next(&mut self) -> Option<(usize, Event)> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.left == 0 {
            return None;
        }
        let Some((index, event)) = self.receiver.recv().await else {
            self.left = 0;
            let error = waterline::Error::invalid("the model", "its thread has ended");
            return Some((0, Event::Failed(error)));
        };
        match &event {
            Event::Read(reused, read, _) => {
                self.usage.reused += reused;
                self.usage.prompt += reused + read;
                self.usage.read.get_or_insert_with(Instant::now);
            }
            Event::Piece { finish, token, .. } => {
                self.usage.generated += usize::from(*token);
                self.left -= usize::from(finish.is_some());
            }
            Event::Failed(_) => self.left = 0,
        }
        Some((index, event))
    }
}

impl Usage {
    /// As OpenAI's clients read it.
    pub fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.reused },
        })
    }

    /// As Anthropic's clients read it.
    pub fn anthropic(&self) -> Value {
        json!({
            "input_tokens": self.prompt - self.reused,
            "cache_read_input_tokens": self.reused,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.generated,
        })
    }

    /// As llama.cpp's clients read it.
    pub fn timings(&self) -> Value {
        let since = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        let (read, generated) = (
            since(self.begun, self.read),
            since(self.read, Some(Instant::now())),
        );
        let per_second = |count: usize, seconds: f64| count as f64 / seconds.max(1e-9);
        json!({
            "prompt_n": self.prompt - self.reused,
            "prompt_ms": 1e3 * read,
            "prompt_per_second": per_second(self.prompt - self.reused, read),
            "predicted_n": self.generated,
            "predicted_ms": 1e3 * generated,
            "predicted_per_second": per_second(self.generated, generated),
        })
    }
}

/// The name of an answer's end, as OpenAI's clients read it.
pub fn finish_reason(reply: &Reply) -> &'static str {
    match reply.finish {
        Some(Finish::Length) => "length",
        _ if !reply.calls.is_empty() => "tool_calls",
        _ => "stop",
    }
}

impl App {
    /// The settings of a request.
    pub fn settings(
        &self,
        sampling: Sampling,
        (n, max_tokens): (Option<usize>, Option<usize>),
        stop: Vec<String>,
    ) -> Result<Settings, Refusal> {
        let n = n.unwrap_or(1);
        if !(1..=MOST_ANSWERS).contains(&n) {
            return Err(Refusal::bad(format!("n: expected 1 to {MOST_ANSWERS}")));
        }
        let mut generate = GenerateOptions::default();
        generate.max_tokens = max_tokens.map_or(self.limits.tokens, |n| n.min(self.limits.tokens));
        generate.stop = stop;
        Ok(Settings {
            sampler: sampling.params(self.sampling.params())?,
            generate,
            n,
            logprobs: None,
            echo: false,
            form: None,
        })
    }

    /// The prompt of a conversation.
    pub async fn conversation(
        self: &Arc<Self>,
        messages: Vec<Message>,
        (tools, thinking): (Vec<Value>, Option<bool>),
    ) -> Result<Prompt, Refusal> {
        let mut options = TemplateOptions::default();
        (options.tools, options.thinking) = (tools, thinking);
        self.make(move |app| app.prompter.chat(&messages, options))
            .await
    }

    /// Runs what may take a while apart from the connections.
    pub async fn make<T: Send + 'static>(
        self: &Arc<Self>,
        make: impl FnOnce(&App) -> waterline::Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let app = Arc::clone(self);
        let made = tokio::task::spawn_blocking(move || make(&app)).await;
        let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the prompt was not made");
        Ok(made.map_err(failed)??)
    }

    /// An empty reply to a prompt that the template made, and what the generation has to know.
    pub fn reply(
        &self,
        template: &Templated,
        tools: &[Value],
        generate: &mut GenerateOptions,
    ) -> impl Fn() -> Reply + use<> {
        generate.stop_tokens.extend(template.turns.end_token());
        let format = self.format.filter(|_| !tools.is_empty());
        let marks = format.into_iter().flat_map(Format::marks);
        let tokenizer = &self.prompter.tokenizer;
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark));
        generate.shown_tokens.extend(marks);
        let (opens, tools) = (template.opens_thought, Tools(tools.to_vec()));
        move || {
            let calls = format.map(|format| Calls::new(format, tools.clone()));
            Reply::new(Some(Parts::new(opens, calls)))
        }
    }

    /// A grammar, compiled; it holds after the thought in which an answer begins.
    async fn form(
        self: &Arc<Self>,
        grammar: Option<Grammar>,
        opens_thought: bool,
    ) -> Result<Option<Constraint>, Refusal> {
        let Some(grammar) = grammar else {
            return Ok(None);
        };
        let form = self.make(move |app| app.compile(&grammar)).await?;
        Ok(Some(match opens_thought {
            true => form.after_thought(),
            false => form,
        }))
    }

    /// Hands prompts over; returns when the first one is read.
    pub async fn answers(
        self: &Arc<Self>,
        prompts: Vec<Prompt>,
        settings: &Settings,
    ) -> Result<Answers, Refusal> {
        let busy = || {
            let most = "the queue is full (--queue)";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, most)
        };
        for prompt in &prompts {
            let (tokens, context) = (prompt.tokens.len(), self.context.unwrap_or(usize::MAX));
            if tokens == 0 {
                return Err(Refusal::bad("the prompt is empty"));
            }
            if tokens > context {
                return Err(Refusal::bad(format!(
                    "the prompt has {tokens} tokens, more than the context of {context} (--context)"
                )));
            }
        }
        let opens = prompts[0]
            .template
            .as_ref()
            .is_some_and(|t| t.opens_thought);
        let form = self.form(settings.form.clone(), opens).await?;
        let count = prompts.len() * settings.n;
        let tickets = (0..count).map(|_| self.queue.ticket());
        let mut tickets = tickets.collect::<Option<Vec<_>>>().ok_or_else(busy)?;
        let (events, receiver) = unbounded_channel();
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(self.limits.seconds);
        for (place, prompt) in prompts.into_iter().enumerate() {
            for choice in 0..settings.n {
                let mut sampler = settings.sampler.clone();
                sampler.seed = sampler.seed.wrapping_add(choice as u64);
                let ticket = tickets.pop();
                let template = prompt.template.as_ref();
                let submitted = self.queue.submit(Job {
                    index: place * settings.n + choice,
                    prompt: prompt.tokens.clone(),
                    borders: prompt.borders.clone(),
                    sampler,
                    generate: settings.generate.clone(),
                    form: form.clone(),
                    logprobs: settings.logprobs,
                    echo: settings.echo,
                    deadline,
                    turns: template.map(|t| (Arc::clone(&t.turns), t.tail.clone())),
                    events: events.clone(),
                    ticket,
                });
                if !submitted {
                    return Err(busy());
                }
            }
        }
        let answers = Answers {
            receiver,
            first: None,
            left: count,
            usage: Usage {
                begun: Some(begun),
                ..Usage::default()
            },
        };
        answers.begun().await
    }
}
