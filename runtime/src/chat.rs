//! A conversation in a session: what was said, where each turn began, and what the session has yet to read of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::generate::Finish;
use crate::model::Model;
use crate::sampler::SamplerParams;
use crate::session::Session;
use crate::state::Snapshot;
use crate::text::{Message, Role, TemplateOptions, Turns};

/// A conversation. Its session is given to each call, and nothing else may be read into it meanwhile.
#[derive(Clone)]
pub struct Chat {
    turns: Turns,
    /// Where each turn began, for going back.
    starts: Vec<Start>,
    /// Tokens that end an answer which was stopped; they are read with the next message.
    unread: Vec<u32>,
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
    #[serde(default)]
    thinking: Option<bool>,
}

impl Chat {
    /// An empty conversation. Fails if the model has no tokenizer or no usable chat template.
    pub fn new(model: &Model) -> Result<Self> {
        // First: without one there is no template either, and its error tells what to do.
        let tokenizer = model.tokenizer()?;
        Ok(Chat {
            turns: Turns::new(Arc::new(model.chat_template()?), tokenizer)?,
            starts: Vec::new(),
            unread: Vec::new(),
        })
    }

    /// What was said.
    pub fn messages(&self) -> &[Message] {
        self.turns.messages()
    }

    /// The token with which the template closes an answer: generation should stop there.
    pub fn end_token(&self) -> Option<u32> {
        self.turns.end_token()
    }

    /// Whether the model is told to think before it answers; none leaves it to the template.
    pub fn thinking(&self) -> Option<bool> {
        self.turns.options().thinking
    }

    /// Tells the model, from the next message on, whether to think before it answers. Templates without such a switch
    /// ignore it.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        let options = self.turns.options().clone();
        self.turns.set_options(TemplateOptions {
            thinking,
            ..options
        })
    }

    /// Names the functions that the model may call, as JSON schemas, from the next message on.
    pub fn set_tools(&mut self, tools: Vec<serde_json::Value>) -> Result<()> {
        let options = self.turns.options().clone();
        self.turns.set_options(TemplateOptions { tools, ..options })
    }

    /// Whether the template begins an answer inside of a thought, so that only its end is generated.
    pub fn opens_thought(&self) -> Result<bool> {
        self.turns.opens_thought()
    }

    /// Sets the instructions ahead of the conversation, before its first message.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        self.turns.system(text)
    }

    /// Reads a message by `feed`, such as [`Session::feed`]; the answer is generated next. Returns how many tokens were
    /// read. If the message cannot be read as a whole, it was not sent.
    ///
    /// # Errors
    /// Those of `feed`. After [`Error::Device`] the session cannot go on; what was said is still here, and a snapshot can
    /// be restored into a session on another device or on the CPU.
    pub fn send(
        &mut self,
        session: &mut Session,
        text: &str,
        feed: impl FnOnce(&mut Session, &[u32]) -> Result<()>,
    ) -> Result<usize> {
        session.mark()?;
        let message = self.turns.user(text)?;
        let start = Start {
            position: session.position(),
            unread: std::mem::take(&mut self.unread),
        };
        let tokens = [start.unread.as_slice(), &message].concat();
        if let Err(error) = feed(session, &tokens) {
            self.unread = start.unread;
            self.turns.pop_turn();
            let lost = matches!(error, Error::Device { .. });
            return Err(match session.rewind(start.position) {
                Err(other) if !lost => other,
                _ => error,
            });
        }
        self.starts.push(start);
        Ok(tokens.len())
    }

    /// Takes what was generated into the conversation, as the answer to the last message.
    pub fn answered(
        &mut self,
        session: &Session,
        answer: &str,
        finish: Option<Finish>,
    ) -> Result<()> {
        // The model's own end token may be another than the one with which the template ends an answer.
        let (older, newer) = session.recent();
        let last = newer.last().or(older.last());
        let ended =
            finish == Some(Finish::End) && self.end_token().is_none_or(|end| last == Some(&end));
        self.unread = self.turns.assistant_done(answer, ended)?;
        Ok(())
    }

    /// Takes back the last message and its answer; returns the message, if there was one.
    pub fn undo(&mut self, session: &mut Session) -> Result<Option<String>> {
        let Some(start) = self.starts.last() else {
            return Ok(None);
        };
        session.rewind(start.position)?;
        self.unread = self
            .starts
            .pop()
            .map_or_else(Vec::new, |start| start.unread);
        Ok(self.turns.pop_turn())
    }

    /// Forgets all but the instructions ahead of the conversation.
    pub fn clear(&mut self, session: &mut Session) -> Result<()> {
        let first = self.turns.messages().first();
        let system = first.filter(|message| message.role == Role::System);
        let system = system.map_or_else(String::new, |message| message.content.clone());
        session.reset()?;
        self.turns.clear();
        self.starts.clear();
        self.unread.clear();
        self.turns.system(&system)
    }

    /// The whole conversation as a value: the state of the session, with the messages and the sampling parameters as
    /// its note.
    pub fn snapshot(&self, session: &Session) -> Result<Snapshot> {
        let note = Note {
            messages: self.turns.messages().to_vec(),
            starts: self.starts.clone(),
            unread: self.unread.clone(),
            sampler: session.sampler().clone(),
            thinking: self.thinking(),
        };
        let mut snapshot = session.snapshot()?;
        snapshot.note = serde_json::to_vec(&note)
            .map_err(|e| Error::invalid("the conversation", e.to_string()))?;
        Ok(snapshot)
    }

    /// Continues a conversation from a value. On an error conversation and session are as they were.
    pub fn restore(&mut self, session: &mut Session, snapshot: &Snapshot) -> Result<()> {
        let note: Note = serde_json::from_slice(&snapshot.note).map_err(|_| {
            Error::invalid(
                "state",
                "it is the state of a session, but not of a conversation",
            )
        })?;
        let mut turns = self.turns.clone();
        let options = turns.options().clone();
        turns.set_options(TemplateOptions {
            thinking: note.thinking,
            ..options
        })?;
        turns.restore(note.messages)?;
        let (params, random) = (session.sampler().clone(), session.random());
        // First, since the state that is restored has its own random numbers.
        session.set_sampler(note.sampler)?;
        if let Err(error) = session.restore(snapshot) {
            session.set_sampler(params)?;
            session.set_random(random);
            return Err(error);
        }
        self.turns = turns;
        self.starts = note.starts;
        self.unread = note.unread;
        Ok(())
    }
}
