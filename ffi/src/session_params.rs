//! How a session is made: the struct that C fills, and the library's options from it.

use waterline::{ContextEnd, Kv, SessionOptions, physical_cores};

use crate::params::{self, Tagged};
use crate::sampling::{sampler_params, wl_sampler_params};
use crate::status::{Failure, Outcome, border, wl_status};
use crate::store::{store, wl_store};

/// How keys and values of attention are stored.
#[repr(C)]
pub enum wl_cache {
    /// 16-bit floats.
    WL_CACHE_F16 = 0,
    /// 32-bit floats.
    WL_CACHE_F32 = 1,
}

/// The end of a context that is full of tokens which attention looks back on.
#[repr(C)]
pub enum wl_full {
    /// WL_ERROR_CONTEXT, and nothing is read.
    WL_FULL_STOP = 0,
    /// Attention forgets the oldest tokens but the first ones; recurrent layers go on as before. Nothing is read again.
    WL_FULL_SHIFT = 1,
    /// The first tokens and the newest, as many as fill half of the rest of the context, are read again, and nothing else is remembered.
    WL_FULL_COMPACT = 2,
}

/// How to make a session.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_session_params {
    /// sizeof(wl_session_params).
    pub size: u32,
    /// Threads that compute, the caller's included, 1 to 1024; 0, the default, means one for each physical core.
    /// Sessions of one model with the same number share their threads and take turns. With 1, each computes on its
    /// caller's thread, and sessions run side by side.
    pub threads: u32,
    /// Tokens that full attention can look back on; models without it have no such bound. 4096 by default.
    pub context: usize,
    /// How many of the last tokens are remembered, for penalties and wl_session_rewind. 4096 by default.
    pub history: usize,
    /// Most tokens that are read at once, at most 65536; 0, the default, means what suits the device: 256 on the
    /// processor, 2048 on a GPU.
    pub chunk: usize,
    /// How many states wl_session_mark keeps, each as large as the session's; 0 by default.
    pub marks: usize,
    /// A wl_cache; WL_CACHE_F16 by default.
    pub cache: u32,
    /// A wl_full: the end of a full context; WL_FULL_STOP by default.
    pub on_full: u32,
    /// How tokens are chosen; NULL, the default, means the defaults of wl_sampler_params. It is copied.
    pub sampler: *const wl_sampler_params,
    /// 1: the bits of a token depend on nothing but the tokens before it and the kind of device, not on chunks, batches or
    /// threads; prompts are read more slowly. 0 by default.
    pub exact: u32,
    /// First tokens that stay when the context is full, fewer than half of it; of a conversation its instructions do, too. 4 by default.
    pub keep: u32,
    /// Where checkpoints are kept, for wl_session_read_history and conversations; NULL, the default, means nowhere. The session keeps
    /// what it needs of the store.
    pub store: *const wl_store,
    /// Most tokens that a generation drafts by looking up what followed the last tokens before, up to 64; 0, the default, means none. The
    /// text is the same without; drafts make it come sooner, and need the memory of one more state.
    pub lookup: u32,
    /// Most tokens that a generation drafts by the model's MTP block, in place of `lookup`; 0, the default, means none. The model was opened
    /// with `mtp` of wl_model_params.
    pub mtp: u32,
}

impl Default for wl_session_params {
    fn default() -> Self {
        let options = SessionOptions::default();
        wl_session_params {
            size: size_of::<Self>() as u32,
            threads: options.threads as u32,
            context: options.state.context,
            history: options.state.history,
            chunk: options.chunk,
            marks: options.marks,
            cache: wl_cache::WL_CACHE_F16 as u32,
            on_full: wl_full::WL_FULL_STOP as u32,
            sampler: std::ptr::null(),
            exact: 0,
            keep: options.keep as u32,
            store: std::ptr::null(),
            lookup: options.lookup as u32,
            mtp: options.mtp as u32,
        }
    }
}

// SAFETY: numbers and a pointer that is checked when it is used, the size first.
unsafe impl Tagged for wl_session_params {}

/// The library's options from those at `from`, but for the threads.
///
/// # Safety
/// `from` points to such a struct or is NULL.
pub(crate) unsafe fn session_options(from: *const wl_session_params) -> Outcome<SessionOptions> {
    // SAFETY: `read` checks the size that the struct says; the caller gives such a struct or NULL.
    let params = unsafe { params::read("wl_session_params", from) }?;
    const F16: u32 = wl_cache::WL_CACHE_F16 as u32;
    const F32: u32 = wl_cache::WL_CACHE_F32 as u32;
    let choice = |name: &str, value: u32| {
        Failure::argument(format!("{name}: found {value}, expected 0 or 1"))
    };
    if params.threads > 1024 {
        let threads = params.threads;
        return Err(Failure::argument(format!(
            "threads: found {threads}, expected 0 (one for each core) to 1024"
        )));
    }
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (params.context, params.history);
    options.state.kv = match params.cache {
        F16 => Kv::F16,
        F32 => Kv::F32,
        other => return Err(choice("cache", other)),
    };
    const SHIFT: u32 = wl_full::WL_FULL_SHIFT as u32;
    const COMPACT: u32 = wl_full::WL_FULL_COMPACT as u32;
    options.context_end = match params.on_full {
        0 => ContextEnd::Refuse,
        SHIFT => ContextEnd::Shift,
        COMPACT => ContextEnd::Compact,
        other => {
            return Err(Failure::argument(format!(
                "on_full: found {other}, expected 0, 1 or 2"
            )));
        }
    };
    options.keep = params.keep as usize;
    options.exact = match params.exact {
        0 => false,
        1 => true,
        other => return Err(choice("exact", other)),
    };
    options.threads = match params.threads {
        0 => physical_cores(),
        threads => threads as usize,
    };
    (options.chunk, options.marks) = (params.chunk, params.marks);
    // SAFETY: `read` checks the size that the struct says; the caller gives such a struct or NULL.
    options.sampler = unsafe { sampler_params(params.sampler) }?;
    options.store = store(params.store)?;
    (options.lookup, options.mtp) = (params.lookup as usize, params.mtp as usize);
    Ok(options)
}

/// Fills `params` with defaults; `size` is sizeof(wl_session_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_params_init(
    params: *mut wl_session_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller gives a struct of this size.
    border(|| unsafe { params::init("wl_session_params", params, size) })
}
