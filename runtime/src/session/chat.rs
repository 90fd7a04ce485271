//! A conversation in a session: what was said, where each turn began, and what the session has yet to read of it.

use std::sync::Arc;

use super::note::{Note, Start};
use super::{Finish, Session};
use crate::error::{Error, Result};
use crate::state::Snapshot;
use crate::text::{Message, Role, TemplateOptions, Turns};

/// A conversation. Its session is given to each call, and nothing else may be read into it meanwhile.
#[derive(Clone)]
pub struct Chat {
    turns: Turns,
    /// Where each turn began, for going back.
    starts: Vec<Start>,
    /// Tokens that are read with the next message: the end of an answer which was stopped, or an answer without its
    /// thought.
    unread: Vec<u32>,
    /// The position before the last answer, if the template drops the thoughts of answers.
    before_answer: Option<u64>,
}

impl Chat {
    /// An empty conversation in `session`, in ChatML if the model has no chat template. Fails if the model has no tokenizer or
    /// a template that cannot be used.
    pub fn new(session: &Session) -> Result<Self> {
        let model = session.model();
        // First: without one there is no template either, and its error says what to do.
        let tokenizer = model.tokenizer()?;
        Ok(Chat {
            turns: Turns::with_options(
                Arc::new(model.chat_template_or_chatml()?),
                tokenizer,
                TemplateOptions::default(),
                session.canceller(),
            )?,
            starts: Vec::new(),
            unread: Vec::new(),
            before_answer: None,
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

    /// Whether the template requests a thought before the answer; none: as the template does by default.
    pub fn thinking(&self) -> Option<bool> {
        self.turns.options().thinking
    }

    /// Sets, from the next message on, whether the template requests a thought before the answer. Templates without such a switch
    /// ignore it.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.thinking = thinking;
        self.turns.set_options(options)
    }

    /// Names the functions that the model may call, as JSON schemas, from the next message on.
    pub fn set_tools(&mut self, tools: Vec<serde_json::Value>) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.tools = tools;
        self.turns.set_options(options)
    }

    /// Whether the template begins an answer inside of a thought, so that only its end is generated.
    pub fn opens_thought(&self) -> Result<bool> {
        self.turns.opens_thought()
    }

    /// The template's text before the first message of the user, where there are no instructions.
    pub fn beginning(&self) -> Result<String> {
        self.turns.beginning()
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
        mut feed: impl FnMut(&mut Session, &[u32]) -> Result<()>,
    ) -> Result<usize> {
        self.turns.set_canceller(session.canceller());
        self.drop_thought(session)?;
        session.mark()?;
        let message = self.turns.user(text)?;
        // Where a thought is dropped, the session returns to the point before what begins the answer.
        let prefix = match self.turns.answer_prefix() {
            Ok(prefix) => prefix.filter(|prefix| message.ends_with(prefix)),
            Err(error @ Error::Cancelled { .. }) => {
                self.turns.pop_turn();
                return Err(error);
            }
            Err(_) => None,
        };
        let start = Start {
            position: session.position(),
            unread: std::mem::take(&mut self.unread),
        };
        let tokens = [start.unread.as_slice(), &message].concat();
        let (before, after) = tokens.split_at(tokens.len() - prefix.as_ref().map_or(0, Vec::len));
        let mut read = || {
            feed(session, before)?;
            if prefix.is_some() {
                session.mark()?;
                feed(session, after)?;
            }
            Ok(())
        };
        if let Err(error) = read() {
            self.unread = start.unread;
            self.turns.pop_turn();
            let lost = matches!(error, Error::Device { .. });
            return Err(match session.rewind(start.position) {
                Err(other) if !lost => other,
                _ => error,
            });
        }
        self.before_answer = prefix.map(|prefix| session.position() - prefix.len() as u64);
        self.starts.push(start);
        Ok(tokens.len())
    }

    /// Takes over messages that were said elsewhere: an optional system message, then user and assistant by turns, the
    /// last one an answer. They are read by `feed` at once; where they begin with what was said here, only what is new is
    /// read, and otherwise the session begins anew. Returns how many tokens were read.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Template`] for messages that cannot be used: nothing has changed. Those of `feed`:
    /// the conversation is empty then.
    pub fn set_messages(
        &mut self,
        session: &mut Session,
        messages: Vec<Message>,
        feed: impl FnOnce(&mut Session, &[u32]) -> Result<()>,
    ) -> Result<usize> {
        self.turns.set_canceller(session.canceller());
        let mut turns = self.turns.clone();
        let continues = !self.starts.is_empty() && messages.starts_with(turns.messages());
        if !continues {
            turns.clear();
        }
        let added = turns.extend(messages)?;
        if continues {
            self.drop_thought(session)?;
        } else {
            session.reset()?;
            self.starts.clear();
            self.unread.clear();
        }
        self.before_answer = None;
        self.turns = turns;
        session.mark()?;
        let mut tokens = Vec::new();
        for turn in &added {
            let position = session.position() + tokens.len() as u64;
            let unread = std::mem::replace(&mut self.unread, self.turns.end().to_vec());
            tokens.extend(&unread);
            tokens.extend(turn);
            self.starts.push(Start { position, unread });
        }
        if let Err(error) = feed(session, &tokens) {
            self.turns.clear();
            self.starts.clear();
            self.unread.clear();
            // The first error is the one to report.
            let _ = session.reset();
            return Err(error);
        }
        Ok(tokens.len())
    }

    /// Returns to the point before the last answer if the template drops its thought now, and leaves the answer without
    /// it to be read. Nothing else is read twice. Where the session cannot return, the thought stays.
    fn drop_thought(&mut self, session: &mut Session) -> Result<()> {
        let Some(position) = self.before_answer else {
            return Ok(());
        };
        let without = self.turns.answer_without_thought()?;
        self.before_answer = None;
        if let Some(tokens) = without {
            match session.rewind(position) {
                Ok(()) => self.unread = tokens,
                Err(Error::Rewind { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
        self.before_answer = None;
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
        self.before_answer = None;
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
        let note = Note::read(snapshot, session)?;
        let mut turns = self.turns.clone();
        turns.set_canceller(session.canceller());
        let mut options = turns.options().clone();
        options.thinking = note.thinking;
        turns.set_options(options)?;
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
        // The marks are not part of the snapshot.
        self.before_answer = None;
        Ok(())
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
