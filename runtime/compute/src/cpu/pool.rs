//! A thread pool for the short parallel regions of a token, on a machine that other programs use too.
//!
//! A region ends when its tasks are done. It never waits for a worker that has not entered it: other threads run the tasks of that worker,
//! and its offer is withdrawn.
//!
//! # Protocol
//! Every worker has one atomic word:
//!
//! | from | to | by | meaning |
//! |---|---|---|---|
//! | `IDLE` | `OFFERED` | owner of the region | the worker may enter the job |
//! | `OFFERED` | `BUSY` | worker | it has entered: the region now waits for it |
//! | `OFFERED` | `IDLE` | owner | withdrawn: the worker can no longer enter |
//! | `BUSY` | `AWAITED` | owner | it has spun for [`PATIENCE`] and parks |
//! | `BUSY`, `AWAITED` | `IDLE` | worker | it has left and does not read the job again; a waiting owner is unparked |
//! | any but `BUSY`, `AWAITED` | `STOP` | the pool's drop | the thread ends |
//!
//! The job is a borrowed closure with an erased lifetime. It is read only between `BUSY` and the following `IDLE`. `OFFERED` changes either
//! to `BUSY` or to `IDLE`, never to both, since both changes are compare-and-swap operations on one word. The owner returns only when no
//! word is `OFFERED`, `BUSY` or `AWAITED`, so no worker, however late, reads the closure after its region. The cell that holds the job is
//! written only by the owner of the region lock, before its offers, when no word has one of these three values. Only the owner of the
//! region lock changes an `IDLE` word, so an offer is a plain store: with 16 threads, the stores of all offers take less time than two
//! compare-and-swap operations on cache lines of other cores.
//!
//! A worker that has spun for [`SPIN`] sets `asleep`, then checks its word once more, and parks. The owner stores its offers, then checks
//! `asleep`. Both put a fence between their two steps, so either the worker finds the offer or the owner unparks the worker.
//!
//! A child made by fork(2) has no workers: its offers are withdrawn, or, if a region was open in the parent, its region lock stays locked.
//! In both cases the calling thread runs all tasks.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::cores::physical_cores;
use super::processor;
use crate::error::{Error, Result};

/// How long an idle worker spins before it parks: longer than the serial part between two regions.
const SPIN: Duration = Duration::from_micros(200);
/// How long the owner of a region spins for a worker before it parks. A parked owner keeps its share of a core that another program also
/// uses, and gets it as soon as the worker is done.
const PATIENCE: Duration = Duration::from_micros(200);
/// Largest number of threads in a pool.
const MAX_THREADS: usize = 1024;
/// Upper bound on the bytes that a thread maps while it starts: its stack, then its signal stack.
const THREAD_BYTES: usize = 4 << 20;
/// Bytes that glibc maps for a thread's heap, if available, after its stack and before its signal stack.
const HEAP_BYTES: usize = 64 << 20;

/// Marks an unknown processor.
const NOWHERE: usize = usize::MAX;

const STARTING: u32 = 0;
const IDLE: u32 = 1;
const OFFERED: u32 = 2;
const BUSY: u32 = 3;
const AWAITED: u32 = 4;
const STOP: u32 = 5;

type Job = *const (dyn Fn(usize) + Sync);
type Panic = Box<dyn Any + Send>;

/// State of one thread. Its tasks have their own pair of cache lines, since other threads that look for work read them while this thread
/// polls its word.
#[repr(align(128))]
struct Lane {
    /// State of the worker; unused in the caller's lane.
    word: AtomicU32,
    /// Set while the worker is about to park, and while it is parked.
    asleep: AtomicBool,
    tasks: Tasks,
}

/// The range of unclaimed tasks: the first index in the high half, the end in the low half.
#[repr(align(128))]
struct Tasks(AtomicU64);

impl Lane {
    fn deal(&self, first: usize, end: usize) {
        let range = (first as u64) << 32 | end as u64;
        self.tasks.0.store(range, Ordering::Relaxed);
    }

    /// Claims the first task (as the lane's owner does) or the last task (as a thief does).
    fn claim(&self, from_front: bool) -> Option<usize> {
        let mut range = self.tasks.0.load(Ordering::Relaxed);
        loop {
            let (first, end) = (range >> 32, range & u64::from(u32::MAX));
            if first >= end {
                return None;
            }
            let (task, rest) = if from_front {
                (first, (first + 1) << 32 | end)
            } else {
                (end - 1, range - 1)
            };
            // Relaxed: only task numbers are transferred here. The lanes' words order the data that tasks read and write.
            let order = Ordering::Relaxed;
            match self
                .tasks
                .0
                .compare_exchange_weak(range, rest, order, order)
            {
                Ok(_) => return Some(task as usize),
                Err(found) => range = found,
            }
        }
    }
}

struct State {
    /// Lane 0 is the caller's; the others are the workers'.
    lanes: Vec<Lane>,
    job: UnsafeCell<Option<Job>>,
    /// The first panic of a worker in the current region.
    panic: Mutex<Option<Panic>>,
    /// The thread that the worker of an `AWAITED` word must unpark.
    owner: Mutex<Option<Thread>>,
    /// The processor of the owner when it last woke a worker; `NOWHERE` if the system does not report it.
    owner_processor: AtomicUsize,
}

// SAFETY: `job` is accessed only under the protocol above, which orders every write before every read.
unsafe impl Sync for State {}
// SAFETY: the pointer in `job` is used only while the region that stored it keeps its target alive.
unsafe impl Send for State {}

impl State {
    /// Claims a task for this worker: from its share, or else a task that another worker has not started.
    fn claim(&self, worker: usize) -> Option<usize> {
        let (before, from) = self.lanes.split_at(worker);
        let own = from[0].claim(true);
        own.or_else(|| {
            let mut others = from[1..].iter().chain(before);
            others.find_map(|lane| lane.claim(false))
        })
    }

    fn panic(&self) -> MutexGuard<'_, Option<Panic>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self) -> MutexGuard<'_, Option<Thread>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the unclaimed tasks.
    fn abandon(&self) {
        self.lanes.iter().for_each(|lane| lane.deal(0, 0));
    }
}

/// Threads for parallel regions, shared by all sessions of a model. While one session has a region open, regions of other sessions run on
/// their calling threads.
pub struct Pool {
    state: Arc<State>,
    workers: Vec<(JoinHandle<()>, Thread)>,
    /// Held while a region is open.
    region: Mutex<()>,
    process: u32,
}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller's, at most 1024; 0 means [`physical_cores`].
    ///
    /// # Errors
    /// [`Error::Memory`] if a thread cannot be started.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = match threads {
            0 => physical_cores(),
            1..=MAX_THREADS => threads,
            _ => return Err(Error::invalid("threads", "must be 1 to 1024")),
        };
        let lane = || Lane {
            word: AtomicU32::new(STARTING),
            asleep: AtomicBool::new(false),
            tasks: Tasks(AtomicU64::new(0)),
        };
        let mut pool = Pool {
            state: Arc::new(State {
                lanes: (0..threads).map(|_| lane()).collect(),
                job: UnsafeCell::new(None),
                panic: Mutex::new(None),
                owner: Mutex::new(None),
                owner_processor: AtomicUsize::new(NOWHERE),
            }),
            workers: Vec::with_capacity(threads - 1),
            region: Mutex::new(()),
            process: std::process::id(),
        };
        for index in 1..threads {
            if let Err(reason) = pool.start(index) {
                // Dropping the pool frees the stacks, which leaves memory for the error message.
                drop(pool);
                let what = format!("thread {} of {threads} ({reason})", index + 1);
                return Err(Error::memory(what, "choose fewer threads"));
            }
        }
        Ok(pool)
    }

    /// Starts worker `index` and returns when it runs: a thread allocates while it starts, and never afterwards.
    fn start(&mut self, index: usize) -> std::io::Result<()> {
        // If the new thread could not map its signal stack, it would abort the process.
        let room = |bytes| Vec::<u8>::new().try_reserve_exact(bytes);
        room(THREAD_BYTES)?;
        if room(HEAP_BYTES - THREAD_BYTES).is_ok() {
            room(HEAP_BYTES + THREAD_BYTES)?;
        }
        let (state, caller) = (Arc::clone(&self.state), std::thread::current());
        let builder = std::thread::Builder::new().name(format!("waterline-{index}"));
        let handle = builder.spawn(move || {
            state.lanes[index].word.store(IDLE, Ordering::Release);
            caller.unpark();
            work(&state, index);
        })?;
        let thread = handle.thread().clone();
        self.workers.push((handle, thread));
        while self.state.lanes[index].word.load(Ordering::Acquire) == STARTING {
            std::thread::park();
        }
        Ok(())
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(worker, index)` once for every index below `count` and returns when all have finished. `worker` is below
    /// [`Pool::threads`], and no two tasks that run at the same time in one region have the same `worker`.
    ///
    /// The indices are divided equally among the threads, in the same way for each region of `count` tasks. A thread that has finished its
    /// share takes tasks from others.
    ///
    /// # Panics
    /// If a task panics, with its payload; tasks that have not started are then dropped.
    pub fn each(&self, count: usize, task: impl Fn(usize, usize) + Sync) {
        self.each_of(count, &task);
    }

    /// Takes a trait object, so that this function is compiled only once.
    fn each_of(&self, count: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let alone = || (0..count).for_each(|index| task(0, index));
        if count <= 1 || self.workers.is_empty() {
            return alone();
        }
        let region = match self.region.try_lock() {
            Ok(region) => region,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another session has a region open: this thread would only wait.
            Err(TryLockError::WouldBlock) => return alone(),
        };
        let threads = self.threads();
        assert!(count <= u32::MAX as usize, "{count} tasks");
        for (index, lane) in self.state.lanes.iter().enumerate() {
            lane.deal(count * index / threads, count * (index + 1) / threads);
        }
        let job = |worker| {
            while let Some(index) = self.state.claim(worker) {
                task(worker, index);
            }
        };
        self.offer(&job);
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        if mine.is_err() {
            self.state.abandon();
        }
        self.close();
        // Taken before the region lock is released: later, the panic could be one of the next region.
        let theirs = self.state.panic().take();
        drop(region);
        match (mine, theirs) {
            (Err(panic), other) => {
                // Dropping a payload may panic again.
                std::mem::forget(other);
                resume_unwind(panic)
            }
            (Ok(()), Some(panic)) => resume_unwind(panic),
            (Ok(()), None) => (),
        }
    }

    /// Offers `job` to the workers. [`Pool::close`] must be called before `job` ends.
    fn offer(&self, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is erased; `close` ends every use of the pointer.
        let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: the region lock is held and no word is `OFFERED`, `BUSY` or `AWAITED`, so no thread reads the cell now.
        unsafe { *self.state.job.get() = Some(job) };
        let workers = &self.state.lanes[1..];
        for lane in workers {
            lane.word.store(OFFERED, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        for (lane, (_, thread)) in workers.iter().zip(&self.workers) {
            if lane.asleep.load(Ordering::Relaxed) {
                let here = processor::current().unwrap_or(NOWHERE);
                (self.state.owner_processor).store(here, Ordering::Relaxed);
                thread.unpark();
            }
        }
    }

    /// Withdraws the offers that no worker has taken and waits for the workers that took theirs.
    fn close(&self) {
        let workers = &self.state.lanes[1..];
        for lane in workers {
            // Most workers have entered by now: a plain read leaves the cache line of the word with its worker.
            if lane.word.load(Ordering::Relaxed) == OFFERED {
                let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
                // Fails if the worker has just entered; the loop below then waits for it.
                let _ = (lane.word).compare_exchange(OFFERED, IDLE, success, failure);
            }
        }
        let begin = Instant::now();
        for lane in workers {
            let mut spins = 0u32;
            // Acquire: the worker's writes in the region are visible once it has left.
            while lane.word.load(Ordering::Acquire) == BUSY {
                spins += 1;
                if spins.is_multiple_of(64) && begin.elapsed() > PATIENCE {
                    self.sleep_until_idle(&lane.word);
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Parks until the worker of `word`, which was `BUSY`, has left.
    fn sleep_until_idle(&self, word: &AtomicU32) {
        *self.state.owner() = Some(std::thread::current());
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        if (word.compare_exchange(BUSY, AWAITED, success, failure)).is_ok() {
            while word.load(Ordering::Acquire) == AWAITED {
                std::thread::park();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // The threads belong to the parent process: there is nothing to join or detach here.
            return std::mem::forget(std::mem::take(&mut self.workers));
        }
        for ((handle, thread), lane) in self.workers.drain(..).zip(&self.state.lanes[1..]) {
            lane.word.store(STOP, Ordering::Release);
            thread.unpark();
            // A worker's panic was already raised by its region.
            let _ = handle.join();
        }
    }
}

fn work(state: &State, index: usize) {
    let lane = &state.lanes[index];
    let word = &lane.word;
    while wait(state, lane) == OFFERED {
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        if (word.compare_exchange(OFFERED, BUSY, success, failure)).is_err() {
            continue;
        }
        // SAFETY: the word is `BUSY` or `AWAITED`, so the owner of the region keeps the job alive and does not write the cell.
        let outcome = unsafe {
            let job = (*state.job.get()).expect("a region has a job");
            catch_unwind(AssertUnwindSafe(|| (*job)(index)))
        };
        if let Err(payload) = outcome {
            state.abandon();
            let mut first = state.panic();
            // Dropping a payload may panic again.
            match *first {
                None => *first = Some(payload),
                Some(_) => std::mem::forget(payload),
            }
        }
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        if (word.compare_exchange(BUSY, IDLE, success, failure)).is_err() {
            let owner = state.owner().take();
            word.store(IDLE, Ordering::Release);
            owner.expect("an `AWAITED` word has an owner").unpark();
        }
    }
}

/// Waits until the lane's word is `OFFERED` or `STOP` and returns which.
fn wait(state: &State, lane: &Lane) -> u32 {
    let mut since = Instant::now();
    loop {
        for _ in 0..256 {
            match lane.word.load(Ordering::Relaxed) {
                found @ (OFFERED | STOP) => return found,
                _ => std::hint::spin_loop(),
            }
        }
        if since.elapsed() > SPIN {
            lane.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if lane.word.load(Ordering::Relaxed) == IDLE {
                std::thread::park();
            }
            lane.asleep.store(false, Ordering::Relaxed);
            leave_the_owner(state);
            // A worker that wakes after its offer was withdrawn spins for the next offer.
            since = Instant::now();
        }
    }
}

/// Moves a worker that was woken on its owner's processor to another processor, where it does not displace the owner. A scheduler leaves
/// both on one processor for as long as other programs keep all other processors equally busy.
fn leave_the_owner(state: &State) {
    let owner = state.owner_processor.load(Ordering::Relaxed);
    if processor::current() == Some(owner) {
        processor::leave(owner);
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
