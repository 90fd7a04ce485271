//! Prefix stores: checkpoints that sessions go on from.

use std::ffi::c_char;
use std::sync::Arc;

use waterline::{PrefixStore, PrefixStoreOptions};

use crate::handles::Handles;
use crate::log::{log, wl_log_level};
use crate::params::{self, Tagged};
use crate::pointers::{path, place, put};
use crate::status::{Outcome, border, wl_status};

/// Checkpoints of states at positions of token sequences, shared by sessions: a history that grew, was edited, lost its thinking
/// text, is forked or is continued by another process goes on from the deepest one that it begins with.
pub struct wl_store {
    _private: [u8; 0],
}

/// How to make a store.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct wl_store_params {
    /// sizeof(wl_store_params).
    pub size: u32,
    /// Positions between checkpoints of a long prompt, whose chunks end there; 0, the default, means 256 on a CPU and a chunk on a GPU, which
    /// reads long prompts slowly in shorter pieces.
    pub grid: u32,
    /// Most bytes in memory; by default a quarter of the machine's memory, but 8 GiB at most.
    pub bytes: u64,
    /// A directory where checkpoints are kept too, for other processes and later runs; NULL, the default, means none. It is made
    /// if it does not exist; its files are their owner's alone.
    pub directory: *const c_char,
    /// Most bytes of files in the directory; 4 GiB by default.
    pub directory_bytes: u64,
}

/// The contents of a store and its work so far.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct wl_store_stats {
    /// sizeof(wl_store_stats).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// Checkpoints in memory.
    pub checkpoints: u64,
    /// Their bytes, which never exceed the bound.
    pub bytes: u64,
    /// Checkpoints in the directory.
    pub files: u64,
    /// Bytes of these files.
    pub file_bytes: u64,
    /// Checkpoints that were evicted from memory.
    pub evicted: u64,
    /// Tokens of histories that were not read again.
    pub reused_tokens: u64,
    /// Tokens of histories that were read.
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

// SAFETY: numbers and a pointer that is checked when it is used, the size first.
unsafe impl Tagged for wl_store_params {}
// SAFETY: numbers only, the size first.
unsafe impl Tagged for wl_store_stats {}

static STORES: Handles<Arc<PrefixStore>> = Handles::new("store");

/// The store of a handle; none for NULL.
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
    // SAFETY: the caller gives a struct of this size.
    border(|| unsafe { params::init("wl_store_params", params, size) })
}

/// Makes a store, with the checkpoints of its directory if it has one. `params` may be NULL. Sessions get it by `store` of
/// wl_session_params; those of any models may share it. Free it with wl_store_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_new(
    params: *const wl_store_params,
    store: *mut *mut wl_store,
) -> wl_status {
    border(|| {
        place("the place for the store", store)?;
        // SAFETY: `read` checks the size that the struct says; the caller gives such a struct or NULL.
        let params = unsafe { params::read("wl_store_params", params) }?;
        let mut options = PrefixStoreOptions::default();
        options.grid = params.grid as usize;
        options.bytes = usize::try_from(params.bytes).unwrap_or(usize::MAX);
        options.directory_bytes = params.directory_bytes;
        if !params.directory.is_null() {
            // SAFETY: the caller gives a path that ends at a zero byte.
            options.directory = Some(unsafe { path(params.directory) }?.into());
        }
        let made = PrefixStore::new(options)?;
        log_notes(&made);
        // SAFETY: checked.
        unsafe { put(store, STORES.add(made)) };
        Ok(())
    })
}

/// Frees a store; NULL is nothing to free. Sessions that have it keep it. The last one waits until its directory is written.
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
        // SAFETY: the caller gives a struct of the size that it says.
        unsafe { params::write("wl_store_stats", stats, value) }
    })
}

/// Forgets all checkpoints, those of the directory too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_clear(store: *mut wl_store) -> wl_status {
    border(|| {
        STORES.get(store)?.clear();
        Ok(())
    })
}

/// Waits until everything that was to be written to the directory has been.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_store_flush(store: *mut wl_store) -> wl_status {
    border(|| {
        let store = STORES.get(store)?;
        store.flush();
        log_notes(&store);
        Ok(())
    })
}

/// Files that were passed over, and those that could not be written, go to the log.
fn log_notes(store: &PrefixStore) {
    for note in store.take_notes() {
        log(wl_log_level::WL_LOG_INFO, || note);
    }
}
