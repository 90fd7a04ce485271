//! The thread that owns the sessions. Requests join and leave the batch between tokens. Prompts are read one at a time;
//! after each chunk of a prompt, every running answer takes one step. An answer that runs alone may draft.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;
use waterline::{
    Batch, Constraint, ContextEnd, EmbedOptions, Error, Finish, GenerateOptions, Generation, Piece,
    Result, Run, SamplerParams, Session, TokenIds, Turns,
};

use super::exchange::Exchange;
use super::logprobs::TokenLogprob;
use super::metrics::{Count, Metrics};
use super::prompt::{Generated, Known};
use super::scores::Scores;

/// An answer to generate.
pub struct Job {
    /// The index of this answer among the answers to its request.
    pub index: usize,
    /// The prompt's tokens; empty once they are read.
    pub prompt: Arc<TokenIds>,
    /// Positions where other prompts may continue differently.
    pub borders: Vec<usize>,
    /// The sampling parameters.
    pub sampler: SamplerParams,
    /// The conditions that end the answer.
    pub generate: GenerateOptions,
    /// The grammar of the answer.
    pub form: Option<Constraint>,
    /// The number of most probable tokens to report for each token; `None` reports no log-probabilities.
    pub logprobs: Option<usize>,
    /// Whether the prompt's tokens are also reported.
    pub echo: bool,
    /// Whose checkpoints the session may use; 0 if all clients share them.
    pub owner: u64,
    /// Texts whose vectors are computed; there is no answer then.
    pub texts: Option<Texts>,
    /// The latest time at which the answer ends.
    pub deadline: Instant,
    /// The template that made the prompt, and its text after the last control token.
    pub turns: Option<(Arc<Turns>, Run)>,
    /// The channel for events. Dropping its receiver cancels the job.
    pub events: UnboundedSender<(usize, Event)>,
    /// The request, whose measurements include this job's.
    pub exchange: Arc<Exchange>,
    /// The place in the queue and the prompt's share of the queue's tokens, released when reading the prompt starts.
    pub place: Option<(OwnedSemaphorePermit, Arc<OwnedSemaphorePermit>)>,
}

/// Texts whose vectors are computed, one after another.
pub struct Texts {
    /// The tokens of the texts that are left, in order.
    pub tokens: VecDeque<TokenIds>,
    pub options: EmbedOptions,
}

/// The progress of reading a prompt, in tokens.
#[derive(Clone, Copy)]
pub struct Progress {
    pub total: usize,
    pub reused: usize,
    /// Tokens of the prompt that are read or reused so far.
    pub done: usize,
}

/// A report on a job.
pub enum Event {
    /// A chunk of the prompt was read.
    Progress(Progress),
    /// The prompt was read: the numbers of reused and newly read tokens, and the prompt's log-probabilities if requested.
    Read(usize, usize, Vec<TokenLogprob>),
    /// The vector of the next text.
    Vector(Vec<f32>),
    /// A piece of the answer; the last piece holds the reason for the end.
    Piece(Piece, Option<TokenLogprob>),
    /// The answer ends here for lack of time or room.
    Cut,
    /// The job failed; no event follows.
    Failed(Error),
}

/// An answer that is being generated.
struct Answer {
    session: Session,
    generation: Generation,
    job: Job,
    tokens: Vec<u32>,
    text: String,
    /// The time of the last token.
    last: Option<Instant>,
}

impl Answer {
    /// Starts the answer to the prompt that `session` has read.
    fn new(session: Session, mut job: Job, mut generation: Generation) -> Self {
        if job.logprobs.is_none() {
            generation = generation.with_drafts(&session);
        }
        if let Some(form) = job.form.take() {
            generation.constrain(form);
        }
        Answer {
            session,
            generation,
            job,
            tokens: Vec::new(),
            text: String::new(),
            last: None,
        }
    }

    fn send(&self, event: Event) {
        let _ = self.job.events.send((self.job.index, event));
    }

    /// Adds a piece whose token the session has read.
    fn take(&mut self, piece: Piece, logprob: Option<TokenLogprob>) {
        if piece.token.is_some() {
            self.last = Some(self.job.exchange.token(self.last));
        }
        self.tokens.extend(piece.token);
        self.text.push_str(&piece.text);
        self.send(Event::Piece(piece, logprob));
    }

    /// Generates a token, and the draft tokens that are accepted with it.
    fn step(&mut self) -> Result<()> {
        loop {
            match self.generation.next(&mut self.session) {
                Some(piece) => self.take(piece?, None),
                None => return Ok(()),
            }
            if !self.generation.has_ahead(&self.session) {
                return Ok(());
            }
        }
    }

    /// Chooses a token from logits on the host, without feeding it. Returns its log-probability if requested.
    fn choose(&mut self) -> Result<(u32, Option<TokenLogprob>)> {
        let token = self.generation.choose(&mut self.session)?;
        let logprob = match self.job.logprobs {
            Some(top) => Some(TokenLogprob::new(self.session.logits()?, token, top)),
            None => None,
        };
        Ok((token, logprob))
    }

    /// Whether tokens are chosen from logits on the host.
    fn needs_choice(&self) -> bool {
        self.job.logprobs.is_some() || self.generation.needs_choice()
    }

    /// Whether the answer must be cut off before its end.
    fn is_cut(&self, now: Instant) -> bool {
        let options = self.session.options();
        let is_full = self.session.model().reads_context()
            && options.context_end == ContextEnd::Refuse
            && self.session.position() >= options.state.context as u64;
        now > self.job.deadline || is_full || self.job.generate.max_tokens == 0
    }
}

/// A token, and its log-probability if requested.
type Chosen = (u32, Option<TokenLogprob>);

/// The sessions that step together.
struct Group {
    batch: Batch,
    answers: Vec<Answer>,
    known: Arc<Known>,
    metrics: Arc<Metrics>,
}

/// Whether the model's thread runs.
#[derive(Default)]
pub struct Health {
    is_down: AtomicBool,
}

impl Health {
    /// Whether requests are answered.
    pub fn is_well(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }
}

/// What the model's thread shares with the connections.
pub struct Shared {
    pub jobs: Receiver<Job>,
    pub known: Arc<Known>,
    pub metrics: Arc<Metrics>,
    pub health: Arc<Health>,
    /// Whether the process ends if the thread cannot start again.
    pub is_only: bool,
}

/// Starts the model's thread with these sessions. After a panic it opens new ones; if that fails, the thread ends.
///
/// # Errors
/// The errors of [`Batch::new`], and [`crate::error::Error`] if the system refuses the thread.
pub fn start(
    shared: Shared,
    sessions: Vec<Session>,
    open: impl Fn() -> crate::error::Result<Vec<Session>> + Send + 'static,
) -> crate::error::Result<JoinHandle<()>> {
    let batch = Batch::new(&sessions[0], sessions.len())?;
    let mut made = Some((sessions, batch));
    let make = move || match made.take() {
        Some(made) => Ok(made),
        None => {
            let sessions = open()?;
            let batch = Batch::new(&sessions[0], sessions.len())?;
            Ok((sessions, batch))
        }
    };
    let run = move || {
        let health = Arc::clone(&shared.health);
        let run = |(sessions, batch)| Scheduler::new(sessions, batch, &shared).run();
        if let Err(error) = supervise(&health, make, run) {
            eprintln!("waterline: the model's thread cannot start again: {error}");
            if shared.is_only {
                std::process::exit(1);
            }
        }
    };
    let thread = std::thread::Builder::new().name("model".into());
    let thread = thread.spawn(run);
    thread.map_err(|e| crate::error::Error::io("the model's thread", e))
}

/// Runs `run` with what `make` returns until it returns. After a panic both are called again; `health` tells meanwhile.
fn supervise<T>(
    health: &Health,
    mut make: impl FnMut() -> crate::error::Result<T>,
    run: impl Fn(T),
) -> crate::error::Result<()> {
    loop {
        let made = make()?;
        health.is_down.store(false, Ordering::Relaxed);
        if catch_unwind(AssertUnwindSafe(|| run(made))).is_ok() {
            return Ok(());
        }
        health.is_down.store(true, Ordering::Relaxed);
        eprintln!("waterline: the model's thread failed; it starts again");
    }
}

/// The state of the model's thread.
struct Scheduler<'a> {
    idle: Vec<Session>,
    group: Group,
    jobs: &'a Receiver<Job>,
    waiting: VecDeque<Job>,
    scores: Scores,
}

impl<'a> Scheduler<'a> {
    /// Creates a scheduler over sessions that share a model, a device and a pool.
    fn new(idle: Vec<Session>, batch: Batch, shared: &'a Shared) -> Self {
        let group = Group {
            batch,
            answers: Vec::with_capacity(idle.len()),
            known: Arc::clone(&shared.known),
            metrics: Arc::clone(&shared.metrics),
        };
        Scheduler {
            idle,
            group,
            jobs: &shared.jobs,
            waiting: VecDeque::new(),
            scores: Scores::default(),
        }
    }

    /// Runs until all senders of jobs are gone and all answers have ended.
    fn run(mut self) {
        loop {
            let is_open = receive(self.jobs, &mut self.waiting);
            while !self.waiting.is_empty()
                && let Some(session) = self.idle.pop()
                && let Some(job) = self.waiting.pop_front()
            {
                self.begin(session, job);
            }
            if !self.group.answers.is_empty() {
                self.group.step(&mut self.idle);
            } else if self.waiting.is_empty() {
                match self.jobs.recv() {
                    Ok(job) if is_open => self.waiting.push_back(job),
                    _ => return,
                }
            }
        }
    }

    /// Reads a prompt and adds its answer to the group.
    fn begin(&mut self, mut session: Session, mut job: Job) {
        if job.place.take().is_some() {
            job.exchange.leaves_queue();
        }
        if let Some(texts) = job.texts.take() {
            return self.embed(session, job, texts);
        }
        let read = self.read(&mut session, &job);
        // A cancellation that came after the last chunk must not reach a batch.
        session.canceller().clear();
        job.prompt = Arc::default();
        let generation = read.and_then(|event| {
            let _ = job.events.send((job.index, event));
            Generation::new(session.model(), job.generate.clone())
        });
        match generation {
            Ok(generation) => {
                let answer = Answer::new(session, job, generation);
                self.group.answers.push(answer);
            }
            Err(error) => {
                self.idle.push(session);
                let _ = job.events.send((job.index, Event::Failed(error)));
            }
        }
    }

    /// Computes the vector of a job's next text. The rest of the job waits for the jobs that came meanwhile.
    fn embed(&mut self, mut session: Session, mut job: Job, mut texts: Texts) {
        let Scheduler {
            idle,
            group,
            jobs,
            waiting,
            ..
        } = self;
        let tokens = texts.tokens.pop_front().unwrap_or_default();
        let canceller = session.canceller();
        canceller.clear();
        let began = Instant::now();
        let vector = session.embed_with_progress(&tokens, &texts.options, |_| {
            if job.events.is_closed() || Instant::now() > job.deadline {
                canceller.cancel();
            }
            receive(jobs, waiting);
            group.step(idle);
        });
        canceller.clear();
        idle.push(session);
        let event = match vector {
            Ok(vector) => Event::Vector(vector),
            Err(error) => {
                job.exchange.fails();
                let _ = job.events.send((job.index, Event::Failed(error)));
                return;
            }
        };
        job.exchange.has_read(0, tokens.len());
        group.metrics.add(Count::Read, tokens.len());
        group.metrics.add_time(Count::ReadTime, began.elapsed());
        let _ = job.events.send((job.index, event));
        if texts.tokens.is_empty() {
            job.exchange.ends(Some(Finish::End));
        } else {
            job.texts = Some(texts);
            waiting.push_back(job);
        }
    }

    fn read(&mut self, session: &mut Session, job: &Job) -> Result<Event> {
        let Scheduler {
            idle,
            group,
            jobs,
            waiting,
            scores,
        } = self;
        let canceller = session.canceller();
        canceller.clear();
        let mut between = || {
            if job.events.is_closed() || Instant::now() > job.deadline {
                canceller.cancel();
            }
            receive(jobs, waiting);
            group.step(idle);
        };
        session.set_owner(job.owner)?;
        session.set_sampler(job.sampler.clone())?;
        let began = Instant::now();
        let (reused, logprobs) = if job.echo {
            let top = job.logprobs.unwrap_or(0);
            scores.read(session, &job.prompt, top, between)?
        } else {
            let total = job.prompt.len();
            let read = session.read_history_with(&job.prompt, &job.borders, |read, of| {
                let reused = total.saturating_sub(of);
                let done = reused + read;
                let progress = Progress {
                    total,
                    reused,
                    done,
                };
                let _ = job.events.send((job.index, Event::Progress(progress)));
                between();
            })?;
            (read.reused, Vec::new())
        };
        session.set_draws(0);
        let read = job.prompt.len() - reused;
        job.exchange.has_read(reused, read);
        let metrics = &self.group.metrics;
        metrics.add(Count::Reused, reused);
        metrics.add(Count::Read, read);
        metrics.add_time(Count::ReadTime, began.elapsed());
        Ok(Event::Read(reused, read, logprobs))
    }
}

fn sessions(answers: &mut [Answer]) -> Vec<&mut Session> {
    answers
        .iter_mut()
        .map(|answer| &mut answer.session)
        .collect()
}

/// Moves new jobs to `waiting` and drops waiting jobs whose client left. Returns false if no more jobs can arrive.
fn receive(jobs: &Receiver<Job>, waiting: &mut VecDeque<Job>) -> bool {
    let is_open = loop {
        match jobs.try_recv() {
            Ok(job) => waiting.push_back(job),
            Err(TryRecvError::Empty) => break true,
            Err(TryRecvError::Disconnected) => break false,
        }
    };
    waiting.retain(|job| !job.events.is_closed());
    is_open
}

impl Group {
    /// Generates one token of every answer, or more if a single answer drafts. A single answer skips the batch, whose
    /// steps are slower on a GPU. Sessions of answers that end become idle.
    fn step(&mut self, idle: &mut Vec<Session>) {
        self.leave(idle);
        if self.answers.is_empty() {
            return;
        }
        let began = Instant::now();
        let before = self.tokens();
        let stepped = match &mut self.answers[..] {
            [answer] if answer.job.logprobs.is_none() => answer.step(),
            _ => self.step_together(idle),
        };
        if let Err(error) = stepped {
            self.fail_all(idle, error);
        }
        self.metrics.add(Count::Steps, 1);
        self.metrics
            .add(Count::Generated, self.tokens().saturating_sub(before));
        self.metrics.add_time(Count::StepTime, began.elapsed());
        self.leave(idle);
    }

    /// Returns the number of tokens generated for the running answers.
    fn tokens(&self) -> usize {
        self.answers.iter().map(|answer| answer.tokens.len()).sum()
    }

    /// Generates one token of every answer in one pass over the weights. An answer that fails leaves the group alone.
    fn step_together(&mut self, idle: &mut Vec<Session>) -> Result<()> {
        if self.answers.iter().any(Answer::needs_choice) {
            let chosen = self.answers.iter_mut().map(Answer::choose).collect();
            let chosen = self.keep_successful(chosen, idle);
            let tokens: Vec<u32> = chosen.iter().map(|(token, _)| *token).collect();
            self.batch.feed(&mut sessions(&mut self.answers), &tokens)?;
            self.take(chosen);
        } else {
            let stepped = self.batch.step_each(&mut sessions(&mut self.answers))?;
            let stepped = stepped.into_iter().map(|token| Ok((token?, None)));
            let chosen = self.keep_successful(stepped.collect(), idle);
            self.take(chosen);
        }
        Ok(())
    }

    /// Removes the answers that failed from the group. Returns the tokens of the others.
    fn keep_successful(
        &mut self,
        outcomes: Vec<Result<Chosen>>,
        idle: &mut Vec<Session>,
    ) -> Vec<Chosen> {
        let answers = std::mem::take(&mut self.answers);
        let mut chosen = Vec::with_capacity(answers.len());
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            match outcome {
                Ok(token) => {
                    chosen.push(token);
                    self.answers.push(answer);
                }
                Err(error) => self.fail(answer, error, idle),
            }
        }
        chosen
    }

    /// Adds to each answer the token that its session has read.
    fn take(&mut self, chosen: Vec<Chosen>) {
        for (answer, (token, logprob)) in self.answers.iter_mut().zip(chosen) {
            let piece = answer.generation.push(token);
            answer.take(piece, logprob);
        }
    }

    /// Removes answers that have ended, or must end, from the group.
    fn leave(&mut self, idle: &mut Vec<Session>) {
        let now = Instant::now();
        for index in (0..self.answers.len()).rev() {
            let answer = &self.answers[index];
            let has_ended = answer.generation.finish().is_some();
            // A client that has its complete answer may leave before the answer is counted.
            let is_gone = !has_ended && answer.job.events.is_closed();
            if !(has_ended || is_gone || answer.is_cut(now)) {
                continue;
            }
            let mut answer = self.answers.swap_remove(index);
            if !is_gone {
                let finish = answer.generation.finish();
                answer.job.exchange.ends(finish);
            }
            if !has_ended {
                answer.send(Event::Cut);
            }
            // The next message may continue from here.
            if let Some((turns, tail)) = answer.job.turns.take().filter(|_| !is_gone) {
                // The tokens of a text are the tokenizer's, whatever was generated, if answers may not depend on other clients.
                if !answer.session.options().exact && answer.job.owner == 0 {
                    self.known.add(&Generated {
                        turns,
                        tail,
                        text: answer.text,
                        tokens: answer.tokens,
                    });
                }
                let _ = answer.session.checkpoint();
            }
            self.metrics.ends_at(answer.session.position());
            self.metrics.add(Count::Answers, 1);
            self.metrics.add(Count::Cancelled, usize::from(is_gone));
            idle.push(answer.session);
        }
    }

    /// Removes all answers: the only one failed, or the device that they share.
    fn fail_all(&mut self, idle: &mut Vec<Session>, error: Error) {
        let reason = error.to_string();
        let mut first = Some(error);
        for answer in std::mem::take(&mut self.answers) {
            let again = || Error::Device {
                device: "the batch".into(),
                reason: reason.clone(),
            };
            self.fail(answer, first.take().unwrap_or_else(again), idle);
        }
    }

    fn fail(&mut self, answer: Answer, error: Error, idle: &mut Vec<Session>) {
        answer.job.exchange.fails();
        answer.send(Event::Failed(error));
        self.metrics.add(Count::Answers, 1);
        idle.push(answer.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_thread_that_panics_starts_again_and_health_tells() {
        let (health, made) = (Health::default(), Cell::new(0));
        let make = || {
            assert_eq!(health.is_well(), made.get() == 0);
            made.set(made.get() + 1);
            Ok(made.get())
        };
        let run = |number| {
            assert!(health.is_well());
            assert!(number == 3, "fails twice");
        };
        assert!(supervise(&health, make, run).is_ok());
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn a_thread_that_cannot_start_again_is_an_error() {
        let (health, made) = (Health::default(), Cell::new(0));
        let make = || {
            made.set(made.get() + 1);
            match made.get() {
                1 => Ok(()),
                _ => Err(crate::error::Error::usage("no memory")),
            }
        };
        assert!(supervise(&health, make, |()| panic!("fails")).is_err());
        assert!(!health.is_well());
    }
}
