//! An answer's text as it comes, in parts: thought, text, calls of tools.

use waterline::Finish;

use super::logprobs::TokenLogprob;
use crate::calls::{Call, Calls, Said};
use crate::thoughts::Thoughts;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Thought(String),
    Text(String),
    Call(Call),
}

/// Splits an answer that comes in pieces.
pub struct Parts {
    thoughts: Thoughts,
    calls: Option<Calls>,
    /// Whether white space is left out, as it is around thoughts.
    trims: bool,
}

impl Parts {
    /// An answer that begins inside of a thought, or outside, and may hold calls in this format.
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

    /// The rest of the answer, at its end.
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
            // A tag is a stretch or the end of one.
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
        let text = match self.trims {
            true => text.trim_start(),
            false => text,
        };
        if !text.is_empty() {
            self.trims = false;
            parts.push(part(text.into()));
        }
    }
}

/// An answer so far.
pub struct Reply {
    parts: Option<Parts>,
    pub thought: String,
    pub text: String,
    pub calls: Vec<Call>,
    pub logprobs: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
}

impl Reply {
    /// An empty answer; its text is split if there is something to split it by.
    pub fn new(parts: Option<Parts>) -> Self {
        Reply {
            parts,
            thought: String::new(),
            text: String::new(),
            calls: Vec::new(),
            logprobs: Vec::new(),
            finish: None,
        }
    }

    /// Takes in a token, or the end without one; returns what it adds.
    pub fn take(
        &mut self,
        text: &str,
        logprob: Option<TokenLogprob>,
        finish: Option<Finish>,
    ) -> Vec<Part> {
        self.logprobs.extend(logprob);
        self.finish = finish;
        let mut added = match &mut self.parts {
            Some(parts) => parts.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Text(text.into())],
        };
        if let Some(parts) = self.parts.as_mut().filter(|_| finish.is_some()) {
            added.extend(parts.finish());
        }
        for part in &added {
            match part {
                Part::Thought(text) => self.thought.push_str(text),
                Part::Text(text) => self.text.push_str(text),
                Part::Call(call) => self.calls.push(call.clone()),
            }
        }
        added
    }
}
