//! Handling of Ctrl-C, SIGTERM and SIGHUP, which are treated alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use waterline::Canceller;

use crate::error::{Error, Result};

/// Exit status of an interrupted program.
pub const INTERRUPTED: u8 = 130;

/// Calls `handler` at each Ctrl-C, SIGTERM and SIGHUP instead of ending the program.
pub fn on_interrupt(handler: impl FnMut() + Send + 'static) -> Result<()> {
    ctrlc::set_handler(handler).map_err(|e| Error::usage(format!("cannot watch for Ctrl-C: {e}")))
}

/// Calls `handler` at the first of these signals. The second signal ends the program at once.
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

/// Records a Ctrl-C, for work that is done in pieces.
pub struct Interrupt {
    seen: Arc<AtomicBool>,
    session: Arc<Mutex<Option<Canceller>>>,
}

impl Interrupt {
    /// Watches for signals from now on.
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

    /// Watches for signals from now on, and cancels a session's work at the first one.
    pub fn cancelling(canceller: Canceller) -> Result<Self> {
        let interrupt = Self::watch()?;
        interrupt.follow(canceller)?;
        Ok(interrupt)
    }

    /// Cancels the work of another session from now on.
    pub fn follow(&self, canceller: Canceller) -> Result<()> {
        if let Ok(mut session) = self.session.lock() {
            *session = Some(canceller);
        }
        self.check()
    }

    /// Returns an error once Ctrl-C was pressed.
    pub fn check(&self) -> Result<()> {
        if self.seen.load(Ordering::SeqCst) {
            Err(Error::Interrupted)
        } else {
            Ok(())
        }
    }
}
