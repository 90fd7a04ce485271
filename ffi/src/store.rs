//! Prefix stores: checkpoints that sessions can continue from.

use std::ffi::c_char;
use std::sync::Arc;

use waterline::{PrefixStore, PrefixStoreOptions};

use crate::handles::Handles;
use crate::log::{log, wl_log_level};
use crate::params::{self, Tagged};
use crate::pointers::{path, place, put};
use crate::status::{Outcome, border, wl_status};

/// A store of checkpoints: states at positions of token sequences, shared by sessions. A history that grew, was edited, lost its thinking
/// text, was forked or comes from another process continues from the longest checkpoint that is a prefix of it.
pub struct wl_store {
    _private: [u8; 0],
}

/// Parameters of a new store.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_store_params {
    /// sizeof(wl_store_params).
    pub size: u32,
    /// The number of positions between checkpoints of a long prompt, which is read in chunks that end at them; 0, the default, means 256 on
    /// a CPU and one chunk on a GPU, which reads long prompts slowly in shorter chunks.
    pub grid: u32,
    /// The maximum number of bytes in memory; by default a quarter of the machine's memory, but at most 8 GiB.
    pub bytes: u64,
    /// A directory that also holds the checkpoints, for other processes and later runs; NULL, the default, means none. It is created if it
    /// does not exist; only its owner can read its files.
    pub directory: *const c_char,
    /// The maximum number of bytes of files in the directory; 4 GiB by default.
    pub directory_bytes: u64,
}

/// The contents of a store and its work so far.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_store_stats {
    /// sizeof(wl_store_stats).
    pub size: u32,
    /// Reserved; always 0.
    pub reserved: u32,
    /// The number of checkpoints in memory.
    pub checkpoints: u64,
    /// The bytes of these checkpoints, never more than the limit.
    pub bytes: u64,
    /// The number of checkpoints in the directory.
    pub files: u64,
    /// The bytes of these files.
    pub file_bytes: u64,
    /// The number of checkpoints evicted from memory.
    pub evicted: u64,
    /// The number of tokens of histories that were not read again.
    pub reused_tokens: u64,
    /// The number of tokens of histories that were read.
    pub read_tokens: u64,
}

impl Default for wl_store_params {
    fn default() -> Self {
        let options = PrefixStoreOptions::default();
        wl_store_params {
            size: size_of::<Self>() as u32,
            grid: options.grid as u32,
            bytes: options.bytes as u64,
            directory: std::ptr::null(),
            directory_bytes: options.directory_bytes,
        }
    }
}

// SAFETY: the struct holds numbers and a pointer that is checked before use, and its size comes first.
unsafe impl Tagged for wl_store_params {}
// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_store_stats {}

static STORES: Handles<Arc<PrefixStore>> = Handles::new("store");

/// Returns the store of a handle; `None` for NULL.
pub(crate) fn store(handle: *const wl_store) -> Outcome<Option<Arc<PrefixStore>>> {
    if handle.is_null() {
        Ok(None)
    } else {
        Ok(Some(Arc::clone(&*STORES.get(handle)?)))
    }
}

/// Fills `params` with defaults; `size` is sizeof(wl_store_params).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_params_init(
    params: *mut wl_store_params,
    size: usize,
) -> wl_status {
    // SAFETY: the caller passes a struct of this size.
    border(|| unsafe { params::init("wl_store_params", params, size) })
}

/// Makes a store, with the checkpoints of its directory if it has one. `params` may be NULL. Pass the store to sessions, of any models, as
/// `store` of wl_session_params. Free it with wl_store_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_new(
    params: *const wl_store_params,
    store: *mut *mut wl_store,
) -> wl_status {
    border(|| {
        place("the place for the store", store)?;
        // SAFETY: `read` checks the size stored in the struct; the caller passes such a struct or NULL.
        let params = unsafe { params::read("wl_store_params", params) }?;
        let mut options = PrefixStoreOptions::default();
        options.grid = params.grid as usize;
        options.bytes = usize::try_from(params.bytes).unwrap_or(usize::MAX);
        options.directory_bytes = params.directory_bytes;
        if !params.directory.is_null() {
            // SAFETY: the caller passes a zero-terminated path.
            options.directory = Some(unsafe { path(params.directory) }?.into());
        }
        let made = PrefixStore::new(options)?;
        log_notes(&made);
        // SAFETY: checked.
        unsafe { put(store, STORES.add(made)) };
        Ok(())
    })
}

/// Frees a store; NULL does nothing. Sessions that use the store keep it alive. Its last user waits until its directory is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_free(store: *mut wl_store) -> wl_status {
    border(|| {
        if !store.is_null() {
            let store = STORES.remove(store)?;
            log_notes(&store);
        }
        Ok(())
    })
}

/// Fills `stats`, whose size the caller has set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_get_stats(
    store: *const wl_store,
    stats: *mut wl_store_stats,
) -> wl_status {
    border(|| {
        let store = STORES.get(store)?;
        log_notes(&store);
        let found = store.stats();
        let value = wl_store_stats {
            size: 0,
            reserved: 0,
            checkpoints: found.checkpoints as u64,
            bytes: found.bytes as u64,
            files: found.files as u64,
            file_bytes: found.file_bytes,
            evicted: found.evicted,
            reused_tokens: found.reused_tokens,
            read_tokens: found.read_tokens,
        };
        // SAFETY: the caller passes a struct of the size stored in it.
        unsafe { params::write("wl_store_stats", stats, value) }
    })
}

/// Removes all checkpoints, including those in the directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_clear(store: *mut wl_store) -> wl_status {
    border(|| {
        STORES.get(store)?.clear();
        Ok(())
    })
}

/// Waits until all pending writes to the directory are done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_flush(store: *mut wl_store) -> wl_status {
    border(|| {
        let store = STORES.get(store)?;
        store.flush();
        log_notes(&store);
        Ok(())
    })
}

/// Logs files that were skipped and files that could not be written.
fn log_notes(store: &PrefixStore) {
    for note in store.take_notes() {
        log(wl_log_level::WL_LOG_INFO, || note);
    }
}
