//! Session parameters: the struct that C fills, and its conversion to the library's options.

use waterline::{ContextEnd, Kv, Model, SessionOptions, physical_cores};

use crate::params::{self, Tagged};
use crate::sampling::{sampler_params, wl_sampler_params};
use crate::status::{Failure, Outcome, border, wl_status};
use crate::store::{store, wl_store};

/// The format in which attention stores keys and values.
#[repr(C)]
pub enum wl_cache {
    /// 16-bit floats.
    WL_CACHE_F16 = 0,
    /// 32-bit floats.
    WL_CACHE_F32 = 1,
}

/// The behavior when the context that attention looks back on is full.
#[repr(C)]
pub enum wl_full {
    /// The call returns WL_ERROR_CONTEXT, and nothing is read.
    WL_FULL_STOP = 0,
    /// Attention forgets the oldest tokens except the first `keep`; recurrent layers continue as before. Nothing is read again.
    WL_FULL_SHIFT = 1,
    /// The first `keep` tokens and the newest ones, as many as fill half of the remaining context, are read again; everything else is
    /// forgotten.
    WL_FULL_COMPACT = 2,
}

/// Parameters of a new session.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_session_params {
    /// sizeof(wl_session_params).
    pub size: u32,
    /// The number of threads that compute, the caller's included, 1 to 1024; 0, the default, means one per physical core. Sessions of one
    /// model with the same number share their threads and take turns. With 1, each session computes on its caller's thread, and sessions
    /// run in parallel.
    pub threads: u32,
    /// The number of tokens that full attention can look back on; models without full attention have no such limit. 4096 by default.
    pub context: usize,
    /// The number of recent tokens that are remembered, for penalties and wl_session_rewind. 4096 by default.
    pub history: usize,
    /// The maximum number of tokens read at once, at most 65536; 0, the default, selects a value for the device: 256 on the CPU, 2048 on a
    /// GPU.
    pub chunk: usize,
    /// The number of states that wl_session_mark keeps, each as large as the session's; 0 by default.
    pub marks: usize,
    /// A wl_cache; WL_CACHE_F16 by default.
    pub cache: u32,
    /// A wl_full: what happens when the context is full; WL_FULL_STOP by default.
    pub on_full: u32,
    /// Sampling parameters, which are copied; NULL, the default, means those of wl_model_get_sampler.
    pub sampler: *const wl_sampler_params,
    /// 1 makes the bits of each token depend only on the tokens before it and the kind of device, not on chunks, batches or threads;
    /// prompts are then read more slowly. 0 by default.
    pub exact: u32,
    /// The number of first tokens that remain when the context is full, less than half of it. In a conversation its instructions remain
    /// too. 4 by default.
    pub keep: u32,
    /// The store of checkpoints for wl_session_read_history and conversations; NULL, the default, means none. The session keeps the parts
    /// of the store that it needs alive.
    pub store: *const wl_store,
    /// The maximum number of tokens that a generation drafts by looking up what followed the last tokens earlier, up to 64; 0, the default,
    /// disables this. The text is the same without drafts; drafts make generation faster and need the memory of one more state.
    pub lookup: u32,
    /// The maximum number of tokens that a generation drafts with the model's MTP block, in place of `lookup`; 0, the default, disables
    /// this. The model must have been opened with `mtp` of wl_model_params.
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

// SAFETY: the struct holds numbers and a pointer that is checked before use, and its size comes first.
unsafe impl Tagged for wl_session_params {}

/// Converts the struct at `from` to the library's options for a session on `model`, except for the thread pool.
///
/// # Safety
/// `from` points to such a struct or is NULL.
pub(crate) unsafe fn session_options(
    from: *const wl_session_params,
    model: Option<&Model>,
) -> Outcome<SessionOptions> {
    // SAFETY: `read` checks the size stored in the struct; the caller passes such a struct or NULL.
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
    // SAFETY: `sampler_params` checks the size stored in the struct; the caller passes such a struct or NULL.
    options.sampler = unsafe { sampler_params(params.sampler, model) }?;
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
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_session_params", params, size) })
}
