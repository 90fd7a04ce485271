//! Memory that the system refuses: each large allocation of copies of files, of sessions, batches, drafts, states and conversations fails
//! once, and the library returns an error. A refused small allocation ends a Rust program, so allocations of less than LARGE bytes do not
//! fail here, and those of descriptions and tokenizers, which other crates make, neither.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use waterline::internal::Bytes;
use waterline::{Batch, Chat, Error, Model, Session, SessionOptions, Snapshot};

/// Bytes from which on an allocation may fail.
const LARGE: usize = 1 << 16;
/// How the process that does the work ends after an error, and after none.
const REFUSED: i32 = 10;
const DONE: i32 = 11;

struct Failing;

/// Large allocations until one fails; negative: none does.
static LEFT: AtomicI64 = AtomicI64::new(-1);

fn fails(bytes: usize) -> bool {
    bytes >= LARGE && LEFT.load(Ordering::SeqCst) >= 0 && LEFT.fetch_sub(1, Ordering::SeqCst) == 0
}

// SAFETY: everything is handed to the system's allocator, or refused as it may refuse.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's contract is the system's.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's contract is the system's.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if fails(size) {
            std::ptr::null_mut()
        } else {
            // SAFETY: the caller's contract is the system's.
            unsafe { System.realloc(pointer, layout, size) }
        }
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

/// Runs work whose allocations must not fail.
fn unfailing<T>(work: impl FnOnce() -> T) -> T {
    let left = LEFT.swap(-1, Ordering::SeqCst);
    let done = work();
    LEFT.store(left, Ordering::SeqCst);
    done
}

/// All that a program does with a model.
fn work(path: &Path) -> Result<(), Error> {
    if path.is_file() {
        Bytes::copy_file(path)?;
    }
    let model = unfailing(|| Model::open(path))?;
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
    let mut bytes = unfailing(|| Vec::with_capacity(snapshot.bytes() + LARGE));
    snapshot
        .write(&mut bytes)
        .map_err(|e| Error::io(path, "write", e))?;
    let read = Snapshot::read(&mut &bytes[..], bytes.len() as u64, "memory")?;
    fork.restore(&read)?;
    if model.has_tokenizer() {
        let mut chat = unfailing(|| Chat::new(&session))?;
        chat.send(&mut session, "Hello!", |_, _| ())?;
        chat.answered(&mut session, "Hi.")?;
        let snapshot = chat.snapshot(&session)?;
        chat.restore(&mut session, &snapshot)?;
    }
    Ok(())
}

/// The process that does the work.
#[test]
#[ignore = "started by the test below"]
fn child() {
    let variable = |name: &str| std::env::var(name).expect(name);
    let path = PathBuf::from(variable("WATERLINE_MODEL"));
    let left = variable("WATERLINE_FAIL_AT").parse().expect("a number");
    LEFT.store(left, Ordering::SeqCst);
    let done = work(&path);
    let never = LEFT.swap(-1, Ordering::SeqCst) >= 0;
    match done {
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(REFUSED);
        }
        // A panic inside a tokenizer becomes an error, and some memory is requested twice.
        Ok(()) => std::process::exit(if never { DONE } else { 0 }),
    }
}

#[test]
fn every_large_allocation_may_fail() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let program = std::env::current_exe().expect("this program");
    let mut refused = 0;
    for model in [
        "../tools/model/waterline-chat.gguf",
        "fixtures/hf_qwen3_5_moe_fused",
        "fixtures/lalte_stream_gqa",
        "models/mamba2.gguf",
    ] {
        for number in 0.. {
            let ended = Command::new(&program)
                .args(["child", "--exact", "--ignored", "--nocapture"])
                .env("WATERLINE_MODEL", tests.join(model))
                .env("WATERLINE_FAIL_AT", number.to_string())
                .output()
                .expect("this program starts");
            let said = String::from_utf8_lossy(&ended.stderr);
            match ended.status.code() {
                Some(DONE) => break,
                Some(REFUSED) => refused += 1,
                Some(0) => {}
                other => panic!("{model}: large allocation {number}: {other:?}: {said}"),
            }
        }
    }
    println!("{refused} large allocations were refused, each with an error");
    assert!(refused > 10, "{refused}");
}
