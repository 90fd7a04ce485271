//! Sessions of one model that step together: one pass over the weights serves them all.

use std::sync::Arc;

use super::{Engine, Session};
use crate::cpu::{States, Together};
use crate::cuda::{Columns, MOST_COLUMNS, Of, Sampling};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::state::{Arena, LOGITS, StateOptions};

/// Working memory to step up to a fixed number of sessions together, each matrix being read once for all of them. Which sessions
/// step is said at every step, so they join and leave as they like; each gives the tokens that it gives alone: on the CPU to the
/// bit, on a GPU to the bit of a session whose steps are [`crate::StepProgram::Recorded`]. A GPU's batch for more than eight
/// sessions multiplies BF16 matrices on tensor cores, by inputs with 16 bits of fraction: its logits are those of a session alone
/// to about 1e-4, relative to the largest.
pub struct Batch {
    model: Arc<Model>,
    form: Form,
    most: usize,
    tokens: Vec<u32>,
}

/// Where the sessions are.
enum Form {
    Cpu(Together),
    /// On a device, with states of this layout.
    Cuda(Columns, StateOptions),
}

impl Batch {
    /// For up to `most` sessions like this one: of its model, on the CPU like it or on its device; they compute with its threads.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 1 to 1024 sessions, on a GPU 1 to 64; [`Error::Memory`] or [`Error::Device`] if the
    /// memory is refused.
    pub fn new(session: &Session, most: usize) -> Result<Self> {
        let largest = match session.engine {
            Engine::Cpu(_) => 1024,
            Engine::Cuda(_) => MOST_COLUMNS,
        };
        if !(1..=largest).contains(&most) {
            let reason = format!("must be of 1 to {largest} sessions there");
            return Err(Error::invalid("batch", reason));
        }
        let model = Arc::clone(&session.model);
        let form = match &session.engine {
            Engine::Cpu(_) => {
                let pool = Arc::clone(&session.pool);
                Form::Cpu(Together::new(model.program(), pool, most)?)
            }
            Engine::Cuda(engine) => {
                let state = session.options.state;
                let device = Arc::clone(engine.device());
                let layout = (&**engine.plan(), state.kv);
                Form::Cuda(Columns::new(&model, device, layout, Of::Sessions, most)?, state)
            }
        };
        Ok(Batch {
            form,
            tokens: Vec::with_capacity(most),
            most,
            model,
        })
    }

    /// Bytes of working memory besides the sessions' own.
    pub fn work_bytes(&self) -> usize {
        match &self.form {
            Form::Cpu(together) => together.bytes(),
            Form::Cuda(columns, _) => columns.bytes(),
        }
    }

    /// Each session chooses a token by its own sampler and reads it. Returns the tokens, in the order of the sessions.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a session of another model or device, or too many of them; else the first session's error, as of
    /// [`Session::step`]. No token is read then, unless a device was lost or found logits that are not finite; sessions before it
    /// have used a random number.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<&[u32]> {
        self.check(sessions)?;
        self.tokens.clear();
        for session in sessions.iter_mut() {
            session.check(&[0])?;
            if session.canceller.take() {
                return Err(Error::Cancelled { fed: 0 });
            }
        }
        if let Form::Cuda(columns, _) = &mut self.form
            && sessions.iter().all(|session| session.chooses_there())
        {
            self.tokens.resize(sessions.len(), 0);
            step_there(columns, sessions, &mut self.tokens)?;
            return Ok(&self.tokens);
        }
        for session in sessions.iter_mut() {
            self.tokens.push(session.sample()?);
        }
        self.read(sessions)?;
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
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.read(sessions)
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
            match (&self.form, &session.engine) {
                (Form::Cpu(_), Engine::Cpu(_)) => (),
                (Form::Cuda(columns, state), Engine::Cuda(engine))
                    if Arc::ptr_eq(columns.device(), engine.device()) =>
                {
                    if session.options.state != *state {
                        return wrong(
                            "a session has another context, cache type or log length".into(),
                        );
                    }
                }
                _ => return wrong("a session is on another device".into()),
            }
        }
        Ok(())
    }

    /// Reads the tokens into the states.
    fn read(&mut self, sessions: &mut [&mut Session]) -> Result<()> {
        if sessions.is_empty() {
            return Ok(());
        }
        match &mut self.form {
            Form::Cpu(together) => {
                let mut arenas = Arenas(sessions);
                together.step(self.model.program(), &mut arenas, &self.tokens);
                for (row, session) in sessions.iter_mut().enumerate() {
                    let logits = session.arena.slot_mut(LOGITS);
                    logits.copy_from_slice(together.logits(row));
                }
            }
            Form::Cuda(columns, _) => {
                for (column, session) in sessions.iter_mut().enumerate() {
                    if let Engine::Cuda(engine) = &mut session.engine {
                        columns.set_state(column, engine.leave()?)?;
                    }
                }
                columns.feed(&self.tokens)?;
                columns.queue().finish()?;
            }
        }
        for (session, &token) in sessions.iter_mut().zip(&self.tokens) {
            session.log(&[token]);
        }
        Ok(())
    }
}

impl Session {
    /// Whether its device chooses its next token.
    fn chooses_there(&self) -> bool {
        self.position() > 0 && Sampling::of(self.sampler.params()).is_some()
    }
}

/// Sessions choose tokens on their device and read them.
fn step_there(
    columns: &mut Columns,
    sessions: &mut [&mut Session],
    tokens: &mut [u32],
) -> Result<()> {
    if sessions.is_empty() {
        return Ok(());
    }
    let sampled = !sessions.iter().all(|session| session.sampler().is_greedy());
    for (column, session) in sessions.iter_mut().enumerate() {
        let mut random = session.random();
        let sampling = Sampling::of(session.sampler.params()).filter(|_| sampled);
        let Engine::Cuda(engine) = &mut session.engine else {
            continue;
        };
        if let Some(sampling) = sampling {
            columns.set_sampling(column, sampling)?;
            engine.leave_random(&mut random, sampling.draws)?;
        }
        columns.set_state(column, engine.leave()?)?;
        session.set_random(random);
    }
    columns.step(tokens, sampled)?;
    for (session, &token) in sessions.iter_mut().zip(&*tokens) {
        session.log(&[token]);
    }
    Ok(())
}

/// The states of sessions on the CPU.
struct Arenas<'a, 's>(&'a mut [&'s mut Session]);

impl States for Arenas<'_, '_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        let session = &mut *self.0[row];
        let position = session.position();
        (&mut session.arena, position)
    }
}
