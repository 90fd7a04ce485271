//! Ctrl-C and SIGTERM, which arrive as one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

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
    on_interrupt(move || {
        if std::mem::take(&mut is_first) {
            handler()
        } else {
            std::process::exit(INTERRUPTED.into())
        }
    })
}

/// Remembers a Ctrl-C for work that goes on in pieces.
pub struct Interrupt {
    seen: Arc<AtomicBool>,
    session: Arc<Mutex<Option<Canceller>>>,
}

impl Interrupt {
    /// Watches from now on.
    pub fn watch() -> Result<Self> {
        let interrupt = Interrupt {
            seen: Arc::default(),
            session: Arc::default(),
        };
        let (seen, session) = (Arc::clone(&interrupt.seen), Arc::clone(&interrupt.session));
        on_first_interrupt(move || {
            seen.store(true, Ordering::SeqCst);
            if let Ok(session) = session.lock()
                && let Some(canceller) = &*session
            {
                canceller.cancel();
            }
        })?;
        Ok(interrupt)
    }

    /// Watches from now on, and cancels a session's work at a Ctrl-C.
    pub fn cancelling(canceller: Canceller) -> Result<Self> {
        let interrupt = Self::watch()?;
        interrupt.follow(canceller)?;
        Ok(interrupt)
    }

    /// Cancels another session's work from now on.
    pub fn follow(&self, canceller: Canceller) -> Result<()> {
        if let Ok(mut session) = self.session.lock() {
            *session = Some(canceller);
        }
        self.check()
    }

    /// An error once Ctrl-C was pressed.
    pub fn check(&self) -> Result<()> {
        if self.seen.load(Ordering::SeqCst) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}
