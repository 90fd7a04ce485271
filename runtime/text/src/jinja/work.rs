use std::time::Instant;

use super::{Failure, Outcome};
use crate::cancel::Canceller;

/// Work budget of a rendering in units: about one per byte that is read, written or allocated. A real conversation needs less than a
/// hundredth of it.
pub(crate) const MAX_WORK: u64 = 1 << 27;
/// Units added per unit that the variables take: a template reads, trims, splits and writes a content a few times.
const GROWTH: usize = 16;
/// Deepest nesting of evaluations: expressions, statements and macro calls together. Each takes less than 4 KiB of stack.
pub const MAX_DEPTH: usize = 1_200;
/// Units of work for one node of the template.
pub(crate) const NODE: usize = 16;
/// Units of work for one element of a list or a mapping, which is also about its size in bytes.
pub(crate) const ELEMENT: usize = 32;
/// Units between two checks of the clock and of cancellation: less than 10 ms.
const CLOCK: u64 = 1 << 20;

/// The work budget of a rendering. Every read, write and allocation is charged first, so one number bounds a template's time and memory.
pub struct Work {
    left: u64,
    clock_at: u64,
    deadline: Instant,
    canceller: Canceller,
    depth: usize,
}

impl Work {
    /// Creates a full budget that expires at `deadline` or on cancellation.
    pub fn new(deadline: Instant, canceller: &Canceller) -> Self {
        Work {
            left: MAX_WORK,
            clock_at: MAX_WORK,
            deadline,
            canceller: canceller.clone(),
            depth: 0,
        }
    }

    /// Charges `units` of work before the work is done.
    pub(crate) fn spend(&mut self, units: usize) -> Outcome<()> {
        self.left = match self.left.checked_sub(units as u64) {
            Some(left) => left,
            None => return Err(Failure::limit("it does more work than allowed")),
        };
        if self.left < self.clock_at {
            self.clock_at = self.left.saturating_sub(CLOCK);
            if Instant::now() > self.deadline {
                return Err(Failure::limit("it takes too long"));
            }
            if self.canceller.is_set() {
                return Err(Failure::limit("it was cancelled"));
            }
        }
        Ok(())
    }

    /// Adds room for reading the variables, which are all that has been charged. Returns their units.
    pub(crate) fn grow(&mut self) -> usize {
        let variables = (MAX_WORK - self.left) as usize;
        self.left = MAX_WORK + (variables * GROWTH) as u64;
        self.clock_at = self.left;
        variables
    }

    /// Charges `units` for each of `count` items.
    pub(crate) fn spend_each(&mut self, count: usize, units: usize) -> Outcome<()> {
        self.spend(count.saturating_mul(units))
    }

    /// Enters one level of nesting.
    pub fn enter(&mut self) -> Outcome<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(Failure::limit("it nests too deeply"))
        } else {
            self.spend(NODE)
        }
    }

    /// Leaves a level of nesting.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }
}
