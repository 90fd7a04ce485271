//! Converts a complete history to tokens: renders it with the model's template, which decides what messages it accepts, and tokenizes it.

use serde_json::Value;

use super::placeholders::{Stretch, parts, placeholders, template_error};
use super::{Message, Piece, Role, Run, Runs, Turns};
use crate::error::{Error, Result};

/// The tag after a thought.
const THOUGHT_END: &str = "</think>";

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
    /// Converts `messages` to tokens. If `reply`, an answer can follow; if the last message is an answer, it is continued.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the messages or omits the last one, [`Error::Invalid`] for a message field that
    /// contains a control token's name, [`Error::Tokenizer`] if a text cannot be encoded, [`Error::Cancelled`].
    pub fn history(&self, messages: &[Message], reply: bool, runs: &Runs) -> Result<History> {
        self.check_fields(messages)?;
        let messages = self.without_thoughts(messages);
        let goes_on = reply
            && messages
                .last()
                .is_some_and(|last| last.role == Role::Assistant);
        let masked = placeholders(&messages);
        let rendered = self.render(&masked, reply && !goes_on)?;
        let mut pieces = parts(&rendered, &messages)?;
        let end_of = |pieces: &[Stretch], message: usize| {
            let at = pieces
                .iter()
                .rposition(|part| part.message == Some(message));
            at.map(|at| at + 1)
        };
        if let Some(last) = messages.len().checked_sub(1) {
            let end = end_of(&pieces, last);
            match (end, messages[last].content.trim().is_empty()) {
                (None, false) => return Err(template_error("it leaves out the last message")),
                (Some(end), _) if goes_on => pieces.truncate(end),
                _ => {}
            }
        }
        let (tokens, tail) = self.encode(&pieces, runs)?;
        let mut borders = Vec::new();
        // The instructions end where the first message with another role begins.
        let first = messages
            .iter()
            .position(|message| message.role != Role::System);
        let first =
            first.and_then(|first| pieces.iter().position(|part| part.message == Some(first)));
        let first = first.filter(|&first| first > 1 || !self.options().tools.is_empty());
        if let Some(first) = first {
            borders.push(self.encode(&pieces[..first], runs)?.0);
        }
        if reply && !goes_on && self.drops_thoughts() {
            let without = self.render(&masked, false)?;
            borders.push(self.encode(&parts(&without, &messages)?, runs)?.0);
        }
        let common = |begin: Vec<u32>| {
            begin
                .iter()
                .zip(&tokens)
                .take_while(|(a, b)| a == b)
                .count()
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

    fn encode(&self, parts: &[Stretch], runs: &Runs) -> Result<(Vec<u32>, Run)> {
        let pieces: Vec<Piece> = parts.iter().map(|part| part.piece).collect();
        self.tokenizer().encode_runs(&pieces, true, Some(runs))
    }

    /// Removes the thoughts from answers that precede the last question, if the template drops them: the template cannot find a thought
    /// in a placeholder.
    fn without_thoughts(&self, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        let last = messages
            .iter()
            .rposition(|message| message.role == Role::User);
        for message in messages
            .iter_mut()
            .take(last.filter(|_| self.drops_thoughts()).unwrap_or(0))
        {
            if message.role == Role::Assistant
                && let Some((_, answer)) = message.content.rsplit_once(THOUGHT_END)
            {
                message.content = answer.trim_start_matches('\n').into();
            }
        }
        messages
    }

    /// Refuses control token names in fields: unlike contents, fields pass through the template.
    fn check_fields(&self, messages: &[Message]) -> Result<()> {
        for (index, message) in messages.iter().enumerate() {
            let role = Value::from(message.role.name());
            let fields = message
                .fields
                .iter()
                .map(|(key, value)| (key.as_str(), value));
            for (key, value) in fields.chain([("role", &role)]) {
                if self.tokenizer().names_special(&value.to_string()) {
                    let what = format!("messages[{index}].{key}");
                    return Err(Error::invalid(
                        what,
                        "it contains the name of a control token",
                    ));
                }
            }
        }
        Ok(())
    }
}
