//! Sessions of one model that step together: one pass over the weights serves them all.

use std::sync::Arc;

use super::{Engine, Session, SessionOptions};
use crate::cpu::{Pool, States, Together};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::state::{Arena, LOGITS};

/// Up to a fixed number of sessions, which join and leave between steps. Each gives the tokens that it gives alone. All
/// memory is allocated when the batch is made.
///
/// On the CPU each matrix is read once for all sessions. On a GPU the sessions step one after another for now: a batch is
/// right there, and no faster than its sessions.
pub struct Batch {
    model: Arc<Model>,
    /// None if the sessions are on a device.
    together: Option<Together>,
    seats: Vec<Option<Session>>,
    /// Of the sessions that step: their seats and the tokens that they read.
    rows: Vec<(usize, u32)>,
    tokens: Vec<u32>,
}

impl Batch {
    /// Room for up to `seats` sessions on `model` that are made with such options: device and threads are theirs.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless there are 1 to 1024 seats; [`Error::Memory`] if the system refuses the memory.
    pub fn new(model: Arc<Model>, options: &SessionOptions, seats: usize) -> Result<Self> {
        if !(1..=1024).contains(&seats) {
            return Err(Error::invalid("seats", "must be 1 to 1024 sessions"));
        }
        let together = match (&options.device, &options.pool) {
            (Some(_), _) => None,
            (None, Some(pool)) => Some(Arc::clone(pool)),
            (None, None) => Some(Arc::new(Pool::new(options.threads)?)),
        };
        let together = together.map(|pool| Together::new(model.program(), pool, seats));
        Ok(Batch {
            together: together.transpose()?,
            seats: (0..seats).map(|_| None).collect(),
            rows: Vec::with_capacity(seats),
            tokens: Vec::with_capacity(seats),
            model,
        })
    }

    /// Bytes of working memory besides the sessions' own.
    pub fn work_bytes(&self) -> usize {
        self.together.as_ref().map_or(0, Together::bytes)
    }

    /// Takes a session in and returns its seat, a number below that of the seats.
    ///
    /// # Errors
    /// The session and [`Error::Invalid`], if it is of another model or device, or all seats are taken.
    pub fn join(&mut self, session: Session) -> std::result::Result<usize, Box<(Session, Error)>> {
        let refused =
            |session, reason: &str| Err(Box::new((session, Error::invalid("batch", reason))));
        if !Arc::ptr_eq(session.model(), &self.model) {
            return refused(session, "the session is of another model");
        }
        if matches!(session.engine, Engine::Cpu(_)) != self.together.is_some() {
            return refused(session, "the session is on another device");
        }
        let Some(seat) = self.seats.iter().position(Option::is_none) else {
            return refused(session, "all seats are taken");
        };
        self.seats[seat] = Some(session);
        Ok(seat)
    }

    /// Gives the session in a seat back, if there is one.
    pub fn leave(&mut self, seat: usize) -> Option<Session> {
        self.seats.get_mut(seat)?.take()
    }

    /// The session in a seat.
    pub fn session(&self, seat: usize) -> Option<&Session> {
        self.seats.get(seat)?.as_ref()
    }

    /// The session in a seat, to change how it samples or to read a prompt into it.
    pub fn session_mut(&mut self, seat: usize) -> Option<&mut Session> {
        self.seats.get_mut(seat)?.as_mut()
    }

    /// Seats with a session.
    pub fn taken(&self) -> impl Iterator<Item = usize> {
        let seats = self.seats.iter().enumerate();
        seats.filter_map(|(seat, session)| session.is_some().then_some(seat))
    }

    /// Every session chooses a token by its own sampler and reads it. Returns the seats, in order, with their tokens.
    ///
    /// # Errors
    /// The first session's error, as of [`Session::step`]. Before any token is read unless a device was lost: of a session
    /// that has chosen a token already only the random numbers have moved on.
    pub fn step(&mut self) -> Result<&[(usize, u32)]> {
        let taken = self.seats.iter_mut().enumerate();
        let mut taken = taken.filter_map(|(seat, session)| Some((seat, session.as_mut()?)));
        self.rows.clear();
        let rows = &mut self.rows;
        taken.try_for_each(|(seat, session)| {
            session.check(&[0])?;
            if session.canceller.take() {
                return Err(Error::Cancelled { fed: 0 });
            }
            let token = match session.engine {
                Engine::Cpu(_) => session.sample()?,
                Engine::Cuda(_) => session.step()?,
            };
            rows.push((seat, token));
            Ok(())
        })?;
        self.read_rows();
        Ok(&self.rows)
    }

    /// Each of these seats' sessions reads a token.
    ///
    /// # Errors
    /// As of [`Session::feed`], and [`Error::Invalid`] if a seat is free or named twice. Nothing is read then unless a device
    /// was lost.
    pub fn feed(&mut self, tokens: &[(usize, u32)]) -> Result<()> {
        for (index, (seat, token)) in tokens.iter().enumerate() {
            let again = tokens[..index].iter().any(|(other, _)| other == seat);
            match self.session(*seat).filter(|_| !again) {
                Some(session) => session.check(&[*token])?,
                None => {
                    let reason = "no session sits there, or it is named twice";
                    return Err(Error::invalid(format!("seat {seat}"), reason));
                }
            }
        }
        self.rows.clear();
        self.rows.extend_from_slice(tokens);
        if self.together.is_none() {
            let mut seats = tokens.iter();
            return seats.try_for_each(|&(seat, token)| match self.session_mut(seat) {
                Some(session) => session.feed(&[token]),
                None => Ok(()),
            });
        }
        self.read_rows();
        Ok(())
    }

    /// Reads the rows' tokens into the states, where those lie on the CPU.
    fn read_rows(&mut self) {
        let Some(together) = self.together.as_mut().filter(|_| !self.rows.is_empty()) else {
            return;
        };
        self.tokens.clear();
        self.tokens.extend(self.rows.iter().map(|(_, token)| token));
        let mut states = Seated {
            seats: &mut self.seats,
            rows: &self.rows,
        };
        together.step(self.model.program(), &mut states, &self.tokens);
        for (row, &(seat, token)) in self.rows.iter().enumerate() {
            if let Some(session) = &mut self.seats[seat] {
                let logits = session.arena.slot_mut(LOGITS);
                logits.copy_from_slice(together.logits(row));
                session.log(&[token]);
            }
        }
    }
}

/// The states of the rows.
struct Seated<'a> {
    seats: &'a mut [Option<Session>],
    rows: &'a [(usize, u32)],
}

impl States for Seated<'_> {
    fn state(&mut self, row: usize) -> (&mut Arena, u64) {
        let seat = self.rows[row].0;
        let session = self.seats[seat].as_mut().expect("a row's seat is taken");
        let position = session.position();
        (&mut session.arena, position)
    }
}
