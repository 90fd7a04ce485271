//! Receipts: an answer with everything on which it depends, so that anyone who has the model can generate it again.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::document::StateFile;
use super::{ContextEnd, Finish, GenerateOptions, Generation, Piece, Session, SessionOptions};
use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::loaded::Model;
use crate::sampler::SamplerParams;
use crate::state::{Kv, hex};

/// The version of the format.
const VERSION: u32 = 1;

/// The options of a session on which its answers depend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ReceiptSession {
    /// [`Session::device_class`].
    pub device: String,
    /// Whether the bits depend on nothing but the tokens and the device.
    pub exact: bool,
    /// Number of threads; without `exact` bits may depend on it.
    pub threads: usize,
    /// Largest number of tokens read at once; without `exact` bits depend on it.
    pub chunk: usize,
    /// Number of tokens that full attention can see.
    pub context: usize,
    /// Type of cached keys and values.
    pub kv: Kv,
    /// Number of last tokens that penalties can consider.
    pub history: usize,
    /// Behaviour when the context is full.
    pub context_end: ContextEnd,
    /// Number of first tokens that stay then.
    pub keep: usize,
}

impl ReceiptSession {
    /// Sets the options on which an answer depends: with `exact` not the chunk and the threads.
    pub fn set(&self, options: &mut SessionOptions) {
        options.state.context = self.context;
        (options.state.kv, options.state.history) = (self.kv, self.history);
        (options.context_end, options.keep) = (self.context_end, self.keep);
        options.exact = self.exact;
        if !self.exact {
            (options.chunk, options.threads) = (self.chunk, self.threads);
        }
    }
}

/// An answer with everything on which it depends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Receipt {
    /// The version of the format.
    pub receipt: u32,
    /// The model's name, for people.
    pub name: String,
    /// The model's fingerprint in hexadecimal.
    pub model: String,
    /// SHA-256 of the tokenizer's JSON text in hexadecimal; `None` for a model without one.
    pub tokenizer: Option<String>,
    /// The options of the session.
    pub session: ReceiptSession,
    /// The hash of the tokens of the state file from which the session continued, in hexadecimal.
    pub state: Option<String>,
    /// The tokens that it read then.
    pub prompt: Vec<u32>,
    /// The sampling parameters; no random number was drawn before the answer.
    pub sampler: SamplerParams,
    /// When the answer ends.
    pub options: GenerateOptions,
    /// The grammar of the answer.
    pub grammar: Option<Grammar>,
    /// The generated tokens, an end token included.
    pub answer: Vec<u32>,
    /// Why the answer ended; `None` if it was cut off: by an error, a time limit or a cancellation.
    pub finish: Option<Finish>,
    /// SHA-256, in hexadecimal, of this receipt as JSON without spaces, with the fields in this order and this one empty.
    pub hash: String,
}

/// The first token at which an answer differs from its receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Index of the token in the answer.
    pub index: usize,
    /// The token of the receipt; `None` where its answer ends.
    pub expected: Option<u32>,
    /// The generated token; `None` where the generation ends.
    pub found: Option<u32>,
}

impl Receipt {
    /// Begins the receipt of an answer to `prompt`.
    ///
    /// # Errors
    /// [`Error::Memory`]: the first call reads the model for its fingerprint.
    pub fn new(
        model: &Model,
        session: ReceiptSession,
        prompt: Vec<u32>,
        sampler: SamplerParams,
    ) -> Result<Self> {
        Ok(Receipt {
            receipt: VERSION,
            name: model.name().into(),
            model: model.fingerprint()?.to_string(),
            tokenizer: model.tokenizer_hash(),
            session,
            state: None,
            prompt,
            sampler,
            options: GenerateOptions::default(),
            grammar: None,
            answer: Vec::new(),
            finish: None,
            hash: String::new(),
        })
    }

    /// Sets the state file from which the session continued.
    pub fn set_state(&mut self, file: &StateFile) {
        self.state = tokens_hash(file);
    }

    /// Adds a piece of the answer.
    pub fn add(&mut self, piece: &Piece) {
        self.answer.extend(piece.token);
        self.finish = piece.finish.filter(|&finish| finish != Finish::Cancelled);
    }

    /// Computes the hash.
    pub fn seal(&mut self) {
        self.hash = self.own_hash();
    }

    /// Whether the receipt is as it was when it was sealed.
    pub fn is_sealed(&self) -> bool {
        self.hash == self.own_hash()
    }

    fn own_hash(&self) -> String {
        let mut plain = self.clone();
        plain.hash = String::new();
        let json = serde_json::to_vec(&plain).unwrap_or_default();
        hex(&Sha256::digest(json))
    }

    /// Generates the answer again and returns where it first differs; `None` if it is equal. `progress(tokens)` is called with the number
    /// of tokens that were read or generated so far.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the receipt is of another model, tokenizer or state, or of a later version; the errors of
    /// [`Session::open_state`], [`Session::feed`] and [`Generation::next`].
    pub fn replay(
        &self,
        session: &mut Session,
        state: Option<&StateFile>,
        mut progress: impl FnMut(usize),
    ) -> Result<Option<Difference>> {
        self.check(session.model(), state)?;
        session.reset()?;
        session.set_sampler(self.sampler.clone())?;
        if let Some(file) = state.filter(|_| self.state.is_some()) {
            session.open_state(file, file.records().len() - 1)?;
        }
        session.feed_with_progress(&self.prompt, &mut progress)?;
        session.set_draws(0);
        let options = self.options.clone();
        let mut generation = Generation::new(session.model(), options)?.with_drafts(session);
        if let Some(grammar) = &self.grammar {
            generation.constrain(session.model().constraints()?.compile(grammar)?);
        }
        let mut index = 0;
        // An answer that was cut off could have gone on.
        while self.finish.is_some() || index < self.answer.len() {
            let Some(piece) = generation.next(session) else {
                break;
            };
            let piece = piece?;
            if piece.finish == Some(Finish::Cancelled) {
                return Err(Error::Cancelled { fed: 0 });
            }
            let Some(found) = piece.token else {
                continue;
            };
            if self.answer.get(index) != Some(&found) {
                generation.leave(session)?;
                return Ok(Some(self.difference(index, Some(found))));
            }
            index += 1;
            progress(self.prompt.len() + index);
        }
        generation.leave(session)?;
        Ok((index < self.answer.len()).then(|| self.difference(index, None)))
    }

    fn difference(&self, index: usize, found: Option<u32>) -> Difference {
        Difference {
            index,
            expected: self.answer.get(index).copied(),
            found,
        }
    }

    /// Fails if the receipt is of another model or state.
    fn check(&self, model: &Model, state: Option<&StateFile>) -> Result<()> {
        if self.receipt != VERSION {
            let reason = format!("version {}, expected {VERSION}", self.receipt);
            return Err(invalid(reason));
        }
        let own = model.fingerprint()?.to_string();
        if self.model != own {
            return Err(invalid(format!(
                "it is of another model ({}, {}), not of {} ({own})",
                self.name,
                self.model,
                model.file()
            )));
        }
        if self.tokenizer != model.tokenizer_hash() {
            return Err(invalid("the model has another tokenizer"));
        }
        match &self.state {
            Some(hash) if state.and_then(tokens_hash).as_ref() != Some(hash) => {
                let found = state.map_or("none".into(), |it| it.path().display().to_string());
                let reason =
                    format!("its prompt follows the state with the tokens {hash}, found {found}");
                Err(invalid(reason))
            }
            _ => Ok(()),
        }
    }
}

impl Session {
    /// The options on which this session's answers depend.
    pub fn receipt_session(&self) -> ReceiptSession {
        let options = self.options();
        ReceiptSession {
            device: self.device_class(),
            exact: options.exact,
            threads: self.threads(),
            chunk: options.chunk,
            context: options.state.context,
            kv: options.state.kv,
            history: options.state.history,
            context_end: options.context_end,
            keep: options.keep,
        }
    }
}

fn invalid(reason: impl Into<String>) -> Error {
    Error::invalid("the receipt", reason)
}

/// The hash of all tokens of a state file.
fn tokens_hash(file: &StateFile) -> Option<String> {
    file.records().last().map(|record| hex(&record.tokens_hash))
}
