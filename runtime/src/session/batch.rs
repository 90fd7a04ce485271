//! Sessions of one model that step together: one pass over the weights serves them all.

use std::sync::Arc;

use super::Session;
use crate::cuda::Device;
use crate::engine::{States, Together};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::state::{Arena, LOGITS};

/// Working memory to step up to a fixed number of sessions together. Which sessions step is said at every step, so they join
/// and leave as they like; each gives the tokens that it gives alone.
///
/// On the CPU each matrix is read once for all sessions. On a GPU the sessions step one after another for now: a batch is
/// right there, and no faster than its sessions.
pub struct Batch {
    model: Arc<Model>,
    device: Option<Arc<Device>>,
    /// None if sessions of this device step one after another.
    together: Option<Together>,
    most: usize,
    tokens: Vec<u32>,
}

impl Batch {
    /// For up to `most` sessions like this one: of its model, on the CPU like it or on its device; they compute with its threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 1 to 1024 sessions; [`Error::Memory`] if the system refuses the memory.
    pub fn new(session: &Session, most: usize) -> Result<Self> {
        if !(1..=1024).contains(&most) {
            return Err(Error::invalid("batch", "must be of 1 to 1024 sessions"));
        }
        let model = Arc::clone(&session.model);
        let together = session.engine.together(most)?;
        Ok(Batch {
            device: session.options.device.clone(),
            together,
            tokens: Vec::with_capacity(most),
            most,
            model,
        })
    }

    /// Bytes of working memory besides the sessions' own.
    pub fn work_bytes(&self) -> usize {
        self.together.as_ref().map_or(0, Together::bytes)
    }

    /// Each session chooses a token by its own sampler and reads it. Returns the tokens, in the order of the sessions.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a session of another model or device, or too many of them; else the first session's error, as of
    /// [`Session::step`]. No token is read then, unless a device was lost; sessions before it have used a random number.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<&[u32]> {
        self.check(sessions)?;
        self.tokens.clear();
        for session in sessions.iter_mut() {
            session.check(&[0])?;
            if session.canceller.take() {
                return Err(Error::Cancelled { fed: 0 });
            }
        }
        for session in sessions.iter_mut() {
            let token = match self.together {
                Some(_) => session.sample()?,
                None => session.step()?,
            };
            self.tokens.push(token);
        }
        self.read(sessions);
        Ok(&self.tokens)
    }

    /// Session i reads `tokens[i]`.
    ///
    /// # Errors
    /// As of [`Batch::step`], and [`Error::Invalid`] unless each session has a token.
    pub fn feed(&mut self, sessions: &mut [&mut Session], tokens: &[u32]) -> Result<()> {
        self.check(sessions)?;
        if tokens.len() != sessions.len() {
            let reason = format!("{} for {} sessions", tokens.len(), sessions.len());
            return Err(Error::invalid("tokens", reason));
        }
        for (session, &token) in sessions.iter().zip(tokens) {
            session.check(&[token])?;
        }
        if self.together.is_none() {
            let mut each = sessions.iter_mut().zip(tokens);
            return each.try_for_each(|(session, &token)| session.feed(&[token]));
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.read(sessions);
        Ok(())
    }

    fn check(&self, sessions: &[&mut Session]) -> Result<()> {
        let wrong = |reason: String| Err(Error::invalid("batch", reason));
        if sessions.len() > self.most {
            return wrong(format!(
                "it is of up to {} sessions, not {}",
                self.most,
                sessions.len()
            ));
        }
        for session in sessions {
            if !Arc::ptr_eq(session.model(), &self.model) {
                return wrong("a session is of another model".into());
            }
            if !same_device(session.options.device.as_ref(), self.device.as_ref()) {
                return wrong("a session is on another device".into());
            }
        }
        Ok(())
    }

    /// Reads the tokens into the states that lie on the CPU.
    fn read(&mut self, sessions: &mut [&mut Session]) {
        let Some(together) = self.together.as_mut().filter(|_| !sessions.is_empty()) else {
            return;
        };
        together.step(self.model.program(), &mut Arenas(sessions), &self.tokens);
        for (row, (session, &token)) in sessions.iter_mut().zip(&self.tokens).enumerate() {
            let logits = session.engine.arena_mut().tensor_mut(LOGITS);
            logits.copy_from_slice(together.logits(row));
            session.advance(&[token]);
        }
    }
}

fn same_device(one: Option<&Arc<Device>>, other: Option<&Arc<Device>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// The states of sessions on the CPU.
struct Arenas<'a, 's>(&'a mut [&'s mut Session]);

impl States for Arenas<'_, '_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        let session = &mut *self.0[row];
        let position = session.position();
        (session.engine.arena_mut(), position)
    }
}
