//! The sessions of handles: each is used by one call at a time.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use waterline::{Canceller, Chat, Constraint, HistoryRead, Session};

use crate::generation::Running;
use crate::handles::Handles;
use crate::log::{log, wl_log_level};
use crate::progress::Progress;
use crate::sampling::wl_logit_bias;
use crate::session::wl_session;
use crate::status::{Failure, Outcome, border, wl_status};

/// The object of a session's handle.
pub(crate) struct OpenSession {
    pub canceller: Canceller,
    /// Locked by the one call that uses the session.
    inner: Mutex<Inner>,
}

/// A session with the conversation and generation that run on it.
pub(crate) struct Inner {
    pub session: Session,
    pub chat: Option<Chat>,
    /// The constraint on answers, in its initial state.
    pub form: Option<Constraint>,
    pub running: Option<Running>,
    /// The result of reading the messages that await an answer, and the time it took.
    pub prompt: Option<(HistoryRead, Duration)>,
    pub progress: Option<Progress>,
    /// The memory that wl_session_get_sampler's pointer refers to.
    pub bias: Vec<wl_logit_bias>,
}

pub(crate) static SESSIONS: Handles<OpenSession> = Handles::new("session");

/// Issues a handle for a session.
pub(crate) fn add(
    session: Session,
    chat: Option<Chat>,
    form: Option<Constraint>,
) -> *mut wl_session {
    log(wl_log_level::WL_LOG_DEBUG, || {
        let (state, work) = (session.state_bytes(), session.work_bytes());
        let threads = session.threads();
        format!(
            "made a session: state {state} bytes, working memory {work} bytes, {threads} threads"
        )
    });
    if let Some(form) = session.step_form() {
        log(wl_log_level::WL_LOG_INFO, || {
            format!("a step on the GPU is {form}")
        });
    }
    SESSIONS.add(OpenSession {
        canceller: session.canceller(),
        inner: Mutex::new(Inner {
            session,
            chat,
            form,
            running: None,
            prompt: None,
            progress: None,
            bias: Vec::new(),
        }),
    })
}

/// Runs `body` on a session that no other call is using.
pub(crate) fn with(
    session: *const wl_session,
    body: impl FnOnce(&mut Inner) -> Outcome,
) -> wl_status {
    border(|| {
        let session = SESSIONS.get(session)?;
        let mut inner = lock(&session)?;
        body(&mut inner)
    })
}

/// Locks a session; fails if another call is using it.
pub(crate) fn lock(session: &OpenSession) -> Outcome<MutexGuard<'_, Inner>> {
    session.inner.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Failure::new(
            wl_status::WL_ERROR_BUSY,
            "another call on this session has not returned yet",
        ),
        TryLockError::Poisoned(_) => Failure::new(
            wl_status::WL_ERROR_INTERNAL,
            "an earlier call on this session ended with an internal error; it can only be freed",
        ),
    })
}

/// Like [`with`], but first ends a generation that was left unfinished. An earlier cancellation is discarded: it was meant for another
/// call.
pub(crate) fn with_settled(
    session: *const wl_session,
    body: impl FnOnce(&mut Inner) -> Outcome,
) -> wl_status {
    with(session, |inner| {
        inner.session.canceller().clear();
        // wl_session_free removes the handle before it cancels, so if the cancellation discarded above was its own, this lookup fails.
        SESSIONS.get(session)?;
        inner.settle()?;
        body(inner)
    })
}
