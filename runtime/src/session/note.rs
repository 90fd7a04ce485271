//! The part of a conversation that is saved with the state of its session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::sampler::SamplerParams;
use crate::text::{Message, Role, Run, Tokenizer};

/// Messages and parameters of a conversation. The positions of its turns follow from the messages and are not stored.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    pub messages: Vec<Message>,
    pub sampler: SamplerParams,
    #[serde(default)]
    pub thinking: Option<bool>,
    #[serde(default)]
    pub tools: Vec<Value>,
    #[serde(default)]
    pub answers: Vec<Generated>,
    /// Tokens before the first message.
    #[serde(default)]
    pub before: Vec<u32>,
}

/// The tokens that the model generated for an answer. Tokenizing the text again may give other tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Generated {
    /// Index of the answer's message.
    pub message: usize,
    /// The text from the last control token of the prompt to the end of the answer.
    pub run: Run,
    /// The tokens of `run`.
    pub tokens: Vec<u32>,
    /// The control tokens with which the model ended the answer.
    pub end: Vec<u32>,
}

impl Generated {
    /// Whether the tokens spell the text of `run` and that text ends with an answer in `messages`.
    fn is_of(&self, messages: &[Message], tokenizer: &Tokenizer) -> bool {
        let plain = |&token: &u32| {
            (token as usize) < tokenizer.vocab_size() && !tokenizer.is_special(token)
        };
        let message = messages.get(self.message);
        let answers = message.is_some_and(|message| {
            message.role == Role::Assistant && self.run.text.ends_with(&message.content)
        });
        answers
            && self.tokens.iter().all(plain)
            && self.end.iter().all(|&token| tokenizer.is_special(token))
            && spells(tokenizer, &self.tokens, &self.run.text)
    }
}

/// Whether `tokens` spell `text`. Some tokenizers put a space before it.
fn spells(tokenizer: &Tokenizer, tokens: &[u32], text: &str) -> bool {
    let bytes = tokens
        .iter()
        .flat_map(|&token| tokenizer.token_bytes(token));
    let bytes: Vec<u8> = bytes.copied().collect();
    bytes == text.as_bytes() || bytes.strip_prefix(b" ") == Some(text.as_bytes())
}

impl Note {
    /// Reads the note of a snapshot. Drops answers whose tokens do not match their text; they are tokenized again.
    pub fn read(note: &[u8], tokenizer: &Tokenizer) -> Result<Self> {
        let note: Note = serde_json::from_slice(note).map_err(|_| {
            Error::invalid(
                "state",
                "it is the state of a session, but not of a conversation",
            )
        })?;
        let Note {
            messages,
            mut answers,
            ..
        } = note;
        answers.retain(|answer| answer.is_of(&messages, tokenizer));
        Ok(Note {
            messages,
            answers,
            ..note
        })
    }
}
