//! The processor that a thread runs on, and moving a thread to another processor.

/// The processor that the calling thread runs on; `None` if the system does not report it.
#[cfg(target_os = "linux")]
pub(super) fn current() -> Option<usize> {
    // SAFETY: the call takes no arguments and has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves the calling thread to any other processor of its affinity mask, and leaves the mask unchanged. Does nothing if there is no other.
#[cfg(target_os = "linux")]
pub(super) fn leave(processor: usize) {
    const BYTES: usize = size_of::<libc::cpu_set_t>();
    if processor >= 8 * BYTES {
        return;
    }
    // SAFETY: `cpu_set_t` is an array of integers, for which zero is valid. The system calls write and read `BYTES` bytes of it, and the
    // bit given to `CPU_CLR` is inside it.
    unsafe {
        let mut mask: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, BYTES, &mut mask) != 0 {
            return;
        }
        let mut others = mask;
        libc::CPU_CLR(processor, &mut others);
        // The kernel moves a thread at once if its mask lacks its current processor. An empty mask is refused.
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
        // The scheduler may move the thread back at once, but not every time.
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
