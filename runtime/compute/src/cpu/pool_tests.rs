use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Spins for `rounds` iterations.
fn dawdle(rounds: usize) {
    for i in 0..rounds {
        std::hint::black_box(i);
    }
}

/// A small pseudorandom number generator.
fn random(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn every_index_runs_once_in_many_regions() {
    let pool = Pool::new(3).unwrap();
    for round in 0..2000 {
        let hits: Vec<AtomicUsize> = (0..17).map(|_| AtomicUsize::new(0)).collect();
        pool.each(hits.len(), |_, i| {
            hits[i].fetch_add(1, Ordering::Relaxed);
        });
        let once = hits.iter().all(|h| h.load(Ordering::Relaxed) == 1);
        assert!(once, "round {round}");
    }
}

/// Catches a late worker: the closure and its borrows live on the region's stack, are overwritten with poison when the region ends, and
/// differ in the next region.
#[test]
fn nobody_enters_a_region_that_has_ended() {
    let rounds = if cfg!(miri) { 50 } else { 3000 };
    let pool = Pool::new(if cfg!(miri) { 4 } else { 16 }).unwrap();
    let mut seed = 7;
    for round in 0..rounds {
        let open = AtomicBool::new(true);
        let count = 1 + random(&mut seed) % 40;
        let (delay, pause) = (random(&mut seed) % 3000, random(&mut seed) % 20_000);
        let mut results = vec![usize::MAX; count];
        let shared = crate::cpu::Shared::new(&mut results);
        let in_use: Vec<AtomicBool> = (0..16).map(|_| AtomicBool::new(false)).collect();
        pool.each(count, |worker, index| {
            assert!(open.load(Ordering::SeqCst), "round {round}");
            assert!(
                !in_use[worker].swap(true, Ordering::SeqCst),
                "two tasks on one worker"
            );
            dawdle(delay * (index % 3));
            // SAFETY: every index is claimed once.
            unsafe { shared.part(index..index + 1)[0] = index * round };
            in_use[worker].store(false, Ordering::SeqCst);
        });
        open.store(false, Ordering::SeqCst);
        assert!(
            results.iter().enumerate().all(|(i, &r)| r == i * round),
            "round {round}"
        );
        // Now and then long enough for workers to fall asleep, or to arrive too late.
        dawdle(if round % 7 == 0 { 50 * pause } else { pause });
    }
}

#[test]
fn a_region_ends_without_workers_that_never_come() {
    let pool = Pool::new(3).unwrap();
    // Threads that have ended take no offer, like threads that are never scheduled.
    for (lane, (handle, thread)) in pool.state.lanes[1..].iter().zip(&pool.workers) {
        lane.word.store(STOP, Ordering::Release);
        thread.unpark();
        while !handle.is_finished() {
            std::thread::yield_now();
        }
    }
    let workers = Mutex::new(Vec::new());
    for _ in 0..100 {
        pool.each(12, |worker, _| workers.lock().unwrap().push(worker));
    }
    assert_eq!(workers.into_inner().unwrap(), [0; 1200]);
}

#[test]
fn a_caller_sleeps_until_slow_workers_are_done() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..20 {
        let done = AtomicUsize::new(0);
        pool.each(3, |worker, _| {
            if worker > 0 {
                std::thread::sleep(40 * PATIENCE);
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }
}

#[test]
fn a_panic_reaches_its_own_caller_with_its_message_and_the_pool_lives_on() {
    let pool = Pool::new(3).unwrap();
    for culprit in 0..30 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.each(30, |_, index| {
                dawdle(1000);
                assert!(index != culprit, "planted {culprit}");
            });
        }));
        let payload = outcome.expect_err("a panic");
        let said = payload.downcast_ref::<String>().expect("a text");
        assert!(said.contains(&format!("planted {culprit}")), "{said}");
        let count = AtomicUsize::new(0);
        pool.each(30, |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 30);
    }
}

#[test]
fn sessions_on_several_threads_share_a_pool_and_panics_stay_where_they_are() {
    let pool = Pool::new(2).unwrap();
    let rounds = if cfg!(miri) { 20 } else { 500 };
    std::thread::scope(|scope| {
        for session in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..rounds {
                    let sum = AtomicUsize::new(0);
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        pool.each(10, |_, i| {
                            assert!(session != 0 || round % 50 != 3 || i != 7, "planted");
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }));
                    let planted = session == 0 && round % 50 == 3;
                    assert_eq!(outcome.is_err(), planted);
                    assert!(planted || sum.into_inner() == 45);
                }
            });
        }
    });
}

#[test]
fn more_threads_than_can_be_are_an_error() {
    let error = Pool::new(MAX_THREADS + 1).err().expect("too many");
    assert!(error.to_string().contains("1 to 1024"), "{error}");
}

#[cfg(all(target_os = "linux", not(miri)))]
mod forked {
    use super::*;

    /// Runs `body` in a child made by fork(2). Returns its exit status, or `None` if it had to be killed after a minute.
    fn in_child(body: impl FnOnce() -> bool) -> Option<i32> {
        // SAFETY: the child calls only `body`, which this test supplies, and then exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let good = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends this process.
            unsafe { libc::_exit(if good { 7 } else { 1 }) }
        }
        assert!(child > 0, "no child");
        let mut status = 0;
        for _ in 0..6000 {
            // SAFETY: `child` is a child of this process.
            if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
                return Some(status >> 8);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGKILL) };
        None
    }

    fn works(pool: &Pool) -> bool {
        let sum = AtomicUsize::new(0);
        for _ in 0..100 {
            pool.each(40, |_, index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
        }
        sum.into_inner() == 100 * 780
    }

    #[test]
    fn a_child_computes_on_its_own_thread_and_ends() {
        let mut pool = Some(Pool::new(3).unwrap());
        assert!(works(pool.as_ref().unwrap()));
        // The workers spin at first, and later sleep.
        for pause in [0, 20] {
            std::thread::sleep(Duration::from_millis(pause));
            let child = in_child(|| {
                let pool = pool.take().expect("the parent's pool");
                let good = works(&pool);
                drop(pool);
                good && works(&Pool::new(2).expect("threads of its own"))
            });
            assert_eq!(child, Some(7));
            assert!(works(pool.as_ref().unwrap()), "the parent goes on");
        }
    }

    #[test]
    fn a_child_of_another_thread_s_region_computes_too() {
        let pool = Pool::new(3).unwrap();
        let (open, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pool.each(3, |_, _| {
                    open.store(true, Ordering::SeqCst);
                    while !done.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                });
            });
            while !open.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let child = in_child(|| works(&pool));
            done.store(true, Ordering::SeqCst);
            assert_eq!(child, Some(7));
        });
    }
}
