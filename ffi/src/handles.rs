//! Handles: numbers that look like pointers. Each number is issued once, so a freed handle is always recognized. Numbers are odd, so they
//! never equal the address of an aligned object. A handle is never dereferenced.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::status::{Failure, Outcome, wl_status};

/// The live handles of one kind. A tree rather than a hash table, because an empty tree holds no memory: a program that frees everything
/// leaks nothing.
pub(crate) struct Handles<T> {
    kind: &'static str,
    live: RwLock<BTreeMap<usize, Arc<T>>>,
}

/// Counts the handles of all kinds, so that a handle of another kind is detected too.
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl<T> Handles<T> {
    pub const fn new(kind: &'static str) -> Self {
        Handles {
            kind,
            live: RwLock::new(BTreeMap::new()),
        }
    }

    /// Issues a handle for `value`.
    pub fn add<H>(&self, value: T) -> *mut H {
        let handle = 2 * COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.insert(handle, Arc::new(value));
        std::ptr::without_provenance_mut(handle)
    }

    /// Returns the object of `handle`.
    pub fn get<H>(&self, handle: *const H) -> Outcome<Arc<T>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let value = live.get(&handle.addr()).cloned();
        value.ok_or_else(|| self.unknown(handle.addr()))
    }

    /// Removes `handle` and returns its object.
    pub fn remove<H>(&self, handle: *const H) -> Outcome<Arc<T>> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        let value = live.remove(&handle.addr());
        value.ok_or_else(|| self.unknown(handle.addr()))
    }

    fn unknown(&self, handle: usize) -> Failure {
        let kind = self.kind;
        let given = COUNT.load(Ordering::Relaxed);
        let sentence = match handle {
            0 => format!("the {kind} is NULL"),
            handle if handle % 2 == 1 && handle / 2 < given => {
                format!("the {kind} was freed, or is a handle of another kind")
            }
            _ => format!("the {kind} is not a handle of this library"),
        };
        Failure::new(wl_status::WL_ERROR_HANDLE, sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_known_until_it_is_removed_and_never_given_out_again() {
        static NUMBERS: Handles<u32> = Handles::new("number");
        let first: *mut u8 = NUMBERS.add(7);
        assert_eq!(*NUMBERS.get(first).expect("it is live"), 7);
        assert_eq!(*NUMBERS.remove(first).expect("it is live"), 7);
        assert!(NUMBERS.remove(first).is_err());
        let second: *mut u8 = NUMBERS.add(8);
        assert_ne!(first, second);
        let said = NUMBERS.get(first).unwrap_err().sentence;
        assert!(said.contains("was freed"), "{said}");
        let elsewhere = &raw const said;
        let said = NUMBERS.get(elsewhere).unwrap_err().sentence;
        assert!(said.contains("not a handle"), "{said}");
    }
}
