//! A conversation: what was said, the session that has read it, and the ways back.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use waterline::text::{Message, Turns};
use waterline::{Finish, GenerateOptions, SamplerParams, Session, Snapshot};

use super::screen::Screen;
use crate::error::{Error, Result};
use crate::session::{LimitArgs, feed};

/// A conversation with a model.
pub struct Conversation {
    session: Session,
    turns: Turns,
    /// Where each turn began, for going back.
    starts: Vec<Start>,
    /// Tokens that end an answer which was stopped; they are read with the next message.
    unread: Vec<u32>,
    limits: GenerateOptions,
    totals: Totals,
}

/// The point before a turn.
#[derive(Clone, Serialize, Deserialize)]
struct Start {
    position: u64,
    unread: Vec<u32>,
}

/// What is kept beside the state of the session.
#[derive(Serialize, Deserialize)]
struct Note {
    messages: Vec<Message>,
    starts: Vec<Start>,
    unread: Vec<u32>,
    sampler: SamplerParams,
}

/// Sums over the turns.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Tokens of messages.
    pub read: usize,
    /// Seconds that reading took.
    pub read_seconds: f64,
    /// Tokens of answers.
    pub generated: usize,
    /// Seconds that generating took.
    pub generate_seconds: f64,
}

/// How an answer came about.
pub struct Reply {
    /// Its tokens.
    pub tokens: usize,
    /// How long they took.
    pub seconds: f64,
    /// Whether Ctrl-C ended it.
    pub stopped: bool,
}

impl Reply {
    /// Milliseconds for each token of the answer.
    pub fn ms_per_token(&self) -> f64 {
        1e3 * self.seconds / self.tokens.max(1) as f64
    }
}

impl Conversation {
    /// An empty conversation. Fails if the model has no tokenizer or no usable chat template.
    pub fn new(session: Session, limits: &LimitArgs) -> Result<Self> {
        let model = session.model();
        let tokenizer = model.tokenizer()?;
        let turns = Turns::new(Arc::new(model.chat_template()?), tokenizer)?;
        let limits = limits.options(turns.end_token());
        Ok(Conversation {
            session,
            turns,
            starts: Vec::new(),
            unread: Vec::new(),
            limits,
            totals: Totals::default(),
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was said.
    pub fn messages(&self) -> &[Message] {
        self.turns.messages()
    }

    /// Sums over all turns so far, those that were taken back included.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// When an answer ends.
    pub fn limits(&mut self) -> &mut GenerateOptions {
        &mut self.limits
    }

    /// Changes how tokens are chosen.
    pub fn set_sampler(&mut self, params: SamplerParams) -> Result<()> {
        Ok(self.session.set_sampler(params)?)
    }

    /// Sets the instructions ahead of the conversation, before its first message.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        Ok(self.turns.system(text)?)
    }

    /// Sends a message and shows the answer. If the message cannot be read as a whole, it was not sent. Whatever else
    /// goes wrong, the answer as far as it came is part of the conversation.
    pub fn say(&mut self, text: &str, screen: &mut Screen) -> Result<Reply> {
        let message = self.turns.user(text)?;
        let start = Start {
            position: self.session.position(),
            unread: self.unread.clone(),
        };
        let tokens = [std::mem::take(&mut self.unread), message].concat();
        self.session.mark();
        let clock = Instant::now();
        if let Err(error) = feed(&mut self.session, &tokens) {
            self.session.rewind(start.position)?;
            self.unread = start.unread;
            self.turns.pop_turn();
            return Err(error.into());
        }
        self.totals.read += tokens.len();
        self.totals.read_seconds += clock.elapsed().as_secs_f64();
        self.starts.push(start);
        self.answer(screen)
    }

    fn answer(&mut self, screen: &mut Screen) -> Result<Reply> {
        let clock = Instant::now();
        let mut answer = String::new();
        let mut pieces = self.session.generate(self.limits.clone())?;
        let mut outcome = Ok(());
        for piece in pieces.by_ref() {
            outcome = piece.map_err(Error::from).and_then(|piece| {
                answer.push_str(&piece);
                screen.answer(&piece)
            });
            if outcome.is_err() {
                break;
            }
        }
        let (tokens, finish) = (pieces.tokens(), pieces.finish());
        let seconds = clock.elapsed().as_secs_f64();
        self.totals.generated += tokens;
        self.totals.generate_seconds += seconds;
        // The model's own end token may be another than the one with which the template ends an answer.
        let (older, newer) = self.session.recent();
        let last = newer.last().or(older.last());
        let ended = finish == Some(Finish::End)
            && self.turns.end_token().is_none_or(|end| last == Some(&end));
        self.unread = self.turns.assistant_done(&answer, ended)?;
        outcome
            .and_then(|()| screen.end_answer(answer.is_empty()))
            .or_else(|error| {
                screen.end_answer(false)?;
                Err(error)
            })?;
        Ok(Reply {
            tokens,
            seconds,
            stopped: finish == Some(Finish::Cancelled),
        })
    }

    /// Takes back the last message and its answer; returns the message, if there was one.
    pub fn undo(&mut self) -> Result<Option<String>> {
        let Some(start) = self.starts.last() else {
            return Ok(None);
        };
        self.session.rewind(start.position)?;
        self.unread = self
            .starts
            .pop()
            .map_or_else(Vec::new, |start| start.unread);
        Ok(self.turns.pop_turn())
    }

    /// Takes back the last answer and gives another one: the random numbers are not taken back.
    pub fn say_again(&mut self, screen: &mut Screen) -> Result<Reply> {
        let random = self.session.random();
        let Some(text) = self.undo()? else {
            return Err(Error::usage("nothing has been said yet"));
        };
        self.session.set_random(random);
        self.say(&text, screen)
    }

    /// Forgets all but the instructions ahead of the conversation.
    pub fn clear(&mut self) -> Result<()> {
        let system = self
            .turns
            .messages()
            .first()
            .filter(|message| message.role == waterline::text::Role::System)
            .cloned();
        self.session.reset();
        self.turns.clear();
        self.starts.clear();
        self.unread.clear();
        match system {
            Some(system) => Ok(self.turns.system(&system.content)?),
            None => Ok(()),
        }
    }

    /// The whole conversation as a value.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let note = Note {
            messages: self.turns.messages().to_vec(),
            starts: self.starts.clone(),
            unread: self.unread.clone(),
            sampler: self.session.sampler().clone(),
        };
        let mut snapshot = self.session.snapshot();
        snapshot.note = serde_json::to_vec(&note)
            .map_err(|e| Error::input("the conversation", e.to_string()))?;
        Ok(snapshot)
    }

    /// Continues a conversation from a value. On an error this conversation is as it was.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        let note: Note = serde_json::from_slice(&snapshot.note)
            .map_err(|_| Error::usage("this is the state of a session, but not of a chat"))?;
        let mut turns = self.turns.clone();
        turns.restore(note.messages)?;
        let (params, random) = (self.session.sampler().clone(), self.session.random());
        // First, since the state that is restored has its own random numbers.
        self.session.set_sampler(note.sampler)?;
        if let Err(error) = self.session.restore(snapshot) {
            self.session.set_sampler(params)?;
            self.session.set_random(random);
            return Err(error.into());
        }
        self.turns = turns;
        self.starts = note.starts;
        self.unread = note.unread;
        Ok(())
    }
}
