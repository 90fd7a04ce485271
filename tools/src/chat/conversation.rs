//! A conversation on the screen, with the session that reads it.

use std::time::Instant;

use waterline::text::Message;
use waterline::{Chat, Finish, GenerateOptions, SamplerParams, Session, Snapshot};

use super::screen::Screen;
use super::thoughts::Thoughts;
use crate::error::{Error, Result};
use crate::session::{LimitArgs, feed};

/// A conversation with a model.
pub struct Conversation {
    session: Session,
    chat: Chat,
    limits: GenerateOptions,
    totals: Totals,
}

/// Sums over the turns.
#[derive(Clone, Copy, Default)]
pub struct Totals {
    /// Tokens of messages.
    pub read: usize,
    /// Seconds that reading took.
    pub read_seconds: f64,
    /// Tokens of answers.
    pub generated: usize,
    /// Seconds that generating took.
    pub generate_seconds: f64,
}

/// How an answer came about.
pub struct Reply {
    /// Its tokens.
    pub tokens: usize,
    /// How long they took.
    pub seconds: f64,
    /// Whether Ctrl-C ended it.
    pub stopped: bool,
}

impl Reply {
    /// Milliseconds for each token of the answer.
    pub fn ms_per_token(&self) -> f64 {
        1e3 * self.seconds / self.tokens.max(1) as f64
    }
}

impl Conversation {
    /// An empty conversation. Fails if the model has no tokenizer or no usable chat template.
    pub fn new(session: Session, limits: &LimitArgs) -> Result<Self> {
        let chat = Chat::new(session.model())?;
        Ok(Conversation {
            session,
            limits: limits.options(chat.end_token()),
            chat,
            totals: Totals::default(),
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// What was said.
    pub fn messages(&self) -> &[Message] {
        self.chat.messages()
    }

    /// Sums over all turns so far, those that were taken back included.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// When an answer ends.
    pub fn limits(&mut self) -> &mut GenerateOptions {
        &mut self.limits
    }

    /// Changes how tokens are chosen.
    pub fn set_sampler(&mut self, params: SamplerParams) -> Result<()> {
        Ok(self.session.set_sampler(params)?)
    }

    /// Sets the instructions ahead of the conversation, before its first message.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        Ok(self.chat.set_system(text)?)
    }

    /// Whether the model is told to think before it answers.
    pub fn thinking(&self) -> Option<bool> {
        self.chat.thinking()
    }

    /// Tells the model whether to think before it answers, if it is said.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        match thinking {
            Some(_) => Ok(self.chat.set_thinking(thinking)?),
            None => Ok(()),
        }
    }

    /// Sends a message and shows the answer. If the message cannot be read as a whole, it was not sent. Whatever else
    /// goes wrong, the answer as far as it came is part of the conversation.
    pub fn say(&mut self, text: &str, screen: &mut Screen) -> Result<Reply> {
        let clock = Instant::now();
        self.totals.read += self.chat.send(&mut self.session, text, feed)?;
        self.totals.read_seconds += clock.elapsed().as_secs_f64();
        self.answer(screen)
    }

    fn answer(&mut self, screen: &mut Screen) -> Result<Reply> {
        let clock = Instant::now();
        let mut answer = String::new();
        let mut thoughts = Thoughts::new(self.chat.opens_thought()?);
        let mut pieces = self.session.generate(self.limits.clone())?;
        let mut outcome = Ok(());
        for piece in pieces.by_ref() {
            outcome = piece.map_err(Error::from).and_then(|piece| {
                answer.push_str(&piece);
                let mut parts = thoughts.push(&piece).into_iter();
                parts.try_for_each(|(thought, text)| screen.answer(&text, thought))
            });
            if outcome.is_err() {
                break;
            }
        }
        let (tokens, finish) = (pieces.tokens(), pieces.finish());
        let seconds = clock.elapsed().as_secs_f64();
        self.totals.generated += tokens;
        self.totals.generate_seconds += seconds;
        self.chat.answered(&self.session, &answer, finish)?;
        let (thought, held) = thoughts.finish();
        outcome
            .and_then(|()| screen.answer(&held, thought))
            .and_then(|()| screen.end_answer(answer.is_empty()))
            .or_else(|error| {
                screen.end_answer(false)?;
                Err(error)
            })?;
        Ok(Reply {
            tokens,
            seconds,
            stopped: finish == Some(Finish::Cancelled),
        })
    }

    /// Takes back the last message and its answer; returns the message, if there was one.
    pub fn undo(&mut self) -> Result<Option<String>> {
        Ok(self.chat.undo(&mut self.session)?)
    }

    /// Takes back the last answer and gives another one: the random numbers are not taken back.
    pub fn say_again(&mut self, screen: &mut Screen) -> Result<Reply> {
        let random = self.session.random();
        let Some(text) = self.undo()? else {
            return Err(Error::usage("nothing has been said yet"));
        };
        self.session.set_random(random);
        self.say(&text, screen)
    }

    /// Forgets all but the instructions ahead of the conversation.
    pub fn clear(&mut self) -> Result<()> {
        Ok(self.chat.clear(&mut self.session)?)
    }

    /// The whole conversation as a value.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Ok(self.chat.snapshot(&self.session)?)
    }

    /// Continues a conversation from a value. On an error this conversation is as it was.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<()> {
        Ok(self.chat.restore(&mut self.session, snapshot)?)
    }
}
