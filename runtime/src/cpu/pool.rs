//! A pool of threads that spin between the short parallel regions of a token and sleep between tokens.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::physical_cores;

/// How long an idle worker spins before it sleeps: longer than the serial part between two stages.
const SPIN: Duration = Duration::from_micros(200);

type Job = *const (dyn Fn(usize) + Sync);

struct State {
    /// Counts regions; a change is the signal to start.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// Workers that have not finished the region.
    running: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleeping: Vec<AtomicBool>,
}

// SAFETY: `job` is written only by the region's owner while `running` is zero, and read by workers only after the
// epoch, stored with release ordering after it, has changed.
unsafe impl Sync for State {}
// SAFETY: the job pointer is used only while `Pool::run` keeps its target alive.
unsafe impl Send for State {}

/// Threads for parallel regions. Shared by all sessions of a model; regions of different sessions take turns.
pub struct Pool {
    state: Arc<State>,
    workers: Vec<(JoinHandle<()>, Thread)>,
    region: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; 0 means one for each physical core.
    pub fn new(threads: usize) -> Self {
        let threads = if threads == 0 {
            physical_cores()
        } else {
            threads
        };
        let state = Arc::new(State {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleeping: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let workers = (1..threads)
            .filter_map(|index| {
                let state = Arc::clone(&state);
                let builder = std::thread::Builder::new().name(format!("waterline-{index}"));
                builder.spawn(move || work(&state, index)).ok()
            })
            .map(|handle| {
                let thread = handle.thread().clone();
                (handle, thread)
            })
            .collect();
        let pool = Pool {
            state,
            workers,
            region: Mutex::new(()),
        };
        // A thread allocates while it starts: afterwards nothing here does.
        pool.run(&|_| ());
        pool
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(worker)` once on every thread and returns when all have finished.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _turn = self
            .region
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: only the lifetime is erased; workers use the pointer before they count `running` down, and this
        // function does not return until it is zero.
        let erased: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: `running` is zero and the region lock is held, so nobody reads the cell now.
        unsafe { *self.state.job.get() = Some(erased) };
        self.state
            .running
            .store(self.workers.len(), Ordering::Relaxed);
        self.state.epoch.fetch_add(1, Ordering::SeqCst);
        for (asleep, (_, thread)) in self.state.sleeping.iter().zip(&self.workers) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        let mut spins = 0u32;
        while self.state.running.load(Ordering::Acquire) != 0 {
            spins += 1;
            // With more runnable threads than cores a worker may need this core to finish.
            if spins.is_multiple_of(4096) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(
            !self.state.panicked.swap(false, Ordering::Relaxed),
            "a worker panicked"
        );
    }

    /// Runs `task(worker, index)` for every index below `count`, handed out as threads become free.
    pub fn each(&self, count: usize, task: impl Fn(usize, usize) + Sync) {
        if count == 1 {
            return task(0, 0);
        }
        let next = AtomicUsize::new(0);
        self.run(&|worker| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                task(worker, index);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        self.state.epoch.fetch_add(1, Ordering::SeqCst);
        for (handle, thread) in self.workers.drain(..) {
            thread.unpark();
            // A worker's panic was reported by the region that it happened in.
            let _ = handle.join();
        }
    }
}

fn work(state: &State, index: usize) {
    let mut seen = 0;
    loop {
        seen = wait(state, index, seen);
        if state.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch changed, so `run` has stored the job and keeps it alive until `running` is zero.
        let outcome = unsafe {
            let job = (*state.job.get()).expect("a region has a job");
            catch_unwind(AssertUnwindSafe(|| (*job)(index)))
        };
        if outcome.is_err() {
            state.panicked.store(true, Ordering::Relaxed);
        }
        state.running.fetch_sub(1, Ordering::Release);
    }
}

/// Waits until the epoch differs from `seen` and returns it.
fn wait(state: &State, index: usize, seen: usize) -> usize {
    let since = Instant::now();
    loop {
        for _ in 0..256 {
            let epoch = state.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                return epoch;
            }
            std::hint::spin_loop();
        }
        if since.elapsed() > SPIN {
            let asleep = &state.sleeping[index - 1];
            asleep.store(true, Ordering::SeqCst);
            if state.epoch.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_runs_once_in_many_regions() {
        let pool = Pool::new(3);
        for round in 0..2000 {
            let hits: Vec<AtomicUsize> = (0..17).map(|_| AtomicUsize::new(0)).collect();
            pool.each(hits.len(), |_, i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                hits.iter().all(|h| h.load(Ordering::Relaxed) == 1),
                "round {round}"
            );
        }
    }

    #[test]
    fn a_panic_in_a_worker_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(&|worker| assert!(worker == 0, "planted"))
        }));
        assert!(outcome.is_err());
        let count = AtomicUsize::new(0);
        pool.run(&|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 2);
    }

    #[test]
    fn sessions_on_several_threads_share_a_pool() {
        let pool = Pool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let sum = AtomicUsize::new(0);
                        pool.each(10, |_, i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 45);
                    }
                });
            }
        });
    }
}
