//! An allocator that counts the bytes in use. A test that declares this module measures its memory with it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Forwards to the system's allocator and counts the bytes in use.
struct Counting;

/// The bytes in use now.
pub static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The largest number of bytes in use since a test last set it.
pub static MOST_IN_USE: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST_IN_USE.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is forwarded to the system's allocator; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system's.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            more(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract is the system's.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            more(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
