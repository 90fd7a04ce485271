//! The path from prompts to answers that all interfaces share. Each interface has its own response format.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::header::HeaderValue;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use waterline::{Grammar, Receipt, SamplerParams};

use super::App;
use super::answer::{Added, Reply};
use super::app::full_queue;
use super::exchange::Exchange;
use super::fields::Face;
use super::http::{Body, Events, json_response};
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::request::Settings;
use super::scheduler::{Event, Job, Progress};

/// Time without an event after which a stream sends a comment, so that no proxy takes it for dead.
const SILENCE: Duration = Duration::from_secs(10);
/// The header with remarks on what the answers leave out.
const NOTE: &str = "waterline-note";

/// The response format of an interface.
pub trait Form: Send + 'static {
    /// The interface.
    fn face(&self) -> Face;

    /// Returns the events of a stream before the prompt is read.
    fn begin(&mut self, _: &App) -> Vec<Value> {
        Vec::new()
    }

    /// Returns the event that reports how much of the prompt is read.
    fn progress(&self, _: &App, _: Progress, _: &Usage) -> Option<Value> {
        None
    }

    /// Returns the complete answers.
    fn whole(&mut self, app: &App, replies: &[Reply], usage: &Usage) -> Value;

    /// Returns the stream events for the additions to the answer with index `answer.0`.
    fn events(
        &mut self,
        app: &App,
        answer: (usize, &Reply),
        added: Added,
        usage: &Usage,
    ) -> Vec<Value>;

    /// Returns the event that ends a stream because of an error.
    fn failed(&mut self, _: &App, refusal: &Refusal) -> Value {
        refusal.value(self.face())
    }

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
    /// Answers per prompt.
    n: usize,
    usage: Usage,
    /// The server's number of answers that wait or run, which includes these.
    active: Arc<AtomicUsize>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.active.fetch_sub(self.replies.len(), Ordering::Relaxed);
    }
}

/// A report on an answer.
enum Report {
    Progress(Progress),
    Added(usize, Added),
}

/// Token counts and times of a request.
#[derive(Default)]
pub struct Usage {
    prompt: usize,
    reused: usize,
    generated: usize,
    /// Generated tokens of thoughts.
    thought: usize,
    begun: Option<Instant>,
    read: Option<Instant>,
}

impl Answers {
    /// Waits for the next event of any answer. Returns `None` once all answers have ended.
    async fn next(&mut self) -> Option<Result<Report, Refusal>> {
        if self.left == 0 {
            return None;
        }
        let ended = || waterline::Error::Device {
            device: "the model".into(),
            reason: "its thread failed and starts again".into(),
        };
        let received = self.receiver.recv().await;
        let (index, event) = received.unwrap_or_else(|| (0, Event::Failed(ended())));
        let mut is_token = false;
        match &event {
            Event::Progress(progress) => return Some(Ok(Report::Progress(*progress))),
            // The answers to one prompt share it.
            Event::Read(reused, read, _) if index.is_multiple_of(self.n) => {
                self.usage.reused += reused;
                self.usage.prompt += reused + read;
                self.usage.read.get_or_insert_with(Instant::now);
            }
            Event::Piece(piece, _) => is_token = piece.token.is_some(),
            _ => {}
        }
        self.usage.generated += usize::from(is_token);
        Some(match self.replies[index].take(event) {
            Ok(added) => {
                self.left -= usize::from(added.ends);
                self.usage.thought += usize::from(is_token && added.is_thought);
                Ok(Report::Added(index, added))
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
            "completion_tokens_details": { "reasoning_tokens": self.thought },
        })
    }

    /// The usage in the format of OpenAI's responses.
    pub fn responses(&self) -> Value {
        json!({
            "input_tokens": self.prompt,
            "input_tokens_details": { "cached_tokens": self.reused },
            "output_tokens": self.generated,
            "output_tokens_details": { "reasoning_tokens": self.thought },
            "total_tokens": self.prompt + self.generated,
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

    /// The progress of reading the prompt in llama.cpp's format.
    pub fn progress(&self, progress: Progress) -> Value {
        json!({
            "total": progress.total,
            "cache": progress.reused,
            "processed": progress.done,
            "time_ms": self.begun.map_or(0, |begun| begun.elapsed().as_millis() as u64),
        })
    }

    /// Times in nanoseconds and counts, in ollama's format.
    pub fn ollama(&self) -> Value {
        let (prompt, generated) = self.times();
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        json!({
            "total_duration": nanoseconds(prompt + generated),
            "load_duration": 0,
            "prompt_eval_count": self.prompt,
            "prompt_eval_duration": nanoseconds(prompt),
            "eval_count": self.generated,
            "eval_duration": nanoseconds(generated),
        })
    }

    /// Tokens of the prompts, and generated tokens.
    pub fn counts(&self) -> (usize, usize) {
        (self.prompt, self.generated)
    }

    /// The times of reading the prompt and of generating.
    fn times(&self) -> (Duration, Duration) {
        let now = Instant::now();
        let (begun, read) = (self.begun.unwrap_or(now), self.read.unwrap_or(now));
        (read - begun, now - read)
    }

    /// The timings in llama.cpp's format.
    pub fn timings(&self) -> Value {
        let (prompt, generated) = self.times();
        let (prompt, generated) = (prompt.as_secs_f64(), generated.as_secs_f64());
        let count = self.prompt - self.reused;
        json!({
            "cache_n": self.reused,
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
    /// prompts. The response is complete, or a stream that begins at once.
    pub async fn respond(
        self: &Arc<Self>,
        (prompts, replies): (Vec<Prompt>, Vec<Reply>),
        mut settings: Settings,
        mut form: impl Form,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        let (streams, mut notes) = (settings.stream, std::mem::take(&mut settings.notes));
        let prompts = match settings.state.clone() {
            None => prompts,
            Some(state) => {
                let after =
                    move |app: &App| prompts.iter().map(|it| app.after(&state, it)).collect();
                self.make(after).await?
            }
        };
        let mut answers = self
            .hand_over((prompts, replies), settings, &mut notes, exchange)
            .await?;
        let mut response = if streams {
            let (events, response) = Events::new(form.face() == Face::Ollama, exchange);
            tokio::spawn(stream(Arc::clone(self), answers, form, events));
            response
        } else {
            while let Some(report) = answers.next().await {
                report?;
            }
            json_response(&form.whole(self, &answers.replies, &answers.usage))
        };
        if let Some(note) = note(&notes) {
            response.headers_mut().insert(NOTE, note);
        }
        Ok(response)
    }

    /// Submits prompts to the scheduler.
    async fn hand_over(
        self: &Arc<Self>,
        (prompts, mut replies): (Vec<Prompt>, Vec<Reply>),
        settings: Settings,
        notes: &mut Vec<String>,
        exchange: &Arc<Exchange>,
    ) -> Result<Answers, Refusal> {
        exchange.model(&self.name);
        for prompt in &prompts {
            let (tokens, context) = (prompt.tokens.len(), self.context.unwrap_or(usize::MAX));
            if tokens == 0 {
                return Err(Refusal::bad("the prompt is empty"));
            }
            if tokens > context {
                return Err(Refusal::context_full(tokens, context));
            }
        }
        let (form, more) = self.constraint(settings.form.clone()).await?;
        let (grammar, form) = form.unzip();
        notes.extend(more);
        if settings.receipt {
            // The first receipt reads the model for its fingerprint.
            self.make(|app| app.prompter.model().fingerprint().map(|_| ()))
                .await?;
        }
        let tokens = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let (mut places, share) = self.queue.enter(replies.len(), tokens)?;
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
            if settings.receipt {
                let receipt = self.receipt(&prompt.tokens, &sampler, &settings, grammar.clone())?;
                replies[index].receipt = Some(Box::new(receipt));
            }
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
                texts: None,
                deadline,
                turns: template.map(|t| (Arc::clone(&t.turns), t.tail.clone())),
                events: events.clone(),
                exchange: Arc::clone(exchange),
                place: places.split(1).map(|place| (place, Arc::clone(&share))),
            });
            submitted.map_err(|_| full_queue())?;
        }
        self.active.fetch_add(replies.len(), Ordering::Relaxed);
        Ok(Answers {
            receiver,
            left: replies.len(),
            replies,
            n: settings.n,
            active: Arc::clone(&self.active),
            usage: Usage {
                begun: Some(begun),
                ..Usage::default()
            },
        })
    }

    /// Begins the receipt of an answer.
    fn receipt(
        &self,
        prompt: &[u32],
        sampler: &SamplerParams,
        settings: &Settings,
        grammar: Option<Grammar>,
    ) -> waterline::Result<Receipt> {
        let state = settings.state.as_ref();
        let before = state.map_or(0, |state| state.tokens().len());
        let (model, session) = (self.prompter.model(), self.session.clone());
        let mut receipt = Receipt::new(model, session, prompt[before..].to_vec(), sampler.clone())?;
        if let Some(state) = state {
            receipt.set_state(state);
        }
        (receipt.options, receipt.grammar) = (settings.generate.clone(), grammar);
        Ok(receipt)
    }
}

/// Sends the answers as they arrive.
async fn stream(app: Arc<App>, mut answers: Answers, mut form: impl Form, mut events: Events) {
    let mut list = form.begin(&app);
    loop {
        for event in list {
            if !events.send(&event).await {
                return;
            }
        }
        list = match timeout(SILENCE, answers.next()).await {
            Err(_) => {
                if !events.send_comment().await {
                    return;
                }
                Vec::new()
            }
            Ok(None) => break,
            Ok(Some(Ok(Report::Progress(progress)))) => {
                let event = form.progress(&app, progress, &answers.usage);
                event.into_iter().collect()
            }
            Ok(Some(Ok(Report::Added(index, added)))) => {
                let answer = (index, &answers.replies[index]);
                form.events(&app, answer, added, &answers.usage)
            }
            Ok(Some(Err(refusal))) => {
                events.send(&form.failed(&app, &refusal)).await;
                return;
            }
        };
    }
    events.send_text(form.last(&app, &answers.usage)).await;
}

/// The remarks as a header's value, without what a header cannot hold.
fn note(notes: &[String]) -> Option<HeaderValue> {
    let is_plain = |c: &char| matches!(c, ' '..='~');
    let text: String = notes
        .join("; ")
        .chars()
        .filter(is_plain)
        .take(1_000)
        .collect();
    HeaderValue::from_str(&text)
        .ok()
        .filter(|_| !text.is_empty())
}
