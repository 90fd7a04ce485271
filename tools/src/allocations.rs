//! Counts allocations, so that `bench` can report the number per token, and gives free memory back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations so far, by all threads.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Gives free memory back to the system. glibc keeps what threads have freed between allocations that remain.
#[cfg(all(feature = "serve", target_os = "linux", target_env = "gnu"))]
pub fn return_free_memory() {
    // SAFETY: the signature is that in glibc's header, and the function may be called at any time.
    unsafe extern "C" {
        safe fn malloc_trim(left: usize) -> i32;
    }
    malloc_trim(0);
}

#[cfg(all(feature = "serve", not(all(target_os = "linux", target_env = "gnu"))))]
pub fn return_free_memory() {}

/// The system's allocator with a counter.
struct Counting;

/// From this size on, a failed allocation is reported to the caller: the library allocates weights, states and working memory
/// fallibly. Tables of tokenizers are smaller.
const LARGE: usize = 16 << 20;

/// Returns the system's result. A smaller failed allocation ends the program with a message, since few callers could handle it.
fn given(pointer: *mut u8, bytes: usize) -> *mut u8 {
    if pointer.is_null() && bytes < LARGE {
        end_without_memory();
    }
    pointer
}

/// Writes a constant sentence and exits without destructors, because nothing can be allocated here.
#[cfg(unix)]
fn end_without_memory() -> ! {
    // SAFETY: the signatures are those in POSIX.
    unsafe extern "C" {
        fn write(file: i32, bytes: *const u8, count: usize) -> isize;
        safe fn _exit(status: i32) -> !;
    }
    const SENTENCE: &[u8] = b"waterline: the system refuses memory; choose a smaller context, or give the program more\n";
    // SAFETY: the pointer and the length are those of the sentence. Standard error may be closed, which does no harm.
    unsafe { write(2, SENTENCE.as_ptr(), SENTENCE.len()) };
    _exit(1)
}

#[cfg(not(unix))]
fn end_without_memory() -> ! {
    std::process::abort()
}

fn add_one() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: all calls go to the system's allocator; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller's contract is that of the system's allocator.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller's contract is that of the system's allocator.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add_one();
        // SAFETY: the caller's contract is that of the system's allocator.
        given(unsafe { System.realloc(pointer, layout, size) }, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_is_counted() {
        let before = count();
        drop(std::hint::black_box(vec![1u8; 100]));
        // Other tests allocate as well.
        assert!(count() > before);
    }
}
