//! Cancellation of calls from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a session that is reading, generating or rendering, from another thread or a signal handler.
#[derive(Clone, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Makes the call in progress, or otherwise the next one, end with [`crate::Error::Cancelled`] at a token boundary.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Clears a cancellation that has not taken effect.
    pub fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    #[doc(hidden)]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    #[doc(hidden)]
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}
