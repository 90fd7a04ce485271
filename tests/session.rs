//! Guarantees of a session, on every model under `tests/fixtures`: splits do not matter, saved states continue with the same bits, forks
//! are independent, a reset forgets everything.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{ContextEnd, Error, Kv, Model, Session, SessionOptions, Snapshot};

/// Returns every model under `tests/fixtures`.
fn models() -> Vec<(String, Arc<Model>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("tests/fixtures")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 8, "the fixtures are part of the repository");
    let name = |path: &PathBuf| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    };
    cases
        .iter()
        .map(|path| (name(path), Model::open(path).expect("a fixture opens")))
        .collect()
}

fn options(kv: Kv, chunk: usize) -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (256, 256);
    options.state.kv = kv;
    (options.chunk, options.threads, options.marks) = (chunk, 2, 3);
    (options.sampler.temperature, options.sampler.seed) = (0.9, 7);
    options
}

/// A repeatable sequence of numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn text(model: &Model, length: usize) -> Vec<u32> {
    let mut random = Random(length as u64);
    (0..length)
        .map(|_| random.below(model.spec().vocab) as u32)
        .collect()
}

fn state(session: &Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    session
        .snapshot()
        .expect("a snapshot")
        .write(&mut bytes)
        .expect("writing to memory");
    bytes
}

/// Returns the largest difference between two lists of floats, relative to the largest value of the second.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (x, y)| {
        if x == y {
            m
        } else {
            m.max((x - y).abs() / largest)
        }
    })
}

/// Chunks and steps round differently; an error at a chunk border gives 1e-1 and more.
const ROUNDING: f32 = 2e-4;
/// With 16-bit keys and values, rounding may give the neighbouring 16-bit number.
const ROUNDING_F16: f32 = 5e-3;

#[test]
fn any_split_gives_the_logits_and_the_state_of_single_steps() {
    for (name, model) in models() {
        for (kv, bound) in [(Kv::F32, ROUNDING), (Kv::F16, ROUNDING_F16)] {
            let tokens = text(&model, 130);
            let mut steps = Session::new(Arc::clone(&model), options(kv, 1)).expect("a session");
            let mut expected = Vec::new();
            steps
                .feed_each(&tokens, |_, logits| expected.extend_from_slice(logits))
                .expect("steps");
            for seed in 1..6 {
                let mut random = Random(seed);
                let chunk = 1 + random.below(90);
                let mut session =
                    Session::new(Arc::clone(&model), options(kv, chunk)).expect("a session");
                let (mut rest, mut got) = (&tokens[..], Vec::new());
                while !rest.is_empty() {
                    let (now, later) = rest.split_at((1 + random.below(60)).min(rest.len()));
                    session
                        .feed_each(now, |_, logits| got.extend_from_slice(logits))
                        .expect("a split");
                    rest = later;
                }
                let d = difference(&got, &expected);
                assert!(
                    d < bound,
                    "{name} {kv:?} chunk {chunk} seed {seed}: logits differ by {d}"
                );
                let (one, other) = (
                    session.snapshot().expect("a snapshot"),
                    steps.snapshot().expect("a snapshot"),
                );
                for ((tensor, a), (_, b)) in one.tensors().zip(other.tensors()) {
                    let what = format!(
                        "{name} {kv:?} chunk {chunk} seed {seed}: tensor {:?} {}",
                        tensor.layer, tensor.name
                    );
                    let floats = |bytes: &[u8]| -> Vec<f32> {
                        bytes
                            .chunks_exact(4)
                            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                            .collect()
                    };
                    let halves = |bytes: &[u8]| -> Vec<f32> {
                        bytes
                            .chunks_exact(2)
                            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                            .collect()
                    };
                    let d = match tensor.dtype {
                        waterline::StateDtype::F32 => difference(&floats(a), &floats(b)),
                        waterline::StateDtype::F16 => difference(&halves(a), &halves(b)),
                        _ => f32::from(u8::from(a != b)),
                    };
                    assert!(d < bound, "{what} differs by {d}");
                }
            }
        }
    }
}

#[test]
fn a_saved_state_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, model) in models() {
        let tokens = text(&model, 70);
        let mut session =
            Session::new(Arc::clone(&model), options(Kv::F16, 32)).expect("a session");
        session.feed(&tokens).expect("a prompt");
        for _ in 0..5 {
            session.step().expect("a step");
        }
        let path = folder.path().join(&name);
        session
            .snapshot()
            .expect("a snapshot")
            .save(&path)
            .expect("saved");
        let mut restored =
            Session::new(Arc::clone(&model), options(Kv::F16, 32)).expect("a session");
        restored
            .restore(&Snapshot::load(&path).expect("loaded"))
            .expect("restored");
        assert_eq!(
            restored.logits().expect("logits"),
            session.logits().expect("logits"),
            "{name}: the last token's logits"
        );
        for i in 0..20 {
            assert_eq!(
                restored.step().expect("a step"),
                session.step().expect("a step"),
                "{name}: token {i}"
            );
        }
        restored.feed(&tokens).expect("more");
        session.feed(&tokens).expect("more");
        assert!(state(&restored) == state(&session), "{name}: states differ");
    }
}

#[test]
fn a_saved_state_is_as_large_as_what_was_used_of_it() {
    for (name, model) in models() {
        let mut options = options(Kv::F16, 32);
        options.state.context = 1 << 16;
        let mut session = Session::new(Arc::clone(&model), options.clone()).expect("a session");
        session.feed(&text(&model, 20)).expect("a prompt");
        let file = state(&session);
        let used = session.state_bytes().min(1 << 20);
        assert!(
            file.len() < used + (1 << 16),
            "{name}: {} bytes",
            file.len()
        );
        let snapshot = Snapshot::read(&mut &file[..], file.len() as u64, "memory").expect("whole");
        assert_eq!(snapshot.file_bytes(), file.len() as u64);
        let mut restored = Session::new(Arc::clone(&model), options).expect("a session");
        restored.restore(&snapshot).expect("restored");
        assert!(state(&restored) == file, "{name}");
        for length in [8, 30, file.len() / 2, file.len() - 1] {
            let cut = Snapshot::read(&mut &file[..length], length as u64, "cut");
            assert!(cut.is_err(), "{name}: cut at {length}");
        }
    }
}

#[test]
fn a_copy_can_be_overwritten_and_gone_on_from() {
    let all = models();
    let tokens = text(&all[0].1, 50);
    let new = |model: &Arc<Model>| Session::new(Arc::clone(model), options(Kv::F16, 16));
    let mut session = new(&all[0].1).expect("a session");
    let mut copy = session.snapshot().expect("a snapshot");
    session.feed(&tokens[..30]).expect("a prompt");
    session.snapshot_into(&mut copy).expect("the same layout");
    session.feed(&tokens[30..]).expect("more");
    let end = state(&session);
    session.restore(&copy).expect("the same layout");
    assert_eq!(session.position(), 30);
    session.feed(&tokens[30..]).expect("more");
    assert!(state(&session) == end);

    let mut other = new(&all[1].1)
        .expect("a session")
        .snapshot()
        .expect("a snapshot");
    let refused = session.snapshot_into(&mut other);
    assert!(
        refused
            .expect_err("another model")
            .to_string()
            .contains("another model")
    );
}

#[test]
fn forks_are_independent_and_equal() {
    for (name, model) in models() {
        let tokens = text(&model, 50);
        let mut session =
            Session::new(Arc::clone(&model), options(Kv::F16, 16)).expect("a session");
        session.feed(&tokens).expect("a prompt");
        let before = state(&session);
        let mut fork = session.fork().expect("a fork");
        fork.feed(&tokens[..30]).expect("the fork goes on");
        assert!(
            state(&session) == before,
            "{name}: the fork changed its origin"
        );
        session.feed(&tokens[..30]).expect("the origin goes on");
        assert!(
            state(&session) == state(&fork),
            "{name}: the same tokens, another state"
        );
    }
}

#[test]
fn rewind_returns_to_marks_bit_for_bit_and_to_other_positions_by_reading_again() {
    for (name, model) in models() {
        let tokens = text(&model, 90);
        let mut session =
            Session::new(Arc::clone(&model), options(Kv::F32, 16)).expect("a session");
        session.feed(&tokens[..20]).expect("a prompt");
        session.mark().expect("a mark");
        let marked = state(&session);
        session.feed(&tokens[20..40]).expect("a turn");
        let later = session.logits().expect("logits").to_vec();
        session.feed(&tokens[40..]).expect("a turn");
        session.rewind(40).expect("between marks");
        assert_eq!(session.position(), 40);
        let d = difference(session.logits().expect("logits"), &later);
        assert!(d < ROUNDING, "{name}: reading again differs by {d}");
        session.rewind(20).expect("at a mark");
        assert!(
            state(&session) == marked,
            "{name}: the mark's state differs"
        );
        session.rewind(0).expect("to the start");
        let fresh = Session::new(Arc::clone(&model), options(Kv::F32, 16)).expect("a session");
        assert!(
            state(&session) == state(&fresh),
            "{name}: the start differs from a new session"
        );
        assert!(
            matches!(session.rewind(5), Err(Error::Rewind { .. })),
            "{name}: the future"
        );
    }
}

#[test]
fn a_rewind_beyond_the_log_is_refused_and_changes_nothing() {
    let (_, model) = models().remove(0);
    let mut small = options(Kv::F16, 16);
    small.state.history = 8;
    let mut session = Session::new(Arc::clone(&model), small).expect("a session");
    session.feed(&text(&model, 30)).expect("a prompt");
    let before = state(&session);
    assert!(matches!(session.rewind(5), Err(Error::Rewind { .. })));
    assert!(state(&session) == before);
    session.rewind(0).expect("the start needs no log");
}

#[test]
fn a_reset_forgets_a_poisoned_state() {
    for (name, model) in models() {
        let tokens = text(&model, 40);
        let mut session =
            Session::new(Arc::clone(&model), options(Kv::F16, 16)).expect("a session");
        session.feed(&tokens).expect("a prompt");
        let mut poisoned = session.snapshot().expect("a snapshot");
        poison(&mut poisoned);
        let mut file = Vec::new();
        poisoned.write(&mut file).expect("memory");
        let error = Snapshot::read(&mut &file[..], file.len() as u64, "poisoned").err();
        let error = error.expect("a file with NaN").to_string();
        assert!(error.contains("not finite"), "{error}");
        session.restore(&poisoned).expect("a well-formed snapshot");
        session.feed(&tokens[..1]).expect("reading goes on");
        assert!(
            session.logits().expect("logits").iter().any(|x| x.is_nan()),
            "{name}: the poison did not show"
        );
        assert!(
            session.sample().is_err(),
            "{name}: a token was drawn from poisoned logits"
        );
        session.reset().expect("a reset");
        session.feed(&tokens).expect("a prompt");
        let mut fresh = Session::new(Arc::clone(&model), options(Kv::F16, 16)).expect("a session");
        fresh.feed(&tokens).expect("a prompt");
        assert!(
            state(&session) == state(&fresh),
            "{name}: the poison outlived the reset"
        );
    }
}

/// Fills every float state tensor of the layers with NaN.
fn poison(snapshot: &mut Snapshot) {
    use waterline::StateDtype;
    let is_float = |dtype| matches!(dtype, StateDtype::F32 | StateDtype::F16);
    let tensors = snapshot.tensors().map(|(tensor, _)| tensor);
    let floats = tensors.filter(|tensor| tensor.layer.is_some() && is_float(tensor.dtype));
    let places: Vec<_> = floats.map(|t| t.offset..t.offset + t.bytes).collect();
    for place in places {
        snapshot.bytes_mut()[place].fill(0xff);
    }
}

#[test]
fn foreign_and_damaged_snapshots_are_refused_and_change_nothing() {
    let all = models();
    let mut session = Session::new(Arc::clone(&all[0].1), options(Kv::F16, 16)).expect("a session");
    session.feed(&text(&all[0].1, 10)).expect("a prompt");
    let before = state(&session);
    let other = Session::new(Arc::clone(&all[1].1), options(Kv::F16, 16))
        .expect("a session")
        .snapshot()
        .expect("a snapshot");
    assert!(
        session
            .restore(&other)
            .expect_err("another model")
            .to_string()
            .contains("another model")
    );
    let mut wider = options(Kv::F16, 16);
    wider.state.history = 300;
    let other = Session::new(Arc::clone(&all[0].1), wider)
        .expect("a session")
        .snapshot()
        .expect("a snapshot");
    assert!(
        session
            .restore(&other)
            .expect_err("another layout")
            .to_string()
            .contains("history")
    );
    for cut in (0..before.len()).step_by(before.len() / 97) {
        assert!(
            Snapshot::read(&mut &before[..cut], cut as u64, "cut").is_err(),
            "cut at {cut}"
        );
    }
    for at in (0..before.len()).step_by(before.len() / 211) {
        let mut damaged = before.clone();
        damaged[at] ^= 0x10;
        assert!(
            Snapshot::read(&mut &damaged[..], damaged.len() as u64, "damaged").is_err(),
            "damaged at {at}"
        );
    }
    assert!(state(&session) == before);
}

#[test]
fn the_state_is_as_large_as_the_plan_says_and_stays_so() {
    for (name, model) in models() {
        let options = options(Kv::F16, 16);
        let plan = model.plan(&options.state).expect("a plan");
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        let work = session.work_bytes();
        session.feed(&text(&model, 200)).expect("a prompt");
        assert_eq!(session.state_bytes(), plan.bytes(), "{name}");
        assert_eq!(session.work_bytes(), work, "{name}");
        let tensors: usize = plan
            .tensors()
            .iter()
            .map(|tensor| tensor.bytes.next_multiple_of(64))
            .sum();
        assert_eq!(plan.bytes(), tensors, "{name}: tensors tile the arena");
    }
}

#[test]
fn a_full_context_is_refused_or_drops_the_oldest_as_chosen() {
    let (_, model) = models()
        .into_iter()
        .find(|(name, _)| name == "transformer_full")
        .expect("a fixture");
    let mut small = options(Kv::F32, 16);
    small.state.context = 24;
    let tokens = text(&model, 60);
    let mut session = Session::new(Arc::clone(&model), small.clone()).expect("a session");
    session.feed(&tokens[..20]).expect("it fits");
    let before = state(&session);
    assert!(matches!(
        session.feed(&tokens[20..30]),
        Err(Error::ContextFull {
            context: 24,
            position: 20,
            requested: 10
        })
    ));
    assert!(
        state(&session) == before,
        "a refused feed changed the state"
    );
    session.feed(&tokens[20..24]).expect("up to the bound");

    small.context_end = ContextEnd::Shift;
    let mut dropping = Session::new(Arc::clone(&model), small.clone()).expect("a session");
    dropping.feed(&tokens).expect("the oldest drop out");
    small.chunk = 1;
    let mut steps = Session::new(Arc::clone(&model), small).expect("a session");
    steps.feed(&tokens).expect("the oldest drop out");
    assert!(
        difference(
            dropping.logits().expect("logits"),
            steps.logits().expect("logits")
        ) < ROUNDING
    );
}

#[test]
fn a_cancelled_feed_stops_at_a_whole_token_and_goes_on() {
    for (name, model) in models().into_iter().take(3) {
        let tokens = text(&model, 40);
        let mut session = Session::new(Arc::clone(&model), options(Kv::F32, 8)).expect("a session");
        session.feed(&tokens[..8]).expect("a prompt");
        session.canceller().cancel();
        assert!(
            matches!(session.feed(&tokens[8..]), Err(Error::Cancelled { fed: 0 })),
            "{name}"
        );
        session.feed(&tokens[8..]).expect("it goes on");
        let mut whole = Session::new(Arc::clone(&model), options(Kv::F32, 8)).expect("a session");
        whole.feed(&tokens).expect("a prompt");
        assert!(state(&session) == state(&whole), "{name}");
    }
}

#[test]
fn wrong_tokens_are_refused_before_anything_is_read() {
    let (_, model) = models().remove(0);
    let mut session = Session::new(Arc::clone(&model), options(Kv::F16, 8)).expect("a session");
    assert!(session.sample().is_err(), "nothing has been read");
    let vocab = model.spec().vocab as u32;
    assert!(session.feed(&[1, vocab]).is_err());
    assert_eq!(session.position(), 0);
    session.feed(&[]).expect("nothing is nothing");
    assert_eq!(session.position(), 0);
}
