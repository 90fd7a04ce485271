//! Which processor a thread runs on, and how it gets to another one.

/// The processor that the calling thread runs on, where the system says so.
#[cfg(target_os = "linux")]
pub(super) fn current() -> Option<usize> {
    // SAFETY: it takes nothing and has no conditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves the calling thread to any other processor of its affinity mask, which stays as it is. Does nothing where there is none.
#[cfg(target_os = "linux")]
pub(super) fn leave(processor: usize) {
    const BYTES: usize = size_of::<libc::cpu_set_t>();
    if processor >= 8 * BYTES {
        return;
    }
    // SAFETY: `cpu_set_t` is an array of integers, for which zero is a value. The system calls write and read `BYTES` bytes of it, and
    // `CPU_CLR` is given a bit inside it.
    unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, BYTES, &mut mask) != 0 {
            return;
        }
        let mut others = mask;
        libc::CPU_CLR(processor, &mut others);
        // A mask without the processor that a thread runs on moves it at once. An empty one is refused.
        libc::sched_setaffinity(0, BYTES, &others);
        libc::sched_setaffinity(0, BYTES, &mask);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn current() -> Option<usize> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn leave(_processor: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_its_processor_and_keeps_its_mask() {
        let parallelism = || std::thread::available_parallelism().unwrap().get();
        let before = parallelism();
        // It may come back at once, but not always.
        let left = (0..1000).any(|_| {
            let here = current().unwrap();
            leave(here);
            current() != Some(here)
        });
        assert!(left || before == 1);
        leave(usize::MAX);
        assert_eq!(parallelism(), before);
    }
}
