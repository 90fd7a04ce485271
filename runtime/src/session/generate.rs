//! Text generation: samples tokens and returns the text that they complete, until an end condition.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::session::Session;
use crate::session::choice::Choice;
use crate::session::log_softmax::LogSoftmax;
use crate::session::pause::Pause;
use crate::session::thought::{Thought, ThoughtOptions};
use crate::text::{StopStrings, TextStream, Tokenizer};

/// When to stop and what to report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Largest number of tokens to generate.
    pub max_tokens: usize,
    /// Smallest number of tokens to generate: until then no end token is chosen, except at the end of a constraint's grammar.
    pub min_tokens: usize,
    /// Texts that end the generation; the output does not include them.
    pub stop: Vec<String>,
    /// Whether the model's end tokens ([`Model::ends`]) end the generation.
    pub stop_at_eos: bool,
    /// More tokens that end the generation, such as a chat template's end of turn.
    pub stop_tokens: Vec<u32>,
    /// Control tokens to include in the text by name, such as the markers around tool calls.
    pub shown_tokens: Vec<u32>,
    /// The thought with which the answer may begin, its limit, and its tags, which the text includes. A constraint applies after it.
    pub thought: Option<ThoughtOptions>,
    /// Whether each piece has the log-probability of its token. A GPU then copies all logits of every token to the host.
    pub logprobs: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        GenerateOptions {
            max_tokens: 1024,
            min_tokens: 0,
            stop: Vec::new(),
            stop_at_eos: true,
            stop_tokens: Vec::new(),
            shown_tokens: Vec::new(),
            thought: None,
            logprobs: false,
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended its answer; the end token has been read.
    End,
    /// The model generated a stop text.
    Stop,
    /// The token limit was reached.
    Length,
    /// The generation was cancelled.
    Cancelled,
}

/// A generated token with the text that it completes. `Display` writes the text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// The token, which the session has read; `None` if a cancellation or an error releases text that was held back.
    pub token: Option<u32>,
    /// The token's log-probability under the model alone, before bias, penalties and temperature, if [`GenerateOptions::logprobs`] is set.
    pub logprob: Option<f32>,
    /// Complete characters; empty while a character or a possible stop text is incomplete.
    pub text: String,
    /// Why the generation ended; set in the last piece only.
    pub finish: Option<Finish>,
    /// The stop text that ended the generation, with [`Finish::Stop`].
    pub stop: Option<String>,
}

impl std::fmt::Display for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Called with the logits `[vocab]` before each choice; its changes apply to that choice only.
pub type LogitsHook<'a> = dyn FnMut(&mut [f32]) + 'a;

/// The progress of a generation, separate from its session, for callers that cannot hold the borrow of [`Generate`].
pub struct Generation {
    tokenizer: Arc<Tokenizer>,
    stream: TextStream,
    stops: StopStrings,
    ends: Vec<u32>,
    shown: Vec<u32>,
    left: usize,
    /// Tokens to generate before an end token may be chosen.
    least: usize,
    logprobs: bool,
    tokens: usize,
    choice: Choice,
    finish: Option<Finish>,
    /// An error to return after the text that was held back.
    error: Option<Error>,
    ended: bool,
    /// Number of read-ahead tokens already returned; `None` if the generation does not use drafts.
    taken: Option<usize>,
    /// Suspends drafting while few drafts are accepted.
    pause: Pause,
}

impl Generation {
    /// Creates a generation without starting it. Fails if the model has no tokenizer.
    pub fn new(model: &Model, options: GenerateOptions) -> Result<Self> {
        let mut ends = options.stop_tokens;
        if options.stop_at_eos {
            ends.extend(model.ends());
        }
        let tokenizer = model.tokenizer()?;
        let mut shown = options.shown_tokens;
        let mut choice = Choice::default();
        if let Some(thought) = &options.thought {
            let tags = [thought.tags.open, thought.tags.close];
            shown.extend(tags.into_iter().filter_map(|tag| tokenizer.token_id(tag)));
            choice.thought = Some(Thought::new(model, thought)?);
        }
        if options.min_tokens > 0 {
            choice.forbidden.clone_from(&ends);
        }
        Ok(Generation {
            tokenizer,
            stream: TextStream::new(),
            stops: StopStrings::new(options.stop)?,
            ends,
            shown,
            left: options.max_tokens,
            least: options.min_tokens,
            logprobs: options.logprobs,
            tokens: 0,
            choice,
            finish: None,
            error: None,
            ended: false,
            taken: None,
            pause: Pause::default(),
        })
    }

    /// Restricts the choice to tokens that keep the answer within the grammar, after the thought that the prompt opens. The generation ends where the grammar does, whatever
    /// [`GenerateOptions::stop_at_eos`] is.
    pub fn constrain(&mut self, constraint: Constraint) {
        self.ends.extend(constraint.ends());
        // A grammar that applies from the first token on may have the tags as text.
        let thought = self.choice.thought.take();
        self.choice.thought = thought.filter(|thought| !thought.may_open());
        self.choice.constraint = Some(constraint);
    }

    /// Whether the next token must be chosen with [`Generation::choose`] because of a constraint, the end of a thought or
    /// log-probabilities.
    pub fn needs_choice(&self) -> bool {
        !self.choice.is_free() || self.logprobs
    }

    /// Number of tokens generated so far, including an end token.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Why the generation ended; `None` while it runs or if an error ended it.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// Whether the answer satisfies the constraint so far; true without a constraint.
    pub fn is_complete(&mut self) -> bool {
        self.choice.is_complete()
    }

    /// Generates the next piece from `session`, which must be of the same model; `None` at the end. If an error occurs, text that was
    /// held back is returned before it. The error ends the generation; tokens read so far remain in the session.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<Piece>> {
        self.next_with(session, None)
    }

    /// Like [`Generation::next`], with a hook.
    pub fn next_with(
        &mut self,
        session: &mut Session,
        hook: Option<&mut LogitsHook<'_>>,
    ) -> Option<Result<Piece>> {
        let piece = self.advance(session, hook);
        // A stop text may end before the last token that was read ahead.
        if self.ended
            && let Err(error) = self.leave(session)
        {
            return Some(Err(error));
        }
        piece
    }

    /// Enables drafts if `session` has them ([`crate::SessionOptions::lookup`], [`crate::SessionOptions::mtp`]) and log-probabilities
    /// are not requested. With drafts, hooks are ignored, and a generation abandoned before its end needs [`Generation::leave`].
    #[must_use]
    pub fn with_drafts(mut self, session: &Session) -> Self {
        let drafts = session.looks_ahead() && !self.logprobs;
        // Tokens that an earlier generation read ahead are part of the session now.
        self.taken = drafts.then(|| session.ahead().len());
        self
    }

    /// Whether the next piece is for a token that `session` has already read ahead.
    pub fn has_ahead(&self, session: &Session) -> bool {
        self.taken
            .is_some_and(|taken| taken < session.ahead().len())
    }

    /// Takes back the tokens that `session` has read ahead of the returned pieces.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub fn leave(&mut self, session: &mut Session) -> Result<()> {
        self.choice.taken = self.tokens;
        match self.taken.take() {
            Some(taken) => session.keep_ahead(taken),
            None => Ok(()),
        }
    }

    /// Whether the generation needs another token.
    pub fn wants_token(&self) -> bool {
        !self.ended && self.left > 0
    }

    fn advance(
        &mut self,
        session: &mut Session,
        hook: Option<&mut LogitsHook<'_>>,
    ) -> Option<Result<Piece>> {
        if let Some(error) = self.error.take() {
            return Some(Err(error));
        }
        if self.ended {
            return None;
        }
        if self.left == 0 {
            return Some(Ok(self.last(None, Finish::Length)));
        }
        match self.step(session, hook) {
            Ok((token, logprob)) => {
                let mut piece = self.push(token);
                piece.logprob = logprob;
                Some(Ok(piece))
            }
            Err(Error::Cancelled { .. }) => Some(Ok(self.last(None, Finish::Cancelled))),
            Err(error) => {
                self.ended = true;
                let text = self.held_back();
                if text.is_empty() {
                    return Some(Err(error));
                }
                self.error = Some(error);
                Some(Ok(Piece {
                    token: None,
                    logprob: None,
                    text,
                    finish: None,
                    stop: None,
                }))
            }
        }
    }

    /// Chooses a token and reads it.
    fn step(
        &mut self,
        session: &mut Session,
        hook: Option<&mut LogitsHook<'_>>,
    ) -> Result<(u32, Option<f32>)> {
        if let Some(taken) = self.taken {
            let mut place = taken;
            // All tokens that were read ahead have been returned, so they are final.
            if taken == session.ahead().len() {
                // Drafts past the smallest number of tokens would be checked without end tokens.
                let until = self.least.saturating_sub(self.tokens);
                let most = if until > 0 {
                    until.min(self.left)
                } else {
                    self.left
                };
                let most = if self.pause.step() { 1 } else { most };
                let before = session.drafts();
                session.step_ahead(&mut self.choice, most, &self.ends)?;
                let (drafted, accepted) = session.drafts();
                self.pause
                    .end_draft(drafted - before.0, accepted - before.1);
                place = 0;
            }
            self.taken = Some(place + 1);
            return Ok((session.ahead()[place], None));
        }
        if hook.is_none() && !self.needs_choice() {
            return Ok((session.step()?, None));
        }
        let token = self.choose_with(session, hook)?;
        let logprob = if self.logprobs {
            let logits = session.logits()?;
            Some(LogSoftmax::new(logits).log_probability(logits[token as usize]))
        } else {
            None
        };
        session.feed(&[token])?;
        Ok((token, logprob))
    }

    /// Chooses a token from the session's last logits without reading it, for sessions that are read in a batch.
    ///
    /// # Errors
    /// See [`Session::sample`] and [`Constraint::apply`].
    pub fn choose(&mut self, session: &mut Session) -> Result<u32> {
        self.choose_with(session, None)
    }

    fn choose_with(
        &mut self,
        session: &mut Session,
        hook: Option<&mut LogitsHook<'_>>,
    ) -> Result<u32> {
        session.make_room()?;
        let token = self.choice.choose(session, None, hook)?;
        self.choice.take(token)?;
        Ok(token)
    }

    /// Adds a token that the session has already read, for example in a [`crate::Batch`]. Returns its piece.
    pub fn push(&mut self, token: u32) -> Piece {
        if self.choice.taken == self.tokens {
            // The sampler alone chose the token, which no constraint can refuse.
            self.choice.take(token).unwrap_or_default();
        }
        self.left = self.left.saturating_sub(1);
        self.tokens += 1;
        if self.tokens >= self.least {
            self.choice.forbidden.clear();
        }
        if self.ends.contains(&token) {
            return self.last(Some(token), Finish::End);
        }
        let (mut text, mut stop) = (String::new(), None);
        if !self.tokenizer.is_special(token) || self.shown.contains(&token) {
            let bytes = self.tokenizer.token_bytes(token);
            let step = self.stops.push(self.stream.push(bytes));
            text.push_str(step.text);
            if step.stopped() {
                stop = step.stop.map(String::from);
                (self.finish, self.ended) = (Some(Finish::Stop), true);
            }
        }
        if self.left == 0 && !self.ended {
            let held = self.last(None, Finish::Length);
            text.push_str(&held.text);
        }
        Piece {
            token: Some(token),
            logprob: None,
            text,
            finish: self.finish,
            stop,
        }
    }

    /// Ends the generation. Returns the last piece, with the text that was held back.
    fn last(&mut self, token: Option<u32>, finish: Finish) -> Piece {
        (self.finish, self.ended) = (Some(finish), true);
        Piece {
            token,
            logprob: None,
            text: self.held_back(),
            finish: self.finish,
            stop: None,
        }
    }

    /// The text held back so far: an incomplete character or the beginning of a stop text.
    fn held_back(&mut self) -> String {
        let mut text = self.stops.push(self.stream.finish()).text.to_string();
        text.push_str(self.stops.finish());
        text
    }
}

/// An iterator over [`Piece`]s. The session has read every token that it returns.
pub struct Generate<'s> {
    session: &'s mut Session,
    generation: Generation,
    hook: Option<&'s mut LogitsHook<'s>>,
}

impl<'s> Generate<'s> {
    fn new(session: &'s mut Session, options: GenerateOptions) -> Result<Self> {
        let generation = Generation::new(session.model(), options)?.with_drafts(session);
        Ok(Generate {
            session,
            generation,
            hook: None,
        })
    }

    /// Calls `hook` with the logits `[vocab]` before each choice; its changes apply to that choice only. A GPU then copies all logits of
    /// every token to the host.
    pub fn on_logits(mut self, hook: &'s mut LogitsHook<'s>) -> Self {
        self.hook = Some(hook);
        self.generation.taken = None;
        self
    }

    /// See [`Generation::constrain`].
    pub fn constrained(mut self, constraint: Constraint) -> Self {
        self.generation.constrain(constraint);
        self
    }

    /// Number of tokens generated so far, including an end token.
    pub fn tokens(&self) -> usize {
        self.generation.tokens()
    }

    /// Why the generation ended; `None` while it runs or if an error ended it.
    pub fn finish(&self) -> Option<Finish> {
        self.generation.finish()
    }

    /// See [`Generation::is_complete`].
    pub fn is_complete(&mut self) -> bool {
        self.generation.is_complete()
    }
}

impl Iterator for Generate<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let hook = self.hook.as_deref_mut();
        self.generation.next_with(self.session, hook)
    }
}

impl Session {
    /// Generates text that continues the tokens read so far.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the model has no tokenizer.
    pub fn generate(&mut self, options: GenerateOptions) -> Result<Generate<'_>> {
        Generate::new(self, options)
    }
}

#[cfg(test)]
#[path = "generate_tests.rs"]
mod tests;
