//! An answer's text as it arrives, split into thoughts, text and tool calls.

use waterline::Finish;

use super::logprobs::TokenLogprob;
use super::scheduler::Event;
use crate::calls::{Call, Calls, Said};
use crate::thoughts::Thoughts;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Thought(String),
    Text(String),
    Call(Call),
}

/// Splits an answer that arrives in pieces.
pub struct Parts {
    thoughts: Thoughts,
    calls: Option<Calls>,
    /// Whether leading white space of the next part is dropped, as it is around thoughts.
    trims: bool,
}

impl Parts {
    /// Splits an answer that begins inside or outside a thought and may hold tool calls in this format.
    pub fn new(opens_thought: bool, calls: Option<Calls>) -> Self {
        Parts {
            thoughts: Thoughts::new(opens_thought),
            calls,
            trims: opens_thought,
        }
    }

    /// Takes a piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        let stretches = self.thoughts.push(piece);
        let mut parts = Vec::new();
        for (is_thought, text) in stretches {
            self.stretch(is_thought, &text, &mut parts);
        }
        parts
    }

    /// Returns the remaining parts at the end of the answer.
    pub fn finish(&mut self) -> Vec<Part> {
        let (is_thought, text) = self.thoughts.finish();
        let mut parts = Vec::new();
        self.stretch(is_thought, &text, &mut parts);
        if let Some(calls) = &mut self.calls {
            for said in calls.finish() {
                self.said(said, &mut parts);
            }
        }
        parts
    }

    fn stretch(&mut self, is_thought: bool, text: &str, parts: &mut Vec<Part>) {
        let mut text = text;
        if is_thought {
            // An opening tag is a stretch; a closing tag is the end of one.
            if let Some(rest) = text.strip_prefix("<think>") {
                (text, self.trims) = (rest, true);
            }
            let thought = text.strip_suffix("</think>");
            self.add(thought.unwrap_or(text), parts, Part::Thought);
            self.trims |= thought.is_some();
            return;
        }
        match &mut self.calls {
            None => self.add(text, parts, Part::Text),
            Some(calls) => {
                for said in calls.push(text) {
                    self.said(said, parts);
                }
            }
        }
    }

    fn said(&mut self, said: Said, parts: &mut Vec<Part>) {
        match said {
            Said::Text(text) => self.add(&text, parts, Part::Text),
            Said::Call(call) => parts.push(Part::Call(call)),
        }
    }

    fn add(&mut self, text: &str, parts: &mut Vec<Part>, part: fn(String) -> Part) {
        let text = if self.trims { text.trim_start() } else { text };
        if !text.is_empty() {
            self.trims = false;
            parts.push(part(text.into()));
        }
    }
}

/// The answer so far.
#[derive(Default)]
pub struct Reply {
    /// `None` if the text is not split.
    parts: Option<Parts>,
    /// The prompt's text if the answer includes it, and the number of the prompt's first tokens that the answer leaves out.
    echo: (String, usize),
    pub thought: String,
    pub text: String,
    pub calls: Vec<Call>,
    pub logprobs: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
    /// The stop text that ended the answer.
    pub stop: Option<String>,
}

/// The additions of one event to an answer.
#[derive(Default)]
pub struct Added {
    /// Whether the event begins the answer.
    pub begins: bool,
    pub parts: Vec<Part>,
    pub logprobs: Vec<TokenLogprob>,
    /// Whether the event ends the answer.
    pub ends: bool,
}

impl Reply {
    /// An empty answer whose text is split into parts.
    pub fn of_parts(parts: Parts) -> Self {
        Reply {
            parts: Some(parts),
            ..Reply::default()
        }
    }

    /// An empty answer after the echoed prompt `echo`, without the prompt's first `hidden` tokens.
    pub fn after(echo: String, hidden: usize) -> Self {
        Reply {
            echo: (echo, hidden),
            ..Reply::default()
        }
    }

    /// Adds an event to the answer.
    ///
    /// # Errors
    /// Returns the error with which the answer failed.
    pub fn take(&mut self, event: Event) -> waterline::Result<Added> {
        let mut added = Added::default();
        match event {
            Event::Failed(error) => return Err(error),
            Event::Read(_, _, mut logprobs) => {
                added.begins = true;
                let (echo, hidden) = std::mem::take(&mut self.echo);
                logprobs.drain(..hidden.min(logprobs.len()));
                added.logprobs = logprobs;
                added
                    .parts
                    .extend((!echo.is_empty()).then_some(Part::Text(echo)));
            }
            Event::Piece(piece, logprob) => {
                added.logprobs.extend(logprob);
                added.parts = match &mut self.parts {
                    Some(parts) => parts.push(&piece.text),
                    None if piece.text.is_empty() => Vec::new(),
                    None => vec![Part::Text(piece.text)],
                };
                (self.finish, self.stop) = (piece.finish, piece.stop);
            }
            Event::Progress(_) => {}
            Event::Cut => self.finish = Some(Finish::Length),
        }
        added.ends = self.finish.is_some();
        if let Some(parts) = self.parts.as_mut().filter(|_| added.ends) {
            added.parts.extend(parts.finish());
        }
        for part in &added.parts {
            match part {
                Part::Thought(text) => self.thought.push_str(text),
                Part::Text(text) => self.text.push_str(text),
                Part::Call(call) => self.calls.push(call.clone()),
            }
        }
        self.logprobs.extend_from_slice(&added.logprobs);
        Ok(added)
    }
}
