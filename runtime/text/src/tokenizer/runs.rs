//! Cached tokens of text runs between control tokens: only the new part of a growing history is tokenized.

use std::collections::HashMap;

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

/// A cache of runs.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    known: HashMap<Run, Vec<u32>>,
    bytes: usize,
}

impl Runs {
    /// The tokens of a run, if cached.
    pub fn get(&self, run: &Run) -> Option<&[u32]> {
        self.known.get(run).map(Vec::as_slice)
    }

    /// Stores the tokens of a run: those from the tokenizer, or those that a model generated for the same text.
    pub fn set(&mut self, run: Run, tokens: Vec<u32>) {
        let bytes = run.text.len() + tokens.len() * size_of::<u32>() + 128;
        if self.bytes + bytes > MOST {
            (self.known, self.bytes) = (HashMap::new(), 0);
        }
        if bytes <= MOST {
            self.bytes += bytes;
            self.known.insert(run, tokens);
        }
    }
}
