//! The prefix store: checkpoints of states at positions of token sequences, so that nothing is read twice.
//!
//! The state of a recurrent layer cannot be cut: it can only be kept as it was at a position. A checkpoint is such a state. A history
//! that grew, was edited, lost its thinking text, is forked or is continued by another process goes on from the deepest checkpoint
//! whose tokens it begins with, and only the rest is read ([`crate::Session::read_history`]).
//!
//! **Key.** The model's fingerprint, the shapes of the state tensors without the context (so sessions with another context share a
//! store; another type of cached keys is another key), and all tokens from the beginning. Tokens are compared, not hashes of them.
//!
//! **Grid.** How the tokens were cut into chunks decides the last bits of a state, so reading a history ends its chunks at multiples of
//! [`PrefixStoreOptions::grid`] and at the borders that the caller names, and checkpoints are taken only there. Every state carries
//! its grid, one number made of all positions where a chunk or a step ended ([`crate::Session::grid`]). Two sessions on one kind of
//! device that have read the same tokens by the same grid have the same bits, whichever checkpoints they came by. By another grid,
//! as when an answer was generated token by token and a fresh session reads it in chunks, they agree within chunk = steps. In
//! exact sessions ([`crate::SessionOptions::exact`]) no bit depends on the grid, so all have one.
//!
//! **Sharing.** Checkpoints form a tree by descent, not by text: the parent of a checkpoint is the one from which its session came. It
//! holds the rows of full attention's keys and values that were written since its parent, and whole copies of what is overwritten:
//! recurrent matrices, convolutions, windows, retained sets. Rows of another session with the same tokens may have other last bits
//! and are never mixed in. A restored state has the bits of the state that was saved.
//!
//! **When.** Each multiple of the grid in a long prompt; the end of the system prompt with its tools; the end of what was read, with
//! its logits, so that a fork reads nothing; the end of an answer. Past the context of a session whose oldest tokens drop out, none.
//!
//! **Eviction.** The bytes in memory, those being copied included, never exceed [`PrefixStoreOptions::bytes`]: room is made before
//! memory is allocated. The checkpoint goes whose loss costs least: the tokens that would be read again, by its age in uses, by the
//! bytes that it frees. Evenly old checkpoints of one long text thin out evenly. Rows stay as long as a descendant needs them.
//!
//! **Directory.** Checkpoints at the ends of readings and answers are written by a thread of the store, one file each with the rows
//! since the last ancestor that has a file: temporary file, checksum, rename, mode 0600 in a folder of mode 0700. Files of other
//! models or versions are passed over; damaged ones too, with a note. Processes share a directory: names are hashes of what is
//! inside, and a file that is gone is a checkpoint that is gone.
//!
//! **Cost.** A token costs nothing but one multiplication for the grid and the hash of what was read. A checkpoint costs one copy of its
//! bytes. On a GPU the device copies them to a second place, and the host fetches them from there while the device reads the next chunk;
//! the store has the checkpoint when all bytes are there. Finding one compares at most the tokens of the history once for each branch of
//! the tree that shares them. Restoring one copies the overwritten tensors, and of the rows those that the session does not hold: an edited
//! last answer goes on in time that does not depend on the history's length.

mod directory;
mod file;
mod files;
mod memory;
mod tree;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use directory::Directory;
#[doc(hidden)]
pub use file::checkpoint_id;
pub(super) use tree::{Checkpoint, Key, Node, Place, Present, Tree};

/// Options of a prefix store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PrefixStoreOptions {
    /// Most bytes in memory; by default a quarter of the machine's memory, but 8 GiB at most, and 1 GiB where the system does not
    /// say how much that is.
    pub bytes: usize,
    /// Positions between checkpoints of a long prompt, whose chunks end there; 0, the default, means 256 on a CPU
    /// and a chunk on a GPU, which reads long prompts slowly in shorter pieces. A history that was edited in the middle of its long prompt is
    /// read again from the multiple before.
    pub grid: usize,
    /// A folder where checkpoints are kept too, for other processes and later runs; none by default.
    pub directory: Option<PathBuf>,
    /// Most bytes of files in the directory; 4 GiB by default.
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

/// The contents of a prefix store and its work so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixStoreStats {
    /// Checkpoints in memory.
    pub checkpoints: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Checkpoints in the directory, as far as this process knows them.
    pub files: usize,
    /// Bytes of these files.
    pub file_bytes: u64,
    /// Checkpoints that were evicted from memory.
    pub evicted: u64,
    /// Tokens of histories that were not read again.
    pub reused_tokens: u64,
    /// Tokens of histories that were read.
    pub read_tokens: u64,
}

/// A bounded set of checkpoints that the sessions of any models share.
pub struct PrefixStore {
    tree: Mutex<Tree>,
    directory: Option<Directory>,
    grid: usize,
}

impl PrefixStore {
    /// An empty store, or one with the checkpoints of a directory, which is made if it does not exist.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the directory cannot be made or read.
    pub fn new(options: PrefixStoreOptions) -> Result<Arc<Self>> {
        let directory = match options.directory {
            Some(path) => Some(Directory::open(path, options.directory_bytes)?),
            None => None,
        };
        Ok(Arc::new(PrefixStore {
            tree: Mutex::new(Tree::new(options.bytes)),
            directory,
            grid: options.grid,
        }))
    }

    /// [`PrefixStoreOptions::grid`].
    pub fn grid(&self) -> usize {
        self.grid
    }

    /// Its contents and its work so far.
    pub fn stats(&self) -> PrefixStoreStats {
        let mut stats = self.tree().stats();
        if let Some(directory) = &self.directory {
            (stats.files, stats.file_bytes) = directory.held();
        }
        stats
    }

    /// Forgets all checkpoints in memory, and removes their files.
    pub fn clear(&self) {
        self.flush();
        self.tree().clear();
        if let Some(directory) = &self.directory {
            directory.clear();
        }
    }

    /// Failures in the directory since the last call, a sentence each. None of them stops a session.
    pub fn take_notes(&self) -> Vec<String> {
        self.directory
            .as_ref()
            .map_or_else(Vec::new, Directory::take_notes)
    }

    /// Waits until everything that was to be written to the directory has been.
    pub fn flush(&self) {
        if let Some(directory) = &self.directory {
            directory.flush();
        }
        self.settle();
    }

    /// The checkpoints in memory.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads from the directory the deepest checkpoint that `tokens` begin with, if it is deeper than `position`.
    pub(super) fn load(&self, key: Key, tokens: &[u32], position: u64) {
        if let Some(directory) = &self.directory {
            self.settle();
            directory.load(&self.tree, key, tokens, position);
        }
    }

    /// Never loads the file again: its state cannot be this model's.
    pub(super) fn pass_over(&self, file: u64) {
        if let Some(directory) = &self.directory {
            directory.pass_over(file);
        }
    }

    /// Has the checkpoint at `place` written to the directory.
    pub(super) fn keep(&self, place: Place) {
        if let Some(directory) = &self.directory {
            self.settle();
            directory.keep(&mut self.tree(), place);
        }
    }

    /// Files that were written become known to their checkpoints.
    fn settle(&self) {
        if let Some(directory) = &self.directory {
            let mut tree = self.tree();
            for (places, is_there) in directory.take_written() {
                tree.written(&places, is_there);
            }
        }
    }
}
