//! The words that a session's kernels and the host share: the grid barrier, the chosen token, and the report of a wait past its deadline.

use std::sync::Arc;

use bytemuck::Zeroable;

use crate::abi::{device_enum, device_struct};
use crate::cuda::driver::{Address, Driver, Memory, Queue};
use crate::error::Result;

device_struct! {
    /// The words in device memory.
    #[derive(Debug, Default)]
    pub(super) struct ControlWords {
        /// Arrivals at this token's grid barriers; 0 between tokens.
        arrivals: u32,
        /// Number of the token.
        token: u32,
        /// The first wait that passed its deadline: a [`Wait`] or 0.
        failure: u32,
        /// The op of that wait.
        op: u32,
        /// The thread block of that wait.
        block: u32,
        /// The chosen token.
        chosen: u32,
    }
}

device_enum! {
    /// The events that a block polls for.
    pub(super) enum Wait("WAIT_") {
        Barrier = 1,
        Mailbox,
    }
}

/// A wait that passed its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A [`Wait`].
    wait: u32,
    /// The op that the thread block was running.
    pub op: u32,
    block: u32,
}

impl Failure {
    /// Describes the failure; `name` is the op's function.
    pub fn describe(&self, name: &str) -> String {
        let wait = match self.wait {
            wait if wait == Wait::Barrier as u32 => "the grid barrier",
            _ => "a value in a mailbox",
        };
        format!(
            "thread block {} waited more than {} s for {wait} in op {} ({name}); the session is lost: open a new one and restore the \
             last snapshot",
            self.block,
            ((deadline() as u64) << 32) / 1_000_000_000,
            self.op
        )
    }
}

/// A session's words in device memory.
pub struct Control(Memory);

impl Control {
    /// Allocates the words and sets them for the first token.
    pub fn new(driver: &Arc<dyn Driver>, queue: &dyn Queue) -> Result<Self> {
        let memory = Memory::new(driver, size_of::<ControlWords>())?;
        let words = ControlWords {
            token: 1,
            ..ControlWords::default()
        };
        queue.write(memory.address(), bytemuck::bytes_of(&words))?;
        Ok(Control(memory))
    }

    /// Returns the address of the words.
    pub fn address(&self) -> Address {
        self.0.address()
    }

    /// Returns the address of the chosen token, a u32.
    pub fn chosen_address(&self) -> Address {
        self.0.address() + std::mem::offset_of!(ControlWords, chosen) as u64
    }

    /// Waits until the device is idle; returns the chosen token, or the failure of the step.
    pub fn read(&self, queue: &dyn Queue) -> Result<std::result::Result<u32, Failure>> {
        let mut words = ControlWords::zeroed();
        queue.read(self.address(), bytemuck::bytes_of_mut(&mut words))?;
        Ok(match words.failure {
            0 => Ok(words.chosen),
            wait => Err(Failure {
                wait,
                op: words.op,
                block: words.block,
            }),
        })
    }
}

/// Time limit of a token's polls, in units of 2^32 ns (4.3 s): polls end between this many units and one more. On a GPU that reads weights
/// from a file, the first token reads the whole file. `WATERLINE_DEADLINE` sets the number of units.
pub(crate) fn deadline() -> usize {
    let named = std::env::var("WATERLINE_DEADLINE").ok();
    let named = named.and_then(|text| text.parse().ok());
    named
        .filter(|units| (1..=1000).contains(units))
        .unwrap_or(3)
}

/// Returns the op that drops a value or an arrival, for tests of deadlines: `WATERLINE_FAULT` in the environment.
pub(crate) fn fault() -> Option<u32> {
    #[cfg(feature = "emulator")]
    if let Some(op) = FAULT.get() {
        return Some(op);
    }
    std::env::var("WATERLINE_FAULT").ok()?.parse().ok()
}

#[cfg(feature = "emulator")]
thread_local! {
    /// Overrides the faulty op for programs that this thread lays out.
    pub static FAULT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}
