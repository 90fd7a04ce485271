//! Sessions that step together.

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use waterline::{Batch, Session};

use crate::generation::Running;
use crate::handles::Handles;
use crate::open_session::{Inner, SESSIONS, lock, with};
use crate::pointers::{list, place, put, slice};
use crate::session::wl_session;
use crate::status::{Failure, Outcome, border, wl_status};

/// Working memory to step sessions of one model together.
pub struct wl_batch {
    _private: [u8; 0],
}

static BATCHES: Handles<Mutex<Batch>> = Handles::new("batch");

/// Makes a batch for up to `most` sessions (1 to 1024; on a GPU 1 to 64) of the model and device of `session`. The batch computes with the
/// threads of `session` and reads the weights once per step for all its sessions. Free it with wl_batch_free. On a GPU all sessions must
/// have been made with the context, cache type and history of `session`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_batch_new(
    session: *const wl_session,
    most: usize,
    batch: *mut *mut wl_batch,
) -> wl_status {
    with(session, |inner| {
        place("the place for the batch", batch)?;
        let made = Batch::new(&inner.session, most)?;
        // SAFETY: checked.
        unsafe { put(batch, BATCHES.add(Mutex::new(made))) };
        Ok(())
    })
}

/// Frees a batch, but none of its sessions; NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_batch_free(batch: *mut wl_batch) -> wl_status {
    border(|| {
        if !batch.is_null() {
            BATCHES.remove(batch)?;
        }
        Ok(())
    })
}

/// Each of `count` distinct sessions chooses a token and reads it, as in wl_step; `tokens` has room for `count` tokens. Each call may step
/// other sessions of the batch's model; every session gives the tokens that it would give alone. On an error, which is the first session's,
/// no token was read, unless a device was lost. Returns WL_ERROR_BUSY if another call is using a session. Only one call at a time may use
/// the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_batch_step(
    batch: *mut wl_batch,
    sessions: *const *mut wl_session,
    count: usize,
    tokens: *mut u32,
) -> wl_status {
    border(|| {
        // SAFETY: the caller passes `count` sessions.
        let sessions = unsafe { list("sessions", sessions, count) }?;
        if count > 0 {
            place("the places for tokens", tokens)?;
        }
        each(batch, sessions, |batch, inners| {
            settle(inners)?;
            for (index, &token) in batch.step(&mut of(inners))?.iter().enumerate() {
                // SAFETY: `tokens` is checked, and the caller provides room for one token per session.
                unsafe { put(tokens.add(index), token) };
            }
            Ok(())
        })
    })
}

/// Session i of `count` distinct sessions reads `tokens[i]`. Otherwise like wl_batch_step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_batch_feed(
    batch: *mut wl_batch,
    sessions: *const *mut wl_session,
    tokens: *const u32,
    count: usize,
) -> wl_status {
    border(|| {
        // SAFETY: the caller passes `count` sessions.
        let sessions = unsafe { list("sessions", sessions, count) }?;
        // SAFETY: the caller passes `count` tokens.
        let tokens = unsafe { slice("tokens", tokens, count) }?;
        each(batch, sessions, |batch, inners| {
            settle(inners)?;
            Ok(batch.feed(&mut of(inners), tokens)?)
        })
    })
}

/// Advances the generations that wl_generate_start or wl_chat_start began on `count` distinct sessions, by one token each, together.
/// `texts` and `lengths` have room for `count`: texts[i] is the text that session i's token completes, like that of wl_generate_next, but
/// empty if the token completes none. It is NULL if the generation has ended, or if it fails alone because no token can be chosen; wl_generate_next then
/// gives the result or the error, and the session may stay in the call. Each session gives the text that it would give alone. Errors and
/// threads are as in wl_batch_step; WL_ERROR_UNSUPPORTED for a generation with `logprobs` or `on_logits`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_batch_generate(
    batch: *mut wl_batch,
    sessions: *const *mut wl_session,
    count: usize,
    texts: *mut *const c_char,
    lengths: *mut usize,
) -> wl_status {
    border(|| {
        // SAFETY: the caller passes `count` sessions.
        let sessions = unsafe { list("sessions", sessions, count) }?;
        if count > 0 {
            place("the places for texts", texts)?;
            place("the places for lengths", lengths)?;
        }
        each(batch, sessions, |batch, inners| {
            let mut stepping = Vec::with_capacity(count);
            for (index, inner) in inners.iter_mut().enumerate() {
                if inner.wants_token()? {
                    stepping.push(index);
                }
            }
            generate(batch, inners, &stepping)?;
            for (index, inner) in inners.iter().enumerate() {
                let running = inner.running.as_ref();
                let stepped = |running: &&Running| stepping.contains(&index) && running.goes_on();
                let (text, length) = running
                    .filter(stepped)
                    .map_or((std::ptr::null(), 0), Running::piece);
                // SAFETY: both are checked, and the caller provides room for one text and one length per session.
                unsafe {
                    put(texts.add(index), text);
                    put(lengths.add(index), length);
                }
            }
            Ok(())
        })
    })
}

/// Steps the sessions at these indices together and passes the tokens to their generations.
fn generate(batch: &mut Batch, inners: &mut [&mut Inner], stepping: &[usize]) -> Outcome {
    let clock = Instant::now();
    let mut inners: Vec<&mut Inner> = inners
        .iter_mut()
        .enumerate()
        .filter(|(index, _)| stepping.contains(index))
        .map(|(_, inner)| &mut **inner)
        .collect();
    let tokens = if inners.iter().any(|inner| inner.needs_choice()) {
        batch.check(&of(&mut inners))?;
        let mut tokens = Vec::with_capacity(inners.len());
        inners.retain_mut(|inner| {
            let chosen = inner.choose();
            tokens.extend(chosen);
            chosen.is_some()
        });
        batch.feed(&mut of(&mut inners), &tokens)?;
        tokens
    } else {
        let mut stepped = batch.step_each(&mut of(&mut inners))?.into_iter();
        let mut tokens = Vec::with_capacity(inners.len());
        inners.retain_mut(|inner| {
            let stepped = stepped.next().and_then(|token| inner.stepped(token));
            tokens.extend(stepped);
            stepped.is_some()
        });
        tokens
    };
    for (inner, token) in inners.iter_mut().zip(tokens) {
        inner.take_token(token, clock.elapsed())?;
    }
    Ok(())
}

/// Discards earlier cancellations, which were meant for other calls, and ends unfinished generations.
fn settle(inners: &mut [&mut Inner]) -> Outcome {
    inners.iter_mut().try_for_each(|inner| {
        inner.session.canceller().clear();
        inner.settle()
    })
}

/// Returns the sessions of `inners`.
fn of<'a>(inners: &'a mut [&mut Inner]) -> Vec<&'a mut Session> {
    inners.iter_mut().map(|inner| &mut inner.session).collect()
}

/// Runs `body` on a batch and sessions that no other call is using.
fn each(
    batch: *const wl_batch,
    sessions: &[*mut wl_session],
    body: impl FnOnce(&mut Batch, &mut [&mut Inner]) -> Outcome,
) -> Outcome {
    let batch = BATCHES.get(batch)?;
    let mut batch = batch.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Failure::new(
            wl_status::WL_ERROR_BUSY,
            "another call on this batch has not returned yet",
        ),
        TryLockError::Poisoned(_) => Failure::new(
            wl_status::WL_ERROR_INTERNAL,
            "an earlier call on this batch ended with an internal error; it can only be freed",
        ),
    })?;
    let open = sessions.iter().map(|&session| SESSIONS.get(session));
    let open = open.collect::<Outcome<Vec<_>>>()?;
    let locked = open.iter().map(|session| lock(session));
    let mut locked: Vec<MutexGuard<Inner>> = locked.collect::<Outcome<_>>()?;
    let mut inners: Vec<&mut Inner> = locked.iter_mut().map(|inner| &mut **inner).collect();
    body(&mut batch, &mut inners)
}
