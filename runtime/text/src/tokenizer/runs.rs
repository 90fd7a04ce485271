//! Runs of text between control tokens, with the tokens that they are: a history that grows is tokenized where it is new.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Bytes of runs and tokens that are remembered.
const MOST: usize = 32 << 20;

/// A run of text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Run {
    /// The text.
    pub text: String,
    /// True if it begins the whole.
    pub at_start: bool,
    /// True if it begins the whole or follows a control token.
    pub border: bool,
}

/// Runs that were seen before.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    known: HashMap<Run, Vec<u32>>,
    bytes: usize,
}

impl Runs {
    /// The tokens of a run, if they are known.
    pub fn get(&self, run: &Run) -> Option<&[u32]> {
        self.known.get(run).map(Vec::as_slice)
    }

    /// Remembers the tokens of a run: those that the tokenizer gives, or those of the same text that a model has generated.
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
