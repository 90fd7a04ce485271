//! The thread that owns the sessions. Requests join and leave a batch at token borders. Prompts are read one at a time; after each
//! chunk of one, all running answers step once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use waterline::{
    Batch, Constraint, Error, Finish, GenerateOptions, Generation, Run, SamplerParams, Session,
    Turns,
};

use super::logprobs::TokenLogprob;
use super::metrics::Metrics;
use super::prompt::{Generated, Known};

/// An answer that is to be generated.
pub struct Job {
    /// Which of the answers to a request this is.
    pub index: usize,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Positions where other prompts may go on otherwise.
    pub borders: Vec<usize>,
    /// How tokens are chosen.
    pub sampler: SamplerParams,
    /// When the answer ends.
    pub generate: GenerateOptions,
    /// The form of the answer.
    pub form: Option<Constraint>,
    /// How many of the most probable tokens are reported for each token; none reports nothing.
    pub logprobs: Option<usize>,
    /// Whether the prompt's tokens are reported too.
    pub echo: bool,
    /// When the answer ends at the latest.
    pub deadline: Instant,
    /// The template that made the prompt, and its text after the last control token.
    pub turns: Option<(Arc<Turns>, Run)>,
    /// Where events go. A receiver that is gone cancels the job.
    pub events: UnboundedSender<(usize, Event)>,
    /// The place in the queue, until the prompt is read.
    pub ticket: Option<Ticket>,
}

/// News of a job.
pub enum Event {
    /// The prompt was read: of its tokens these many were known, and these many were read. With their log-probabilities if asked for.
    Read(usize, usize, Vec<TokenLogprob>),
    /// A token, or the end without one, with the text that it completes; `finish` in the last.
    Piece {
        token: bool,
        text: String,
        logprob: Option<TokenLogprob>,
        finish: Option<Finish>,
    },
    /// Nothing more will come.
    Failed(Error),
}

/// A place in the queue, which is free again when this is dropped.
pub struct Ticket(Arc<AtomicUsize>);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The way into the scheduler.
pub struct Queue {
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

impl Queue {
    /// A queue of at most `most` jobs, and its other end.
    pub fn new(most: usize) -> (Self, Receiver<Job>) {
        let (jobs, receiver) = channel();
        let waiting = Arc::default();
        (
            Queue {
                jobs,
                waiting,
                most,
            },
            receiver,
        )
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// A place in the queue, if one is free.
    pub fn ticket(&self) -> Option<Ticket> {
        let ticket = Ticket(Arc::clone(&self.waiting));
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        (before < self.most).then_some(ticket)
    }

    /// Hands over a job; false if the scheduler has ended.
    pub fn submit(&self, job: Job) -> bool {
        self.jobs.send(job).is_ok()
    }
}

/// An answer that is being generated.
struct Answer {
    session: Session,
    generation: Generation,
    job: Job,
    tokens: Vec<u32>,
    text: String,
}

/// The sessions that step together.
struct Group {
    batch: Batch,
    answers: Vec<Answer>,
    known: Arc<Known>,
    metrics: Arc<Metrics>,
}

/// The thread's own.
pub struct Scheduler {
    idle: Vec<Session>,
    group: Group,
    jobs: Receiver<Job>,
    waiting: VecDeque<Job>,
}

impl Scheduler {
    /// A scheduler over these sessions, which share a model, a device and a pool.
    ///
    /// # Errors
    /// As [`Batch::new`].
    pub fn new(
        idle: Vec<Session>,
        jobs: Receiver<Job>,
        known: Arc<Known>,
        metrics: Arc<Metrics>,
    ) -> waterline::Result<Self> {
        let group = Group {
            batch: Batch::new(&idle[0], idle.len())?,
            answers: Vec::with_capacity(idle.len()),
            known,
            metrics,
        };
        Ok(Scheduler {
            idle,
            group,
            jobs,
            waiting: VecDeque::new(),
        })
    }

    /// Works until nobody can send jobs any more and all have ended.
    pub fn run(mut self) {
        loop {
            let is_open = receive(&self.jobs, &mut self.waiting);
            while let Some(session) = self.idle.pop() {
                match self.waiting.pop_front() {
                    Some(job) => self.begin(session, job),
                    None => {
                        self.idle.push(session);
                        break;
                    }
                }
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

    /// Reads a prompt, after which its answer is one of the group.
    fn begin(&mut self, mut session: Session, mut job: Job) {
        job.ticket = None;
        if job.events.is_closed() {
            self.idle.push(session);
            return;
        }
        match self.read(&mut session, &job) {
            Ok(event) => {
                let generation = Generation::new(session.model(), job.generate.clone());
                let _ = job.events.send((job.index, event));
                match generation {
                    Ok(mut generation) => {
                        if let Some(form) = job.form.take() {
                            generation.constrain(form);
                        }
                        self.group.answers.push(Answer {
                            session,
                            generation,
                            job,
                            tokens: Vec::new(),
                            text: String::new(),
                        });
                    }
                    Err(error) => self.fail(session, &job, error),
                }
            }
            Err(error) => self.fail(session, &job, error),
        }
    }

    fn fail(&mut self, session: Session, job: &Job, error: Error) {
        self.idle.push(session);
        let _ = job.events.send((job.index, Event::Failed(error)));
    }

    fn read(&mut self, session: &mut Session, job: &Job) -> waterline::Result<Event> {
        let Scheduler {
            idle,
            group,
            jobs,
            waiting,
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
        session.set_sampler(job.sampler.clone())?;
        let began = Instant::now();
        let event = match job.echo {
            false => {
                let read =
                    session.read_history_with(&job.prompt, &job.borders, |_, _| between())?;
                Event::Read(read.reused, read.read, Vec::new())
            }
            true => {
                // Each token's logits are needed, so nothing is left out.
                session.reset()?;
                let chunk = session.options().chunk.max(1);
                let top = job.logprobs.unwrap_or(0);
                let mut found = vec![TokenLogprob::unknown(job.prompt[0])];
                session.feed_each(&job.prompt, |index, logits| {
                    if let Some(&next) = job.prompt.get(index + 1) {
                        found.push(TokenLogprob::new(logits, next, top));
                    }
                    if (index + 1) % chunk == 0 {
                        between();
                    }
                })?;
                Event::Read(0, job.prompt.len(), found)
            }
        };
        session.set_draws(0);
        if let Event::Read(reused, read, _) = &event {
            self.group.metrics.read(*reused, *read, began.elapsed());
        }
        Ok(event)
    }
}

/// Takes in the jobs that have come, without those that nobody waits for; false if no more can come.
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
    /// One token of every answer. The sessions of those that end are idle.
    fn step(&mut self, idle: &mut Vec<Session>) {
        self.leave(idle);
        if self.answers.is_empty() {
            return;
        }
        let began = Instant::now();
        let is_plain =
            |answer: &Answer| answer.job.logprobs.is_none() && !answer.generation.chooses();
        let mut logprobs = Vec::new();
        let tokens = if self.answers.iter().all(is_plain) {
            let mut sessions: Vec<&mut Session> =
                self.answers.iter_mut().map(|a| &mut a.session).collect();
            self.batch.step(&mut sessions).map(<[u32]>::to_vec)
        } else {
            self.choose(&mut logprobs)
        };
        let tokens = match tokens {
            Ok(tokens) => tokens,
            Err(error) => return self.drop_failed(idle, error),
        };
        self.metrics.step(tokens.len(), began.elapsed());
        let mut logprobs = logprobs.into_iter();
        for (answer, token) in self.answers.iter_mut().zip(tokens) {
            let piece = answer.generation.push(token);
            answer.tokens.push(token);
            answer.text.push_str(&piece.text);
            let event = Event::Piece {
                token: true,
                text: piece.text,
                logprob: logprobs.next().flatten(),
                finish: piece.finish,
            };
            let _ = answer.job.events.send((answer.job.index, event));
        }
        self.leave(idle);
    }

    /// Chooses each answer's token by logits on the host, and reads them.
    fn choose(&mut self, logprobs: &mut Vec<Option<TokenLogprob>>) -> waterline::Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(self.answers.len());
        for answer in &mut self.answers {
            let token = answer.generation.choose(&mut answer.session)?;
            tokens.push(token);
            logprobs.push(match answer.job.logprobs {
                Some(top) => Some(TokenLogprob::new(answer.session.logits()?, token, top)),
                None => None,
            });
        }
        let mut sessions: Vec<&mut Session> =
            self.answers.iter_mut().map(|a| &mut a.session).collect();
        self.batch.feed(&mut sessions, &tokens)?;
        Ok(tokens)
    }

    /// Answers that have ended, or that must, leave the group.
    fn leave(&mut self, idle: &mut Vec<Session>) {
        let now = Instant::now();
        for index in (0..self.answers.len()).rev() {
            let answer = &self.answers[index];
            let has_ended = answer.generation.finish().is_some();
            // A client that has its answer may leave before it is counted.
            let is_gone = !has_ended && answer.job.events.is_closed();
            let is_late = now > answer.job.deadline
                || is_full(&answer.session)
                || answer.job.generate.max_tokens == 0;
            if !(has_ended || is_gone || is_late) {
                continue;
            }
            let mut answer = self.answers.swap_remove(index);
            if !has_ended && !is_gone {
                let event = Event::Piece {
                    token: false,
                    text: String::new(),
                    logprob: None,
                    finish: Some(Finish::Length),
                };
                let _ = answer.job.events.send((answer.job.index, event));
            }
            // The next message may go on from here.
            if let Some((turns, tail)) = answer.job.turns.as_ref().filter(|_| !is_gone) {
                self.known.add(Generated {
                    turns: Arc::clone(turns),
                    tail: tail.clone(),
                    text: answer.text,
                    tokens: answer.tokens,
                });
                let _ = answer.session.checkpoint();
            }
            self.metrics.ended(is_gone);
            idle.push(answer.session);
        }
    }

    /// The answers whose sessions cannot go on leave the group; all of them if that is not known.
    fn drop_failed(&mut self, idle: &mut Vec<Session>, error: Error) {
        let (failed, others): (Vec<_>, Vec<_>) = self
            .answers
            .drain(..)
            .partition(|answer| answer.session.check_logits().is_err());
        let (failed, others) = match failed.is_empty() {
            true => (others, failed),
            false => (failed, others),
        };
        self.answers = others;
        let reason = error.to_string();
        let mut first = Some(error);
        for answer in failed {
            let error = first
                .take()
                .unwrap_or_else(|| Error::invalid("the answer", reason.clone()));
            let _ = answer
                .job
                .events
                .send((answer.job.index, Event::Failed(error)));
            self.metrics.ended(false);
            idle.push(answer.session);
        }
    }
}

/// True if the session can read no token more.
fn is_full(session: &Session) -> bool {
    let options = session.options();
    session.model().reads_context()
        && options.context_end == waterline::ContextEnd::Refuse
        && session.position() >= options.state.context as u64
}
