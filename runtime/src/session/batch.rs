//! Sessions of one model that step together with a single pass over the weights.

use std::sync::Arc;

use super::Session;
use crate::cuda::Device;
use crate::engine::{Group, Member, Members, most_exact_slots};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::state::StateOptions;

/// Working memory to step up to a fixed number of sessions together, reading each matrix once for all of them. Every call passes the
/// sessions to step, so sessions can join and leave at any time. Each session produces the same tokens as alone: bit-identical on the
/// CPU, and on a GPU bit-identical to a session whose steps are [`crate::StepProgram::Recorded`]. A GPU batch for more than eight
/// sessions multiplies BF16 matrices on tensor cores, with inputs rounded to 16 fraction bits: its logits differ from those of a session
/// alone by about 1e-4, relative to the largest.
pub struct Batch {
    model: Arc<Model>,
    device: Option<Arc<Device>>,
    /// The layout of the states. On a device all sessions must share it.
    state: StateOptions,
    group: Box<dyn Group>,
    most: usize,
    tokens: Vec<u32>,
}

impl Batch {
    /// Creates a batch for up to `most` sessions of the same model and device as `session`; the batch computes with its threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `most` is 1 to 1024, or 1 to 64 on a GPU; [`Error::Memory`] or [`Error::Device`] if the memory cannot
    /// be allocated.
    pub fn new(session: &Session, most: usize) -> Result<Self> {
        if !(1..=1024).contains(&most) {
            return Err(Error::invalid("batch", "must have 1 to 1024 sessions"));
        }
        let exact = most_exact_slots(&session.model);
        let rounds = session.options.device.is_some() && session.model.has_bf16();
        if session.options.exact && rounds && most > exact {
            let reason =
                format!("must have 1 to {exact} exact sessions on a GPU with BF16 matrices");
            return Err(Error::invalid("batch", reason));
        }
        Ok(Batch {
            model: Arc::clone(&session.model),
            device: session.options.device.clone(),
            state: session.options.state,
            group: session.engine.group(most)?,
            tokens: Vec::with_capacity(most),
            most,
        })
    }

    /// Working memory in bytes, without that of the sessions.
    pub fn work_bytes(&self) -> usize {
        self.group.bytes()
    }

    /// Lets each session choose a token with its sampler and read it. Returns the tokens in the order of the sessions.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a session of another model or device, or for too many sessions; otherwise the first error of a session, as
    /// in [`Session::step`]. No token is read then, unless a device was lost or found logits that are not finite. Sessions before the
    /// failing one have used a random number.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<&[u32]> {
        self.check(sessions)?;
        self.tokens.clear();
        for session in sessions.iter_mut() {
            session.ready_to_step()?;
        }
        if sessions.is_empty() {
            return Ok(&self.tokens);
        }
        self.tokens.resize(sessions.len(), 0);
        let there = self.group.step(&mut Sessions(sessions), &mut self.tokens);
        if there? {
            for (session, &token) in sessions.iter().zip(&self.tokens) {
                session.check_chosen(token)?;
            }
        } else {
            for (session, token) in sessions.iter_mut().zip(&mut self.tokens) {
                *token = session.sample()?;
            }
            self.group.read(&mut Sessions(sessions), &self.tokens)?;
        }
        self.advance(sessions);
        Ok(&self.tokens)
    }

    /// Like [`Batch::step`], but a session that fails does so alone: the others read the tokens that they would read without it.
    /// Returns each session's token or error. A session that failed has read nothing, unless a device found logits that are not finite.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a session of another model or device, or for too many sessions; [`Error::Device`] if the device was lost.
    pub fn step_each(&mut self, sessions: &mut [&mut Session]) -> Result<Vec<Result<u32>>> {
        self.check_sessions(sessions)?;
        let mut outcomes: Vec<Result<u32>> = Vec::with_capacity(sessions.len());
        for session in sessions.iter_mut() {
            outcomes.push(session.ready_to_step().map(|()| 0));
        }
        let mut ready = successful(sessions, &outcomes);
        self.tokens.clear();
        self.tokens.resize(ready.len(), 0);
        let chosen = ready.is_empty()
            || self
                .group
                .step(&mut Sessions(&mut ready), &mut self.tokens)?;
        let mut tokens = self.tokens.iter();
        for (session, outcome) in sessions.iter_mut().zip(&mut outcomes) {
            if outcome.is_err() {
                continue;
            }
            *outcome = match tokens.next() {
                Some(&token) if chosen => session.read_by_device(token),
                _ => session.sample(),
            };
        }
        if !chosen {
            let tokens: Vec<u32> = outcomes.iter().flatten().copied().collect();
            let mut ready = successful(sessions, &outcomes);
            self.feed(&mut ready, &tokens)?;
        }
        Ok(outcomes)
    }

    /// Feeds `tokens[i]` to session i.
    ///
    /// # Errors
    /// The errors of [`Batch::step`], and [`Error::Invalid`] unless each session has a token.
    pub fn feed(&mut self, sessions: &mut [&mut Session], tokens: &[u32]) -> Result<()> {
        self.check_sessions(sessions)?;
        if tokens.len() != sessions.len() {
            let reason = format!("found {} for {} sessions", tokens.len(), sessions.len());
            return Err(Error::invalid("tokens", reason));
        }
        for (session, &token) in sessions.iter().zip(tokens) {
            session.check(&[token])?;
        }
        for session in sessions.iter_mut() {
            session.make_room()?;
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        if !sessions.is_empty() {
            self.group.read(&mut Sessions(sessions), tokens)?;
            self.advance(sessions);
        }
        Ok(())
    }

    /// Records the batch's tokens as read by the sessions.
    fn advance(&self, sessions: &mut [&mut Session]) {
        for (session, &token) in sessions.iter_mut().zip(&self.tokens) {
            session.advance(&[token]);
        }
    }

    /// Fails if a step of these sessions would fail before it chooses their tokens.
    ///
    /// # Errors
    /// See [`Batch::step`].
    pub fn check(&self, sessions: &[&mut Session]) -> Result<()> {
        self.check_sessions(sessions)?;
        sessions.iter().try_for_each(|session| session.check(&[0]))
    }

    fn check_sessions(&self, sessions: &[&mut Session]) -> Result<()> {
        let wrong = |reason: String| Err(Error::invalid("batch", reason));
        if sessions.len() > self.most {
            return wrong(format!(
                "it holds up to {} sessions, found {}",
                self.most,
                sessions.len()
            ));
        }
        for session in sessions {
            if !Arc::ptr_eq(session.model(), &self.model) {
                return wrong("a session belongs to another model".into());
            }
            if !same_device(session.options.device.as_ref(), self.device.as_ref()) {
                return wrong("a session is on another device".into());
            }
            if self.device.is_some() && session.options.state != self.state {
                let reason = "a session has another context, cache type or history length";
                return wrong(reason.into());
            }
        }
        Ok(())
    }
}

/// The sessions whose outcome is not an error.
fn successful<'a>(
    sessions: &'a mut [&mut Session],
    outcomes: &[Result<u32>],
) -> Vec<&'a mut Session> {
    let both = sessions.iter_mut().zip(outcomes);
    both.filter(|(_, outcome)| outcome.is_ok())
        .map(|(session, _)| &mut **session)
        .collect()
}

impl Session {
    /// Fails if a step would fail before it chooses a token; makes room for the token.
    fn ready_to_step(&mut self) -> Result<()> {
        if self.canceller.take() {
            return Err(Error::Cancelled { fed: 0 });
        }
        self.check(&[0])?;
        self.make_room()
    }

    /// Fails if a device has chosen no token because the logits are not finite.
    fn check_chosen(&self, token: u32) -> Result<()> {
        match (token as usize) < self.model.spec().vocab {
            true => Ok(()),
            false => Err(self.about_cache(Error::not_finite())),
        }
    }

    /// Records a token that a device has chosen and read.
    fn read_by_device(&mut self, token: u32) -> Result<u32> {
        self.check_chosen(token)?;
        self.advance(&[token]);
        Ok(token)
    }
}

fn same_device(one: Option<&Arc<Device>>, other: Option<&Arc<Device>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// Gives the group access to the engines of the sessions.
struct Sessions<'a, 's>(&'a mut [&'s mut Session]);

impl Members for Sessions<'_, '_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn member(&mut self, index: usize) -> Member<'_> {
        let session = &mut *self.0[index];
        Member {
            engine: &mut *session.engine,
            params: session.sampler.params(),
        }
    }
}
