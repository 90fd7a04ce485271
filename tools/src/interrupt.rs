//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        let seen = Arc::new(AtomicBool::new(false));
        let handler = Arc::clone(&seen);
        on_interrupt(move || handler.store(true, Ordering::SeqCst))?;
        Ok(Interrupt(seen))
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
