//! The prefix store: checkpoints of states at positions of token sequences, so that no tokens are read twice.
//!
//! The state of a recurrent layer cannot be truncated: it can only be saved at a position. A checkpoint is such a saved state. A history
//! that grew, was edited, lost its thinking text, was forked or is continued by another process resumes from the deepest checkpoint
//! whose tokens are a prefix of it, and only the rest is read ([`crate::Session::read_history`]).
//!
//! **Key.** The model's identity, the shapes of the state tensors without the context (so sessions with different contexts share a
//! store, while another cache type is another key), and all tokens from the beginning. Tokens are compared directly, not by hash.
//!
//! **Grid.** The boundaries between chunks affect the last bits of a state, so reading a history ends its chunks at multiples of
//! [`PrefixStoreOptions::grid`] and at the borders that the caller names, and checkpoints are taken only there. Every state carries its
//! grid, a hash of all positions where a chunk or a step ended ([`crate::Session::grid`]). Two sessions on the same kind of device that
//! have read the same tokens with the same grid are bit-identical, whichever checkpoints they used. With different grids, for example if
//! an answer was generated token by token and another session reads it in chunks, states agree to the accuracy of chunked reading. In
//! exact sessions ([`crate::SessionOptions::exact`]) no bit depends on the grid, so all share one.
//!
//! **Sharing.** Checkpoints form a tree by descent, not by text: a checkpoint's parent is the one from which its session came. A
//! checkpoint holds the rows of full attention's keys and values written since its parent, and full copies of the tensors that are
//! overwritten: recurrent matrices, convolutions, windows, retained sets. Rows of another session with the same tokens may differ in
//! their last bits and are never mixed in. A restored state is bit-identical to the saved one.
//!
//! **When.** At each multiple of the grid in a long prompt; at the end of the system prompt with its tools; at the end of a reading,
//! with logits, so that a fork reads nothing; at the end of an answer. Past the context, a session that drops its oldest tokens takes
//! none.
//!
//! **Eviction.** The bytes in memory, including checkpoints being copied, never exceed [`PrefixStoreOptions::bytes`]: room is made
//! before memory is allocated. The checkpoint with the lowest cost of loss is evicted first: the tokens to read again, divided by its
//! age in uses and by the bytes that it frees. Equally old checkpoints of one long text thin out evenly. Rows stay as long as a
//! descendant needs them.
//!
//! **Directory.** A thread of the store writes the checkpoints at the ends of readings and answers, one file each with the rows since
//! the last ancestor that has a file: temporary file, keyed hash, rename, mode 0600 in a folder of mode 0700. A folder that others may
//! write to is refused, links are not followed, and files without a hash by the folder's key are not used. Files of other models or
//! versions are skipped; so are damaged files and files with invalid counters or values that are not finite, with a note. Processes can
//! share a directory: file names are hashes of the contents, and deleting a file deletes its checkpoint. The model is read for its
//! fingerprint when the first checkpoint is written, or when a file has the tokens of a history.
//!
//! **Cost.** A token costs one multiplication for the grid and the hash of the tokens. A checkpoint costs one copy of its bytes. On a
//! GPU the device copies them to a second buffer, and the host fetches them from there while the device reads the next chunk; the store
//! contains the checkpoint when all bytes have arrived. A lookup compares at most the tokens of the history once for each branch of the
//! tree that shares them. A restore copies the overwritten tensors and those rows that the session does not hold: continuing after an
//! edited last answer takes time that does not depend on the history's length.

mod directory;
mod file;
mod files;
mod keyed;
mod memory;
mod states;
mod tree;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::document::StateFile;
use crate::error::Result;
use directory::Directory;
#[doc(hidden)]
pub use file::{checkpoint_id, seal_checkpoint};
pub(super) use states::Reader;
use states::States;
pub(super) use tree::{Checkpoint, Key, Node, Place, Present, Tree};

/// Options of a prefix store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PrefixStoreOptions {
    /// Largest size in memory; by default a quarter of the machine's memory, at most 8 GiB, or 1 GiB if the system does not report its
    /// memory.
    pub bytes: usize,
    /// Positions between checkpoints of a long prompt; chunks end there. 0, the default, means 256 on a CPU and the chunk length on a
    /// GPU, which reads long prompts slowly in shorter pieces. A history edited in the middle of a long prompt is read again from the
    /// preceding multiple on.
    pub grid: usize,
    /// A folder that also stores checkpoints, for other processes and later runs; none by default.
    pub directory: Option<PathBuf>,
    /// Largest total size of the files in the directory; 4 GiB by default.
    pub directory_bytes: u64,
}

impl Default for PrefixStoreOptions {
    fn default() -> Self {
        PrefixStoreOptions {
            bytes: memory::default_bytes(),
            grid: 0,
            directory: None,
            directory_bytes: 4 << 30,
        }
    }
}

/// The contents of a prefix store and its counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStoreStats {
    /// Number of checkpoints in memory.
    pub checkpoints: usize,
    /// Size of the checkpoints in memory in bytes.
    pub bytes: usize,
    /// Number of checkpoints in the directory that this process has found.
    pub files: usize,
    /// Size of these files in bytes.
    pub file_bytes: u64,
    /// Number of checkpoints evicted from memory.
    pub evicted: u64,
    /// Number of history tokens whose state was reused.
    pub reused_tokens: u64,
    /// Number of history tokens that were read.
    pub read_tokens: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A bounded set of checkpoints that sessions of any models can share.
pub struct PrefixStore {
    tree: Mutex<Tree>,
    directory: Option<Directory>,
    states: States,
    grid: usize,
}

impl PrefixStore {
    /// Creates an empty store, or one with the checkpoints of a directory, which is created if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the directory cannot be created or read.
    pub fn new(options: PrefixStoreOptions) -> Result<Arc<Self>> {
        let directory = match options.directory {
            Some(path) => Some(Directory::open(path, options.directory_bytes)?),
            None => None,
        };
        Ok(Arc::new(PrefixStore {
            tree: Mutex::new(Tree::new(options.bytes)),
            directory,
            states: States::default(),
            grid: options.grid,
        }))
    }

    /// See [`PrefixStoreOptions::grid`].
    pub fn grid(&self) -> usize {
        self.grid
    }

    /// The store's contents and counters.
    pub fn stats(&self) -> PrefixStoreStats {
        let mut stats = self.tree().stats();
        if let Some(directory) = self.directory() {
            (stats.files, stats.file_bytes) = directory.held();
        }
        stats
    }

    /// Removes all checkpoints from memory and deletes their files.
    pub fn clear(&self) {
        self.flush();
        self.tree().clear();
        if let Some(directory) = self.directory() {
            directory.clear();
        }
    }

    /// Takes the notes about failures in the directory since the last call, one sentence each. No failure stops a session.
    pub fn take_notes(&self) -> Vec<String> {
        let mut notes = self.states.take_notes();
        notes.extend(self.directory().iter().flat_map(|it| it.take_notes()));
        notes
    }

    /// Waits until all queued checkpoints have been written to the directory.
    pub fn flush(&self) {
        if let Some(directory) = self.directory() {
            directory.flush();
        }
        self.settle();
    }

    /// The directory. A child process that was forked off does without: it has no thread that writes.
    fn directory(&self) -> Option<&Directory> {
        self.directory
            .as_ref()
            .filter(|directory| directory.is_own())
    }

    /// Locks the checkpoints in memory.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    /// Lets sessions with this key continue from the checkpoints of a state file.
    pub(super) fn offer(&self, key: &Key, file: Arc<StateFile>) {
        self.states.add(key, file);
    }

    /// Loads the deepest checkpoint whose tokens are a prefix of `tokens` from the state files and the directory, if it is deeper than
    /// `position`.
    pub(super) fn load(&self, key: &Key, tokens: &[u32], position: u64, reader: &Reader<'_>) {
        self.states
            .load(&self.tree, (key, tokens, position), reader);
        if let Some(directory) = self.directory() {
            self.settle();
            directory.load(&self.tree, key, tokens, position);
        }
    }

    /// Never loads this file again, because its state does not fit this model.
    pub(super) fn pass_over(&self, file: u64) {
        if let Some(directory) = self.directory() {
            directory.pass_over(file);
        }
    }

    /// Queues the checkpoint at `place` for writing to the directory.
    pub(super) fn keep(&self, place: Place) {
        if let Some(directory) = self.directory() {
            self.settle();
            directory.keep(&mut self.tree(), place);
        }
    }

    /// Marks the nodes of finished files in the tree as written.
    fn settle(&self) {
        if let Some(directory) = self.directory() {
            let mut tree = self.tree();
            for (places, is_there) in directory.take_written() {
                tree.written(&places, is_there);
            }
        }
    }
}
