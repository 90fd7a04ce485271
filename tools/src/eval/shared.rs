//! Documents with shared beginnings: a session reads the beginning that two consecutive documents share only once.

use std::ops::Range;

use waterline::Session;

use super::likelihood::surprise;
use crate::error::Result;

/// Minimum length of a shared beginning; shorter ones are read again.
const LEAST_SHARED: usize = 16;

/// Reads documents one after another.
pub struct Reader {
    session: Session,
    /// The tokens of the last document. `costs` holds the bits of each of them but the first.
    before: Vec<u32>,
    costs: Vec<f64>,
    /// Number of tokens that were not read again.
    pub shared: usize,
}

impl Reader {
    pub fn new(session: Session) -> Self {
        Reader {
            session,
            before: Vec::new(),
            costs: Vec::new(),
            shared: 0,
        }
    }

    /// Returns -log2(probability) of each token but the first. Takes a checkpoint where `next`, the document after this
    /// one, diverges.
    pub fn bits(&mut self, tokens: &[u32], next: &[u32]) -> Result<&[f64]> {
        let end = tokens.len().saturating_sub(1);
        let shared = shared(&tokens[..end], &self.before);
        let branch = self::shared(&tokens[..end], next);
        self.shared += self.session.read_history(&tokens[..shared])?.reused;
        self.costs.truncate(shared.saturating_sub(1));
        if shared > 0 {
            let logits = self.session.logits()?;
            self.costs.push(surprise(logits, tokens[shared]));
        }
        if branch > shared {
            self.feed(tokens, shared..branch)?;
            self.session.checkpoint()?;
        }
        self.feed(tokens, branch.max(shared)..end)?;
        self.before = tokens.to_vec();
        Ok(&self.costs)
    }

    fn feed(&mut self, tokens: &[u32], range: Range<usize>) -> Result<()> {
        let (costs, start) = (&mut self.costs, range.start);
        self.session.feed_each(&tokens[range], |index, logits| {
            costs.push(surprise(logits, tokens[start + index + 1]));
        })?;
        Ok(())
    }
}

/// The number of tokens that two documents have in common at their beginning, or 0 if they are few.
fn shared(one: &[u32], other: &[u32]) -> usize {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    if same < LEAST_SHARED { 0 } else { same }
}
