//! Converts a complete history to tokens: renders it with the model's template, which decides what messages it accepts, and tokenizes it.

use super::jinja::marked::{Mark, Marked};
use super::turns::{pieces, template_error};
use super::{Message, Role, Run, Runs, Turns};
use crate::error::Result;

/// A history in the form that a session reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The history's tokens.
    pub tokens: Vec<u32>,
    /// Positions where other histories may diverge: the end of the instructions with their tools, and the beginning of an answer.
    pub borders: Vec<usize>,
    /// Number of tokens at the beginning that belong to the instructions with their tools.
    pub instructions: usize,
    /// The text after the last special token, which an answer continues.
    pub tail: Run,
}

/// An answer with the tokens that a model generated for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// The text from the last special token before the answer to the answer's end.
    pub run: Run,
    /// The tokens of `run`.
    pub tokens: Vec<u32>,
    /// The control tokens after the answer.
    pub end: Vec<u32>,
}

impl Turns {
    /// Converts `messages` to tokens; if the template does not list the tools, the messages do. If `reply`, an answer can follow; if the last message is an answer, it is continued.
    ///
    /// # Errors
    /// [`Error::Template`](crate::error::Error::Template) if the template refuses the messages or omits the last one, and
    /// [`Error::Tokenizer`](crate::error::Error::Tokenizer) if a text cannot be encoded,
    /// [`Error::Cancelled`](crate::error::Error::Cancelled).
    pub fn history(&self, messages: &[Message], reply: bool, runs: &Runs) -> Result<History> {
        let is_answer = |last: &Message| last.role == Role::Assistant;
        let goes_on = reply && messages.last().is_some_and(is_answer);
        let told = self.told(messages);
        let messages = &*told.messages;
        let mut rendering = self.render(messages, reply && !goes_on)?;
        told.check(&rendering)?;
        let mut end = rendering.text.as_str().len();
        let last = rendering.messages.len().saturating_sub(1);
        let place = rendering.text.range_of(Mark::Content(last));
        match (place, rendering.messages.last()) {
            (Some(place), _) if goes_on => end = place.end,
            (None, Some(message)) if goes_on || !message.content.trim().is_empty() => {
                // The place of a content that the template leaves out, such as an empty answer, is that of a word.
                let mut probe = rendering.messages.to_vec();
                probe[last].content = "answer".into();
                let probed = self.render(&probe, reply && !goes_on)?.text;
                let place = probed.range_of(Mark::Content(last));
                let place =
                    place.ok_or_else(|| template_error("it leaves out the last message"))?;
                if goes_on {
                    (rendering.text, end) = (probed, place.start);
                }
            }
            _ => {}
        }
        let text = &rendering.text;
        let (tokens, tail) = self.encode_until(text, end, runs)?;
        let mut borders = Vec::new();
        // The instructions end where the first message with another role begins.
        let is_instruction = |message: &Message| message.role == Role::System;
        let first = rendering.messages.iter().position(|it| !is_instruction(it));
        let first = first.filter(|&first| first > 0 || !self.options().tools.is_empty());
        let first = first.and_then(|first| text.range_of(Mark::Content(first)));
        if let Some(first) = &first {
            borders.push(self.encode_until(text, first.start, runs)?.0);
        }
        if reply && !goes_on && self.drops_thoughts() {
            let without = self.render(messages, false)?.text;
            borders.push(self.encode_until(&without, without.as_str().len(), runs)?.0);
        }
        let common = |begin: Vec<u32>| {
            let pairs = begin.iter().zip(&tokens);
            pairs.take_while(|(a, b)| a == b).count()
        };
        let mut borders: Vec<usize> = borders.into_iter().map(common).collect();
        let instructions = first.map_or(0, |_| borders[0]);
        borders.retain(|&border| border > 0);
        Ok(History {
            borders,
            instructions,
            tokens,
            tail,
        })
    }

    /// Stores the tokens that a model generated for `answer`, which continues `tail`: other tokens for the same text would be read
    /// again. Returns `None` and stores nothing unless the tokens spell the answer; control tokens may only come at its end.
    pub fn remember(
        &self,
        runs: &Runs,
        tail: &Run,
        answer: &str,
        generated: &[u32],
    ) -> Option<Remembered> {
        let is_special = |token: &u32| self.tokenizer().is_special(*token);
        let last = generated.iter().rposition(|token| !is_special(token));
        let (plain, end) = generated.split_at(last.map_or(0, |last| last + 1));
        let bytes: Vec<u8> = plain
            .iter()
            .flat_map(|&token| self.tokenizer().token_bytes(token))
            .copied()
            .collect();
        if plain.iter().any(is_special) || bytes != answer.as_bytes() {
            return None;
        }
        let mut tokens = if tail.text.is_empty() {
            Vec::new()
        } else {
            runs.get(tail)?
        };
        tokens.extend_from_slice(plain);
        let mut run = tail.clone();
        run.text.push_str(answer);
        runs.set(&run, &tokens);
        Some(Remembered {
            run,
            tokens,
            end: end.to_vec(),
        })
    }

    /// Encodes the rendering up to the byte `end`.
    fn encode_until(&self, text: &Marked, end: usize, runs: &Runs) -> Result<(Vec<u32>, Run)> {
        self.tokenizer()
            .encode_runs(&pieces(text, 0..end), true, Some(runs))
    }
}
