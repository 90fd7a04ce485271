//! The CPU backend: a thread pool, vector primitives, and what a stage sees while it runs.

mod engine;
mod pool;
mod shared;
pub(crate) mod simd;

pub(crate) use engine::{Buffers, Engine, Frame};
pub use pool::Pool;
pub(crate) use shared::{Shared, SharedArena};

/// Physical cores that this process may use: the default number of threads.
pub fn physical_cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, |n| n.get());
    // Hyper-threads share the memory bandwidth and the vector units that decoding lives on.
    siblings_per_core().map_or(logical, |siblings| (logical / siblings).max(1))
}

/// Hardware threads of the first core, from Linux's topology files; unknown elsewhere.
fn siblings_per_core() -> Option<usize> {
    let list =
        std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
            .ok()?;
    let mut threads = 0;
    for part in list.trim().split(',') {
        threads += match part.split_once('-') {
            Some((first, last)) => {
                last.parse::<usize>()
                    .ok()?
                    .checked_sub(first.parse().ok()?)?
                    + 1
            }
            None => 1,
        };
    }
    Some(threads)
}
