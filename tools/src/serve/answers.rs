//! The path from prompts to answers that all interfaces share. Each interface has its own response format.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::App;
use super::answer::{Added, Reply};
use super::exchange::Exchange;
use super::http::{Body, Events, Refusal, json_response};
use super::prompt::Prompt;
use super::request::Settings;
use super::scheduler::{Event, Job};

/// The response format of an interface.
pub trait Form: Send + 'static {
    /// Returns the complete answers.
    fn whole(&self, app: &App, replies: &[Reply], usage: &Usage) -> Value;

    /// Returns the stream events for the additions to the answer with index `answer.0`.
    fn events(
        &mut self,
        app: &App,
        answer: (usize, &Reply),
        added: Added,
        usage: &Usage,
    ) -> Vec<Value>;

    /// Returns the text that ends a stream.
    fn last(&self, _: &App, _: &Usage) -> String {
        String::new()
    }
}

/// The answers to a request, as they arrive.
struct Answers {
    receiver: UnboundedReceiver<(usize, Event)>,
    replies: Vec<Reply>,
    left: usize,
    usage: Usage,
}

/// Token counts and times of a request.
#[derive(Default)]
pub struct Usage {
    prompt: usize,
    reused: usize,
    generated: usize,
    begun: Option<Instant>,
    read: Option<Instant>,
}

impl Answers {
    /// Waits for the next event of any answer. Returns `None` once all answers have ended.
    async fn next(&mut self) -> Option<Result<(usize, Added), Refusal>> {
        if self.left == 0 {
            return None;
        }
        let ended = || waterline::Error::Device {
            device: "the model".into(),
            reason: "its thread failed and starts again".into(),
        };
        let received = self.receiver.recv().await;
        let (index, event) = received.unwrap_or_else(|| (0, Event::Failed(ended())));
        match &event {
            Event::Read(reused, read, _) => {
                self.usage.reused += reused;
                self.usage.prompt += reused + read;
                self.usage.read.get_or_insert_with(Instant::now);
            }
            Event::Piece(piece, _) => self.usage.generated += usize::from(piece.token.is_some()),
            _ => {}
        }
        Some(match self.replies[index].take(event) {
            Ok(added) => {
                self.left -= usize::from(added.ends);
                Ok((index, added))
            }
            Err(error) => {
                self.left = 0;
                Err(error.into())
            }
        })
    }
}

impl Usage {
    /// The usage in OpenAI's format.
    pub fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": { "cached_tokens": self.reused },
        })
    }

    /// The usage in Anthropic's format.
    pub fn anthropic(&self) -> Value {
        json!({
            "input_tokens": self.prompt - self.reused,
            "cache_read_input_tokens": self.reused,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.generated,
        })
    }

    /// The timings in llama.cpp's format.
    pub fn timings(&self) -> Value {
        let now = Instant::now();
        let (begun, read) = (self.begun.unwrap_or(now), self.read.unwrap_or(now));
        let (prompt, generated) = ((read - begun).as_secs_f64(), (now - read).as_secs_f64());
        let count = self.prompt - self.reused;
        json!({
            "prompt_n": count,
            "prompt_ms": 1e3 * prompt,
            "prompt_per_second": count as f64 / prompt.max(1e-9),
            "predicted_n": self.generated,
            "predicted_ms": 1e3 * generated,
            "predicted_per_second": self.generated as f64 / generated.max(1e-9),
        })
    }
}

impl App {
    /// Generates `settings.n` answers to each prompt. `replies` holds one empty reply per answer, in the order of the
    /// prompts. The response is complete, or a stream that starts once the first prompt is read.
    pub async fn respond(
        self: &Arc<Self>,
        (prompts, replies): (Vec<Prompt>, Vec<Reply>),
        settings: Settings,
        mut form: impl Form,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let streams = settings.stream;
        let mut answers = self
            .hand_over((prompts, replies), settings, exchange)
            .await?;
        if !streams {
            while let Some(added) = answers.next().await {
                added?;
            }
            return Ok(json_response(&form.whole(
                self,
                &answers.replies,
                &answers.usage,
            )));
        }
        let mut next = answers.next().await;
        // Errors before the first event are refusals, not streams.
        if let Some(Err(error)) = next {
            return Err(error);
        }
        let (mut events, response) = Events::new(exchange);
        let app = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(added) = next {
                let list = match added {
                    Ok((index, added)) => {
                        let answer = (index, &answers.replies[index]);
                        form.events(&app, answer, added, &answers.usage)
                    }
                    Err(error) => {
                        events.send(&error.value()).await;
                        return;
                    }
                };
                for event in list {
                    if !events.send(&event).await {
                        return;
                    }
                }
                next = answers.next().await;
            }
            events.send_text(form.last(&app, &answers.usage)).await;
        });
        Ok(response)
    }

    /// Submits prompts to the scheduler.
    async fn hand_over(
        self: &Arc<Self>,
        (prompts, replies): (Vec<Prompt>, Vec<Reply>),
        settings: Settings,
        exchange: &Arc<Exchange>,
    ) -> Result<Answers, Refusal> {
        exchange.model(&self.name);
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
        let form = self.form(settings.form).await?;
        let busy = || {
            let most = "the queue is full (--queue)";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, most)
        };
        let count = u32::try_from(replies.len()).map_err(|_| busy())?;
        let places = Arc::clone(&self.queue.places).try_acquire_many_owned(count);
        let mut places = places.map_err(|_| busy())?;
        let tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let tokens = u32::try_from(tokens).map_err(|_| busy())?;
        let share = Arc::clone(&self.queue.tokens).try_acquire_many_owned(tokens);
        let share = Arc::new(share.map_err(|_| busy())?);
        let (events, receiver) = unbounded_channel();
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(self.limits.seconds);
        for (index, prompt) in prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt, settings.n))
            .enumerate()
        {
            let mut sampler = settings.sampler.clone();
            sampler.seed = sampler.seed.wrapping_add((index % settings.n) as u64);
            let template = prompt.template.as_ref();
            let submitted = self.queue.jobs.send(Job {
                index,
                prompt: Arc::clone(&prompt.tokens),
                borders: prompt.borders.clone(),
                sampler,
                generate: settings.generate.clone(),
                form: form.clone(),
                logprobs: settings.logprobs,
                echo: settings.echo,
                owner: settings.owner,
                deadline,
                turns: template.map(|t| (Arc::clone(&t.turns), t.tail.clone())),
                events: events.clone(),
                exchange: Arc::clone(exchange),
                place: places.split(1).map(|place| (place, Arc::clone(&share))),
            });
            submitted.map_err(|_| busy())?;
        }
        Ok(Answers {
            receiver,
            left: replies.len(),
            replies,
            usage: Usage {
                begun: Some(begun),
                ..Usage::default()
            },
        })
    }
}
