//! Sessions: reading tokens and choosing the next one.

use std::sync::Arc;

use waterline::internal::Checkpoint;
use waterline::{OpenOptions, Session, SessionOptions};

use crate::model::{MODELS, OpenModel, wl_device, wl_model, wl_model_params};
use crate::open_session::{SESSIONS, add, with, with_settled};
use crate::params::{self, Tagged};
use crate::pointers::{path, place, place_if_wanted, put, put_if_wanted, slice};
use crate::progress::{Hearing, feed};
use crate::sampling::{sampler_params, wl_sampler_params};
use crate::session_params::{session_options, wl_session_params};
use crate::status::{Failure, Outcome, border, wl_status};

/// One conversation or text, with the state of the model that has read it. All its memory is allocated when it is made.
pub struct wl_session {
    _private: [u8; 0],
}

/// The memory of a model and a session, in bytes. None of it grows while tokens are read.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_plan {
    /// sizeof(wl_plan).
    pub size: u32,
    /// The number of threads that compute.
    pub threads: u32,
    /// The weights, which are mapped from the file and shared by all sessions.
    pub weight_bytes: u64,
    /// The session's state.
    pub state_bytes: u64,
    /// The session's working memory on the CPU, and its marks. wl_session_get_info includes the working memory on a GPU.
    pub work_bytes: u64,
}

/// The position and size of a session.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_session_info {
    /// sizeof(wl_session_info).
    pub size: u32,
    /// The number of threads that compute.
    pub threads: u32,
    /// The number of tokens read so far.
    pub position: u64,
    /// Bytes of the state.
    pub state_bytes: u64,
    /// Bytes of working memory and marks.
    pub work_bytes: u64,
    /// The number of tokens drafted since the session was made.
    pub drafted: u64,
    /// The number of drafted tokens that were accepted.
    pub accepted: u64,
}

// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_plan {}
// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_session_info {}

/// Checks that a token can be chosen by the logits that the model has computed.
fn check_logits(session: &Session) -> Outcome {
    session.check_logits().map_err(|error| {
        Failure::new(
            wl_status::WL_ERROR_MODEL,
            format!("{error}; wl_session_reset makes the session usable again"),
        )
    })
}

fn plan_of(model: &OpenModel, options: &SessionOptions) -> Outcome<wl_plan> {
    let plan = Session::plan(&model.model, options)?;
    Ok(wl_plan {
        size: 0,
        threads: plan.threads as u32,
        weight_bytes: model.weight_bytes,
        state_bytes: plan.state_bytes as u64,
        work_bytes: plan.work_bytes as u64,
    })
}

/// Fills `plan`, whose size the caller has set, with the memory that the model in a file and a session on it would need. Only the file's
/// header and small tensors are read, and the file is closed again. `params` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_plan_file(
    path: *const std::ffi::c_char,
    params: *const wl_session_params,
    plan: *mut wl_plan,
) -> wl_status {
    border(|| {
        // SAFETY: the caller passes such a struct or NULL.
        let options = unsafe { session_options(params, None) }?;
        // SAFETY: the caller passes a zero-terminated path.
        let path = unsafe { self::path(path) }?;
        let on_cpu = wl_model_params {
            device: wl_device::WL_DEVICE_CPU as u32,
            ..Default::default()
        };
        let open = OpenOptions {
            mtp: options.mtp > 0,
            ..OpenOptions::default()
        };
        let model = OpenModel::new(Checkpoint::open_with(path, &open)?, &on_cpu)?;
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_plan", plan, plan_of(&model, &options)?) }
    })
}

/// Like wl_plan_file, for an open model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_plan_model(
    model: *const wl_model,
    params: *const wl_session_params,
    plan: *mut wl_plan,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        // SAFETY: the caller passes such a struct or NULL.
        let options = unsafe { session_options(params, Some(&model.model)) }?;
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_plan", plan, plan_of(&model, &options)?) }
    })
}

/// Makes a session on `model`. `params` may be NULL. Free it with wl_session_free. The session keeps the parts of the model that it needs
/// alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_new(
    model: *const wl_model,
    params: *const wl_session_params,
    session: *mut *mut wl_session,
) -> wl_status {
    border(|| {
        let model = MODELS.get(model)?;
        place("the place for the session", session)?;
        // SAFETY: the caller passes such a struct or NULL.
        let mut options = unsafe { session_options(params, Some(&model.model)) }?;
        options.pool = Some(model.pool(options.threads)?);
        options.device.clone_from(&model.device);
        let made = Session::new(Arc::clone(&model.model), options)?;
        // SAFETY: checked.
        unsafe { put(session, add(made, None, None)) };
        Ok(())
    })
}

/// Frees a session; NULL does nothing. May be called at any time from any thread: a call that is using the session is cancelled, and the
/// memory is released when that call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_free(session: *mut wl_session) -> wl_status {
    border(|| {
        if !session.is_null() {
            SESSIONS.remove(session)?.canceller.cancel();
        }
        Ok(())
    })
}

/// Makes a second session in the same state, conversation included, independent of the first from then on. Free it with wl_session_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_fork(
    session: *mut wl_session,
    fork: *mut *mut wl_session,
) -> wl_status {
    with_settled(session, |inner| {
        place("the place for the session", fork)?;
        let made = inner.session.fork()?;
        // SAFETY: checked.
        unsafe { put(fork, add(made, inner.chat.clone(), inner.form.clone())) };
        Ok(())
    })
}

/// Forgets everything that was read or said. Sampling parameters are kept; random numbers restart from the seed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_reset(session: *mut wl_session) -> wl_status {
    with(session, |inner| {
        inner.session.reset()?;
        (inner.chat, inner.running) = (None, None);
        Ok(())
    })
}

/// Fills `info`, whose size the caller has set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_get_info(
    session: *const wl_session,
    info: *mut wl_session_info,
) -> wl_status {
    with(session, |inner| {
        let session = &inner.session;
        let (drafted, accepted) = session.drafts();
        let value = wl_session_info {
            size: 0,
            threads: session.threads() as u32,
            position: session.position(),
            state_bytes: session.state_bytes() as u64,
            work_bytes: session.work_bytes() as u64,
            drafted,
            accepted,
        };
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_session_info", info, value) }
    })
}

/// Changes the sampling parameters; NULL means those of wl_model_get_sampler. A new seed restarts the random numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_set_sampler(
    session: *mut wl_session,
    params: *const wl_sampler_params,
) -> wl_status {
    with(session, |inner| {
        let model = Arc::clone(inner.session.model());
        // SAFETY: the caller passes such a struct or NULL.
        Ok(inner
            .session
            .set_sampler(unsafe { sampler_params(params, Some(&model)) }?)?)
    })
}

/// Fills `params`, whose size the caller has set, with the sampling parameters, including the seed that was drawn. The logit biases belong
/// to the session: they are valid until the next call of this function or wl_session_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_get_sampler(
    session: *mut wl_session,
    params: *mut wl_sampler_params,
) -> wl_status {
    with(session, |inner| {
        // SAFETY: the caller passes a struct of the size stored in it, or NULL, which `check` accepts and `write` rejects.
        unsafe { params::check("wl_sampler_params", params) }?;
        let (found, bias) = wl_sampler_params::new(inner.session.sampler());
        inner.bias = bias;
        let found = wl_sampler_params {
            bias: inner.bias.as_ptr(),
            bias_count: inner.bias.len(),
            ..found
        };
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_sampler_params", params, found) }
    })
}

/// Reads `count` tokens. Afterwards wl_logits gives the logits after the last one. On WL_OK and WL_CANCELLED the number of tokens read is
/// written to `fed`, which may be NULL. On other errors nothing was read, except WL_ERROR_MODEL: the tokens were read, but no token can be
/// chosen by the logits after them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_feed(
    session: *mut wl_session,
    tokens: *const u32,
    count: usize,
    fed: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `count` tokens.
        let tokens = unsafe { slice("tokens", tokens, count) }?;
        place_if_wanted("the place for the number of tokens", fed)?;
        let outcome = feed(&mut inner.session, tokens, inner.progress);
        let read = match outcome {
            Ok(()) => tokens.len(),
            Err(waterline::Error::Cancelled { fed }) => fed,
            Err(_) => 0,
        };
        // SAFETY: the caller passes a destination or NULL.
        unsafe { put_if_wanted("the place for the number of tokens", fed, read) }?;
        outcome?;
        check_logits(&inner.session)
    })
}

/// Makes the session one that has read `count` tokens and nothing else. It continues from its state, a mark or a checkpoint of its store,
/// whichever covers the most of them, and reads the rest. Afterwards wl_logits gives the logits after the last token. The number of tokens
/// that were not read again is written to `reused`, which may be NULL. On WL_CANCELLED the session has read only the first of the tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_read_history(
    session: *mut wl_session,
    tokens: *const u32,
    count: usize,
    reused: *mut usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `count` tokens.
        let tokens = unsafe { slice("tokens", tokens, count) }?;
        place_if_wanted("the place for the number of tokens", reused)?;
        let mut hearing = Hearing::new(&inner.session, inner.progress);
        let read = inner
            .session
            .read_history_with(tokens, &[], |read, of| hearing.hear(read, of))?;
        inner.chat = None;
        // SAFETY: the caller passes a destination or NULL.
        unsafe { put_if_wanted("the place for the number of tokens", reused, read.reused) }?;
        check_logits(&inner.session)
    })
}

/// Stores a checkpoint of the current state if the session has a store. Reading a history and answering in a conversation store checkpoints
/// by themselves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_checkpoint(session: *mut wl_session) -> wl_status {
    with_settled(session, |inner| Ok(inner.session.checkpoint()?))
}

/// Stores a pointer to the logits after the last token, and their number, the size of the model's vocabulary, in `count`. All are zero
/// before the first token. Returns WL_ERROR_MODEL if a logit is NaN or infinite, or all are minus infinity; a token whose logit is minus
/// infinity is never chosen. The memory belongs to the session and keeps its address until the session is freed; the next call that reads
/// tokens or restores a state overwrites it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_logits(
    session: *const wl_session,
    logits: *mut *const f32,
    count: *mut usize,
) -> wl_status {
    with(session, |inner| {
        place("the place for the logits", logits)?;
        place("the place for their number", count)?;
        check_logits(&inner.session)?;
        let found = inner.session.logits()?;
        // SAFETY: both are checked.
        unsafe {
            put(logits, found.as_ptr());
            put(count, found.len());
        }
        Ok(())
    })
}

/// Chooses a token by the last logits without reading it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_sample(session: *mut wl_session, token: *mut u32) -> wl_status {
    with_settled(session, |inner| {
        place("the place for the token", token)?;
        // SAFETY: checked.
        unsafe { put(token, inner.session.sample()?) };
        Ok(())
    })
}

/// Chooses a token and reads it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_step(session: *mut wl_session, token: *mut u32) -> wl_status {
    with_settled(session, |inner| {
        place("the place for the token", token)?;
        // SAFETY: checked.
        unsafe { put(token, inner.session.step()?) };
        Ok(())
    })
}

/// Ends the call that is using the session, after a complete token: that call returns WL_CANCELLED, and a generation ends with
/// WL_FINISH_CANCELLED. Between two calls of wl_generate_next it ends the generation at the next call. Otherwise it has no effect while no
/// call is running, so a late cancellation does not end the next call. May be called at any time from any thread, including from a callback
/// and from a thread that handles signals, but not from a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_cancel(session: *const wl_session) -> wl_status {
    border(|| {
        SESSIONS.get(session)?.canceller.cancel();
        Ok(())
    })
}

/// Discards a wl_session_cancel that arrived between two calls of wl_generate_next. May be called at any time from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_clear_cancel(session: *const wl_session) -> wl_status {
    border(|| {
        SESSIONS.get(session)?.canceller.clear();
        Ok(())
    })
}
