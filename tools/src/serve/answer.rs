//! An answer as it arrives: thoughts, text and tool calls.

use serde::de::IgnoredAny;
use waterline::{Answer, AnswerParser, AnswerPart, AnswerSyntax, Finish, Receipt};

use super::logprobs::TokenLogprob;
use super::scheduler::Event;

/// The answer so far.
#[derive(Default)]
pub struct Reply {
    /// `None` if all of the answer is text.
    parser: Option<AnswerParser>,
    /// The prompt's text if the answer includes it, and the number of the prompt's first tokens that the answer leaves out.
    echo: (String, usize),
    pub answer: Answer,
    /// Whether the last part is a call's.
    ends_with_call: bool,
    pub logprobs: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
    /// The stop text that ended the answer.
    pub stop: Option<String>,
    /// The receipt, if the request asks for one.
    pub receipt: Option<Box<Receipt>>,
}

/// The additions of one event to an answer.
#[derive(Default)]
pub struct Added {
    /// Whether the event begins the answer.
    pub begins: bool,
    pub parts: Vec<AnswerPart>,
    /// Whether the event is part of a thought.
    pub is_thought: bool,
    pub logprobs: Vec<TokenLogprob>,
    /// Whether the event ends the answer.
    pub ends: bool,
}

impl Reply {
    /// An empty answer with this syntax.
    pub fn new(syntax: AnswerSyntax) -> Self {
        Reply {
            parser: Some(AnswerParser::new(syntax)),
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
                    .extend((!echo.is_empty()).then_some(AnswerPart::Content(echo)));
            }
            Event::Piece(piece, logprob) => {
                added.logprobs.extend(logprob);
                if let Some(receipt) = &mut self.receipt {
                    receipt.add(&piece);
                }
                added.parts = match &mut self.parser {
                    Some(parser) => {
                        added.is_thought = parser.is_thinking();
                        let parts = parser.push(&piece.text);
                        added.is_thought |= parser.is_thinking();
                        parts
                    }
                    None if piece.text.is_empty() => Vec::new(),
                    None => vec![AnswerPart::Content(piece.text)],
                };
                (self.finish, self.stop) = (piece.finish, piece.stop);
            }
            Event::Progress(_) | Event::Vector(_) => {}
            Event::Cut => self.finish = Some(Finish::Length),
        }
        added.ends = self.finish.is_some();
        if let Some(receipt) = self.receipt.as_mut().filter(|_| added.ends) {
            receipt.seal();
        }
        if let Some(parser) = self.parser.as_mut().filter(|_| added.ends) {
            // A stop text cuts a call as the limit does.
            added
                .parts
                .extend(parser.finish(self.finish != Some(Finish::End)));
        }
        for part in &mut added.parts {
            // Only the first of two calls keeps an id that the model wrote twice.
            if let AnswerPart::CallBegins { id, .. } = part
                && (self.answer.calls.iter()).any(|call| call.id.is_some() && call.id == *id)
            {
                *id = None;
            }
            self.answer.add(part);
            self.ends_with_call = !matches!(
                part,
                AnswerPart::Reasoning(_) | AnswerPart::Content(_) | AnswerPart::ContentWasReasoning
            );
        }
        // A limit inside the text that closes a whole call cuts nothing.
        if self.finish == Some(Finish::Length) && self.ends_with_call {
            let last = self.answer.calls.last();
            let arguments = last.map_or("", |call| call.arguments.as_str());
            if serde_json::from_str::<IgnoredAny>(arguments).is_ok() {
                self.finish = Some(Finish::End);
            }
        }
        self.logprobs.extend_from_slice(&added.logprobs);
        Ok(added)
    }
}
