//! Once a session is made, reading and generating allocate no memory, on any thread, at any position.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use waterline::{
    GenerateOptions, Generation, Model, PrefixStore, PrefixStoreOptions, Session, SessionOptions,
    ThoughtOptions, ThoughtTags,
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of allocations on this thread.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    OWN.set(OWN.get() + 1);
}

// SAFETY: every call is forwarded to the system's allocator; counting touches no memory that it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn feed_and_step_allocate_nothing() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut tested = 0;
    for entry in std::fs::read_dir(folder).expect("tests/fixtures") {
        let path = entry.expect("an entry").path();
        let model = Model::open(&path).expect("a fixture opens");
        let tokens: Vec<u32> = (0..150)
            .map(|i| (i * 37 % model.spec().vocab) as u32)
            .collect();
        for threads in [1, 2] {
            let mut options = SessionOptions::default();
            options.state.context = 512;
            options.threads = threads;
            options.sampler.temperature = 0.8;
            options.sampler.repetition_penalty = 1.1;
            options.sampler.frequency_penalty = 0.1;
            // A session that read a history with a store continues without using the store.
            if threads == 2 {
                options.store =
                    Some(PrefixStore::new(PrefixStoreOptions::default()).expect("a store"));
            }
            let mut session = Session::new(Arc::clone(&model), options).expect("a session");
            session.read_history(&tokens[..20]).expect("a history");
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            session.feed(&tokens).expect("a prompt");
            for _ in 0..40 {
                session.step().expect("a step");
            }
            session.feed(&tokens[..7]).expect("a few tokens");
            session.reset().expect("a reset");
            session.feed(&tokens[..70]).expect("again");
            let allocated = ALLOCATIONS.load(Ordering::SeqCst) - before;
            assert_eq!(allocated, 0, "{} with {threads} threads", path.display());
            tested += 1;
        }
    }
    assert!(tested >= 16, "the fixtures are part of the repository");
    // Here, because allocations on all threads were counted above.
    a_budget_of_thoughts_allocates_nothing_per_token();
}

/// A limit on a thought adds no allocation to those of the pieces' texts, whether the thought goes on or is closed.
fn a_budget_of_thoughts_allocates_nothing_per_token() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/model/");
    let model = Model::open(format!("{folder}waterline-chat.gguf")).expect("the model");
    let generated = |budget: Option<usize>| {
        let mut options = SessionOptions::default();
        (options.threads, options.sampler.temperature) = (1, 0.0);
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        let tokenizer = model.tokenizer().expect("a tokenizer");
        let prompt = tokenizer.encode("Once upon a time").expect("tokens");
        session.feed(&prompt).expect("read");
        let mut options = GenerateOptions::default();
        (options.max_tokens, options.stop_at_eos) = (100, false);
        options.thought = budget.map(|budget| {
            let mut thought = ThoughtOptions::new(ThoughtTags::THINK, true);
            thought.budget = Some(budget);
            thought
        });
        let mut generation = Generation::new(&model, options).expect("a generation");
        let (before, mut texts) = (OWN.get(), 0);
        while let Some(piece) = generation.next(&mut session) {
            texts += usize::from(!piece.expect("a piece").text.is_empty());
        }
        (OWN.get() - before, texts)
    };
    let (free, texts) = generated(None);
    assert_eq!(generated(Some(1000)), (free, texts));
    let (closed, texts_when_closed) = generated(Some(20));
    assert!(
        closed <= free + texts_when_closed.saturating_sub(texts),
        "{closed} {free}"
    );
}

/// Returns the resident memory of this process in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .expect("a number")
        .parse::<usize>()
        .expect("a number")
        << 10
}

/// A session on a fixture reads WATERLINE_TOKENS tokens, by default 5,000,000, in chunks and in steps. Only this thread's allocations
/// count: the test harness allocates on other threads, and reading the status allocates here.
#[cfg(target_os = "linux")]
fn reads_on_without_allocating(case: &str) {
    let number = std::env::var("WATERLINE_TOKENS").ok();
    let count = number.map_or(5_000_000, |number| number.parse().expect("a number"));
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = Model::open(folder.join(case)).expect("a fixture opens");
    let mut options = SessionOptions::default();
    (options.threads, options.marks) = (1, 2);
    let mut session = Session::new(Arc::clone(&model), options).expect("a session");
    let tokens: Vec<u32> = (0..997)
        .map(|i| (i * i * 37 % model.spec().vocab) as u32)
        .collect();
    session.feed(&tokens).expect("tokens");
    let at_first = resident();
    let allocated = OWN.get();
    let mut most = 0;
    while session.position() < count {
        for _ in 0..20 {
            session.feed(&tokens).expect("tokens");
            session.step().expect("finite logits");
            session.mark().expect("a mark");
        }
        assert_eq!(OWN.get(), allocated, "{case} at {}", session.position());
        most = most.max(resident());
        OWN.set(allocated);
    }
    println!(
        "{case}: {} tokens, resident {at_first} bytes at first, at most {most}",
        session.position()
    );
    assert!(most < at_first + (1 << 20), "it grew");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn five_million_tokens_of_gated_deltanet_and_a_window() {
    reads_on_without_allocating("gdn_swa");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn five_million_tokens_of_token_eviction() {
    reads_on_without_allocating("lalte_stream_gqa");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn five_million_tokens_of_hax() {
    reads_on_without_allocating("hax_mamba2_sw_dilated");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn five_million_tokens_of_mamba2() {
    reads_on_without_allocating("hf_mamba2");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn five_million_tokens_of_rwkv7() {
    reads_on_without_allocating("rwkv7_plain");
}
