//! Out of memory. Each allocation of 16 KB or more that a session, batch, draft, fork, saved state, prefix store or copy of a file makes
//! fails once, and the library must return an error. With a limit on the total memory, from none to enough, opening a model and using it
//! must return an error or succeed: memory that other crates and the standard library allocate infallibly is reserved first. A prefix store
//! must not use more memory than its bound.
//!
//! WATERLINE_LIMITS is the number of limits tried with each model.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use waterline::internal::Bytes;
use waterline::{
    Batch, Chat, Error, Model, PrefixStore, PrefixStoreOptions, Session, SessionOptions, Snapshot,
};

/// The size in bytes from which a single allocation may fail.
const LARGE: usize = 1 << 14;
/// The number of bytes below which even an error cannot be constructed.
const LEAST: usize = 1 << 17;
/// A small model of each kind: GGUF with a tokenizer, a directory with fused experts, a model with computed vectors, GGUF without a
/// tokenizer.
const MODELS: [&str; 4] = [
    "../tools/model/waterline-chat.gguf",
    "fixtures/hf_qwen3_5_moe_fused",
    "fixtures/lalte_stream_gqa",
    "models/mamba2.gguf",
];

struct Failing;

/// The number of large allocations before one fails; negative if none fails.
static LEFT: AtomicI64 = AtomicI64::new(-1);
/// The maximum number of bytes in use.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST_IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Returns whether `bytes` more are refused; otherwise counts them as in use.
fn refuses(bytes: usize, large: usize) -> bool {
    let now = IN_USE.fetch_add(bytes, Ordering::SeqCst) + bytes;
    let alone = large >= LARGE
        && LEFT.load(Ordering::SeqCst) >= 0
        && LEFT.fetch_sub(1, Ordering::SeqCst) == 0;
    let refused = alone || now > LIMIT.load(Ordering::SeqCst);
    if refused {
        IN_USE.fetch_sub(bytes, Ordering::SeqCst)
    } else {
        MOST_IN_USE.fetch_max(now, Ordering::SeqCst)
    };
    refused
}

// SAFETY: every call is forwarded to the system's allocator, or refused, as the allocator itself may do.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size(), layout.size()) {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's contract is the system's.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size(), layout.size()) {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's contract is the system's.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size.saturating_sub(layout.size()), size) {
            return std::ptr::null_mut();
        }
        IN_USE.fetch_sub(layout.size().saturating_sub(size), Ordering::SeqCst);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

fn options() -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.threads, options.marks, options.lookup) = (1, 1, 4);
    (options.state.context, options.chunk) = (512, 64);
    options.sampler.repetition_penalty = 1.1;
    options
}

/// Runs work that allocates in other crates, which only a limit may refuse.
fn opening<T>(work: impl FnOnce() -> T) -> T {
    let left = LEFT.swap(-1, Ordering::SeqCst);
    let done = work();
    LEFT.store(left, Ordering::SeqCst);
    done
}

/// Does everything a program does with a model.
fn work(path: &Path, open: impl Fn() -> Result<Arc<Model>, Error>) -> Result<(), Error> {
    if path.is_file() {
        Bytes::copy_file(path)?;
    }
    let model = open()?;
    let mut session = Session::new(model.clone(), options())?;
    session.feed(&[1, 2, 3])?;
    session.feed_each(&[1, 2, 3], |_, _| ())?;
    session.step()?;
    let mut exact = options();
    (exact.exact, exact.lookup) = (true, 0);
    Session::new(model.clone(), exact)?.feed(&[1, 2, 3])?;
    let mut fork = session.fork()?;
    Batch::new(&session, 2)?.feed(&mut [&mut session, &mut fork], &[1, 2])?;
    let snapshot = session.snapshot()?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(snapshot.bytes() + LARGE)
        .map_err(|_| Error::memory("a file in memory", "-"))?;
    snapshot
        .write(&mut bytes)
        .map_err(|e| Error::io(path, "write", e))?;
    let read = Snapshot::read(&mut &bytes[..], bytes.len() as u64, "memory")?;
    fork.restore(&read)?;
    let mut with_store = options();
    with_store.store = Some(PrefixStore::new(PrefixStoreOptions::default())?);
    let mut session = Session::new(model.clone(), with_store)?;
    let tokens: Vec<u32> = (0..60).map(|i| i % 5).collect();
    session.read_history(&tokens)?;
    session.read_history(&tokens[..30])?;
    if model.has_tokenizer() {
        let mut chat = opening(|| Chat::new(&session))?;
        chat.send(&mut session, "Hello!", |_, _| ())?;
        chat.answered(&mut session, "Hi.")?;
        let snapshot = chat.snapshot(&session)?;
        chat.restore(&mut session, &snapshot)?;
    }
    Ok(())
}

fn variable(name: &str) -> String {
    std::env::var(name).expect(name)
}

/// Fails each large allocation once. Returns the number of errors.
fn alone(path: &Path) -> usize {
    let model = Model::open(path).expect("a model");
    let mut refused = 0;
    for number in 0.. {
        eprintln!("large allocation {number}");
        LEFT.store(number, Ordering::SeqCst);
        let done = work(path, || Ok(Arc::clone(&model)));
        let was_refused = LEFT.swap(-1, Ordering::SeqCst) < 0;
        // Some memory is requested twice, and a prefix store continues without the memory it cannot get.
        refused += usize::from(done.is_err());
        if !was_refused {
            done.expect("nothing was refused");
            break;
        }
    }
    refused
}

/// Limits all memory together. Returns the number of limits that gave errors.
fn limited(path: &Path, limits: usize) -> usize {
    let before = IN_USE.load(Ordering::SeqCst);
    MOST_IN_USE.store(before, Ordering::SeqCst);
    work(path, || Model::open(path)).expect("nothing was refused");
    let most = MOST_IN_USE.load(Ordering::SeqCst) - before;
    let mut refused = 0;
    for number in 0..limits {
        let limit = LEAST + (most - LEAST) / limits * number;
        eprintln!("{limit} of {most} bytes");
        LIMIT.store(IN_USE.load(Ordering::SeqCst) + limit, Ordering::SeqCst);
        let done = work(path, || Model::open(path));
        LIMIT.store(usize::MAX, Ordering::SeqCst);
        refused += usize::from(done.is_err());
    }
    refused
}

/// Reads histories with a store that holds only a few of their checkpoints. Returns the number of evictions.
fn bounded(path: &Path) -> usize {
    /// Tokens and lists of one call, and memory requested only to see whether there is room.
    const REST: usize = 256 << 10;
    let model = Model::open(path).expect("a model");
    let mut session = Session::new(model.clone(), options()).expect("a session");
    session.read_history(&[1, 2, 3]).expect("a history");
    let bound = 6 * session.snapshot().expect("a state").bytes();
    let mut stored = PrefixStoreOptions::default();
    (stored.bytes, stored.grid) = (bound, 32);
    let store = PrefixStore::new(stored).expect("a store");
    let mut with_store = options();
    with_store.store = Some(Arc::clone(&store));
    let mut session = Session::new(model.clone(), with_store).expect("a session");
    let before = IN_USE.load(Ordering::SeqCst);
    MOST_IN_USE.store(before, Ordering::SeqCst);
    for number in 0..30u32 {
        let kind = number % 7;
        let tokens: Vec<u32> = (0..100 + 40 * kind).map(|i| i * (kind + 1) % 5).collect();
        session.read_history(&tokens).expect("a history");
        session.step().expect("a step");
        session.checkpoint().expect("a checkpoint");
        let most = MOST_IN_USE.load(Ordering::SeqCst) - before;
        assert!(most <= bound + REST, "{most} bytes, the bound is {bound}");
    }
    let held = IN_USE.load(Ordering::SeqCst) - before;
    let counted = store.stats().bytes;
    assert!(
        held <= counted + REST,
        "{held} bytes are held, {counted} counted"
    );
    store.stats().evicted as usize
}

/// Does the work in a separate process, because an infallible allocation that fails aborts it.
#[test]
#[ignore = "started by the tests below"]
fn child() {
    let path = PathBuf::from(variable("WATERLINE_MODEL"));
    let count = match variable("WATERLINE_WAY").as_str() {
        "alone" => alone(&path),
        "store" => bounded(&path),
        limits => limited(&path, limits.parse().expect("a number")),
    };
    println!("{count} times");
}

/// Returns the number of errors, or evictions, with each model.
fn times(way: &str) -> [usize; MODELS.len()] {
    MODELS.map(|model| {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
        let ended = Command::new(std::env::current_exe().expect("this program"))
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .env("WATERLINE_MODEL", tests.join(model))
            .env("WATERLINE_WAY", way)
            .output()
            .expect("this program starts");
        let said =
            [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(
            ended.status.success(),
            "{model}: {}: {}",
            ended.status,
            said[1]
        );
        let line = said[0].lines().find_map(|line| line.strip_suffix(" times"));
        line.expect("a line").parse().expect("a number")
    })
}

#[test]
fn every_large_allocation_may_fail() {
    let refused = times("alone");
    println!("refused, each with an error: {refused:?}");
    assert!(refused.iter().all(|&refused| refused > 10), "{refused:?}");
}

#[test]
fn any_limit_of_memory_is_an_error() {
    let limits = std::env::var("WATERLINE_LIMITS").unwrap_or("50".into());
    let refused = times(&limits);
    println!("of {limits} limits are errors: {refused:?}");
    let half = limits.parse::<usize>().expect("a number") / 2;
    assert!(refused.iter().all(|&refused| refused > half), "{refused:?}");
}

#[test]
fn a_prefix_store_takes_no_more_than_its_bound() {
    let evicted = times("store");
    println!("evicted: {evicted:?}");
    assert!(evicted.iter().all(|&evicted| evicted > 10), "{evicted:?}");
}
