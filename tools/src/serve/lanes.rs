//! The threads that prepare requests. The thread of the connections never parses, renders or tokenizes, so that `/health` and cancellation
//! never wait; long requests have threads of their own, so that short ones do not wait for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::StatusCode;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError};

use super::refusal::Refusal;
use crate::allocations::return_free_memory;
use crate::error::{Error, Result};

/// Requests with bodies up to this size are short.
pub const SHORT: usize = 64 << 10;
/// Preparations at once. Long requests are prepared one at a time, so that only one needs memory for its preparation.
const SHORT_THREADS: usize = 4;
const LONG_THREADS: usize = 1;

/// The lanes of short and of long requests.
pub struct Lanes {
    short: Handle,
    long: Handle,
}

/// A thread that runs the requests of a lane, and has threads for their preparation. It ends when this is dropped.
pub struct Lane {
    handle: Handle,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Lanes {
    /// Starts the threads.
    pub fn start() -> Result<(Self, [Lane; 2])> {
        let short = Lane::start("requests", SHORT_THREADS)?;
        let long = Lane::start("long", LONG_THREADS)?;
        let lanes = Lanes {
            short: short.handle.clone(),
            long: long.handle.clone(),
        };
        Ok((lanes, [short, long]))
    }

    /// Runs the work of a request with a body of this size. Dropping the future ends the work at its next wait.
    pub async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= SHORT {
            return Task::new(self.short.spawn(work)).await?;
        }
        let work = async move {
            let result = work.await;
            return_free_memory();
            result
        };
        Task::new(self.long.spawn(work)).await?
    }
}

impl Lane {
    fn start(name: &str, threads: usize) -> Result<Self> {
        let failed = |e| Error::io("the server", e);
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(threads)
            .thread_name(name)
            .build()
            .map_err(failed)?;
        let (handle, stop) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let stopped = Arc::clone(&stop);
        let run = move || {
            runtime.block_on(stopped.notified());
            runtime.shutdown_timeout(Duration::from_secs(1));
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        Ok(Lane {
            handle,
            stop,
            thread: Some(thread.map_err(failed)?),
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.stop.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A task that is aborted when it is dropped; work that has not started then never starts.
pub struct Task<T>(tokio::task::JoinHandle<T>, AbortHandle);

impl<T> Task<T> {
    pub fn new(handle: tokio::task::JoinHandle<T>) -> Self {
        let abort = handle.abort_handle();
        Task(handle, abort)
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Refusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let failed = |_: JoinError| {
            let reason = "preparing the request failed";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
        };
        Pin::new(&mut self.0)
            .poll(context)
            .map(|done| done.map_err(failed))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.1.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::spawn_blocking;

    use super::*;

    /// Starts a request whose preparation is `prepare`.
    fn start(
        lanes: &Arc<Lanes>,
        bytes: usize,
        prepare: impl FnOnce() + Send + 'static,
    ) -> tokio::task::JoinHandle<Result<(), Refusal>> {
        let lanes = Arc::clone(lanes);
        let work = async { Task::new(spawn_blocking(prepare)).await };
        tokio::task::spawn_local(async move { lanes.run(bytes, work).await })
    }

    /// Prepares requests with bodies of this size, all at once. Returns the most preparations that ran at the same time.
    async fn most_at_once(lanes: &Arc<Lanes>, bytes: usize) -> usize {
        let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let mut requests = Vec::new();
        for _ in 0..8 {
            let running = Arc::clone(&running);
            requests.push(start(lanes, bytes, move || {
                let (now, most) = &*running;
                most.fetch_max(1 + now.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                now.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        for request in requests {
            assert!(request.await.is_ok_and(|done| done.is_ok()));
        }
        running.1.load(Ordering::SeqCst)
    }

    #[test]
    fn long_requests_are_prepared_one_at_a_time_and_short_ones_do_not_wait() {
        let (lanes, _threads) = Lanes::start().unwrap();
        let lanes = Arc::new(lanes);
        let runtime = Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            assert_eq!(most_at_once(&lanes, SHORT + 1).await, 1);
            assert!(most_at_once(&lanes, SHORT).await <= SHORT_THREADS);

            // The long request waits for the short one, which comes later.
            let both = Arc::new(Barrier::new(2));
            let other = Arc::clone(&both);
            let long = start(&lanes, SHORT + 1, move || _ = both.wait());
            let short = start(&lanes, SHORT, move || _ = other.wait());
            assert!(short.await.is_ok_and(|done| done.is_ok()));
            assert!(long.await.is_ok_and(|done| done.is_ok()));
        });
    }
}
