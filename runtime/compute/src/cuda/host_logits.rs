//! The logits of a device, as the host sees them.

use std::cell::Cell;

use once_cell::unsync::OnceCell;

use crate::error::Result;

/// The host's copy of the logits, made at the first read after a step, in memory that is allocated once.
pub struct HostLogits {
    logits: OnceCell<Vec<f32>>,
    spare: Cell<Vec<f32>>,
    /// The token with the largest logit (the first of equal ones), if it is known.
    pub next: Option<u32>,
}

impl HostLogits {
    /// Allocates `[vocab]` zeros to fill.
    pub fn new(vocab: usize) -> Self {
        HostLogits {
            logits: OnceCell::new(),
            spare: Cell::new(vec![0.0; vocab]),
            next: None,
        }
    }

    /// Returns the copy; `fill` makes it if it does not exist yet.
    pub fn get(&self, fill: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<&[f32]> {
        let logits = self.logits.get_or_try_init(|| {
            let mut logits = self.spare.take();
            match fill(&mut logits) {
                Ok(()) => Ok(logits),
                Err(error) => {
                    self.spare.set(logits);
                    Err(error)
                }
            }
        });
        logits.map(Vec::as_slice)
    }

    /// Discards the copy, since the logits have changed.
    pub fn forget(&mut self) {
        self.next = None;
        if let Some(logits) = self.logits.take() {
            self.spare.set(logits);
        }
    }
}
