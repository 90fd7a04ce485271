//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use waterline::Canceller;

use crate::error::{Error, Result};

/// Calls `handler` at each Ctrl-C instead of ending the program.
pub fn on_interrupt(handler: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(handler).map_err(|e| Error::usage(format!("cannot watch for Ctrl-C: {e}")))
}

/// Remembers a Ctrl-C for work that goes on in pieces.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches from now on.
    pub fn watch() -> Result<Self> {
        Self::watch_and(|| ())
    }

    /// Watches from now on, and ends what a session is doing at a Ctrl-C.
    pub fn cancelling(canceller: Canceller) -> Result<Self> {
        Self::watch_and(move || canceller.cancel())
    }

    fn watch_and(handler: impl Fn() + Send + 'static) -> Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt(Arc::clone(&seen));
        on_interrupt(move || {
            seen.store(true, Ordering::SeqCst);
            handler();
        })?;
        Ok(interrupt)
    }

    /// An error once Ctrl-C was pressed.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::SeqCst) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}
