//! Ctrl-C and SIGTERM, which arrive as one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use waterline::Canceller;

use crate::error::{Error, Result};

/// The status of a program that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Calls `handler` at each Ctrl-C, SIGTERM and SIGHUP instead of ending the program.
pub fn on_interrupt(handler: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(handler).map_err(|e| Error::usage(format!("cannot watch for Ctrl-C: {e}")))
}

/// Calls `handler` at the first of them; the second ends the program at once.
pub fn on_first_interrupt(mut handler: impl FnMut() + Send + 'static) -> Result<()> {
    let mut is_first = true;
    on_interrupt(move || match std::mem::take(&mut is_first) {
        true => handler(),
        false => std::process::exit(INTERRUPTED.into()),
    })
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
        on_first_interrupt(move || {
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
