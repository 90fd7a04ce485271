//! Cached tokens of text runs between control tokens: only the new part of a growing history is tokenized.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// Largest size of the cache in bytes.
const MOST: usize = 32 << 20;

/// A run of text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Run {
    /// The text.
    pub text: String,
    /// Whether the run is at the beginning of the complete text.
    pub at_start: bool,
    /// Whether the run is at the beginning of the complete text or follows a control token.
    pub border: bool,
}

/// A cache of runs, which threads may share.
#[derive(Debug, Default)]
pub struct Runs(Mutex<Known>);

#[derive(Debug, Clone, Default)]
struct Known {
    runs: HashMap<Run, Vec<u32>>,
    bytes: usize,
}

impl Runs {
    /// The tokens of a run, if cached.
    pub fn get(&self, run: &Run) -> Option<Vec<u32>> {
        self.known().runs.get(run).cloned()
    }

    /// Stores the tokens of a run: those from the tokenizer, or those that a model generated for the same text.
    pub fn set(&self, run: &Run, tokens: &[u32]) {
        let bytes = run.text.len() + size_of_val(tokens) + 128;
        if bytes > MOST {
            return;
        }
        let mut known = self.known();
        if known.bytes + bytes > MOST {
            *known = Known::default();
        }
        known.bytes += bytes;
        known.runs.insert(run.clone(), tokens.to_vec());
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Runs {
    fn clone(&self) -> Self {
        Runs(Mutex::new(self.known().clone()))
    }
}
