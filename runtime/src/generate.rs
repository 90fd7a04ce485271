//! Text out of a session: sampled tokens as pieces of whole characters, up to an end.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::session::Session;
use crate::text::{StopStrings, TextStream, Tokenizer};

/// When to stop.
#[derive(Debug, Clone)]
pub struct GenerateOptions {
    /// Most tokens.
    pub max_tokens: usize,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// Whether the token that ends an answer ends the generation.
    pub stop_at_eos: bool,
    /// Tokens that end the generation besides it, such as a chat template's end of turn.
    pub stop_tokens: Vec<u32>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: 1024,
            stop: Vec::new(),
            stop_at_eos: true,
            stop_tokens: Vec::new(),
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer; the end token has been read.
    End,
    /// A stop text was met.
    Stop,
    /// As many tokens as were allowed.
    Length,
    /// Cancelled from outside.
    Cancelled,
}

/// How far a generation has come, apart from the session that it reads into: for callers that cannot keep the borrow
/// of [`Generate`].
pub struct Generation {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream,
    stops: StopStrings,
    ends: Vec<u32>,
    left: usize,
    tokens: usize,
    finish: Option<Finish>,
    flushed: bool,
}

impl Generation {
    /// A generation that has not begun. Fails if the model has no tokenizer.
    pub fn new(model: &Model, options: GenerateOptions) -> Result<Self> {
        let mut ends = options.stop_tokens;
        ends.extend(model.eos().filter(|_| options.stop_at_eos));
        Ok(Generation {
            tokenizer: model.tokenizer()?,
            stream: TextStream::new(),
            stops: StopStrings::new(options.stop)?,
            ends,
            left: options.max_tokens,
            tokens: 0,
            finish: None,
            flushed: false,
        })
    }

    /// Tokens generated so far, an end token included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Why it ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The next piece of text from `session`, which is of the same model; none at the end. After an error it has
    /// ended, and what was read so far stands.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<String>> {
        while self.finish.is_none() {
            match self.advance(session) {
                Ok(text) if text.is_empty() => continue,
                Ok(text) => return Some(Ok(text)),
                Err(error) => {
                    self.finish = Some(Finish::Cancelled);
                    self.flushed = true;
                    return Some(Err(error));
                }
            }
        }
        if self.flushed {
            return None;
        }
        let text = self.flush();
        (!text.is_empty()).then_some(Ok(text))
    }

    /// Samples and reads one token; returns the text that it completes.
    fn advance(&mut self, session: &mut Session) -> Result<String> {
        if self.left == 0 {
            self.finish = Some(Finish::Length);
            return Ok(String::new());
        }
        let token = session.sample()?;
        match session.feed(&[token]) {
            Err(Error::Cancelled { .. }) => {
                self.finish = Some(Finish::Cancelled);
                return Ok(String::new());
            }
            other => other?,
        }
        self.left -= 1;
        self.tokens += 1;
        if self.ends.contains(&token) {
            self.finish = Some(Finish::End);
            return Ok(String::new());
        }
        if self.tokenizer.is_special(token) {
            return Ok(String::new());
        }
        let step = self
            .stops
            .push(self.stream.push(self.tokenizer.token_bytes(token)));
        if step.stopped() {
            self.finish = Some(Finish::Stop);
            self.flushed = true;
        }
        Ok(step.text.to_string())
    }

    /// What was held back: the beginning of a character or of a stop text that did not come.
    fn flush(&mut self) -> String {
        self.flushed = true;
        let mut text = self.stops.push(self.stream.finish()).text.to_string();
        text.push_str(self.stops.finish());
        text
    }
}

/// An iterator of text pieces. Every token that it shows has been read by the session.
pub struct Generate<'s> {
    session: &'s mut Session,
    generation: Generation,
}

impl<'s> Generate<'s> {
    /// Starts generating after what the session has read. Fails if the model has no tokenizer.
    pub fn new(session: &'s mut Session, options: GenerateOptions) -> Result<Self> {
        let generation = Generation::new(session.model(), options)?;
        Ok(Generate {
            session,
            generation,
        })
    }

    /// Tokens generated so far, an end token included.
    pub fn tokens(&self) -> usize {
        self.generation.tokens()
    }

    /// Why it ended, once it has.
    pub fn finish(&self) -> Option<Finish> {
        self.generation.finish()
    }
}

impl Iterator for Generate<'_> {
    type Item = Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.generation.next(self.session)
    }
}

impl Session {
    /// Generates text after what has been read.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has no tokenizer.
    pub fn generate(&mut self, options: GenerateOptions) -> Result<Generate<'_>> {
        Generate::new(self, options)
    }
}
