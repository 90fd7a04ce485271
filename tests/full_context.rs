//! A full context: the first tokens are kept while attention forgets the oldest ones, or the newest tokens are read again.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{ContextEnd, Device, Error, Kv, Model, Session, SessionOptions};

const CONTEXT: usize = 24;
const KEEP: usize = 3;
/// Rounding differs between positions when keys are rotated, and between chunks and steps.
const ROUNDING: f32 = 2e-4;

fn model(name: &str) -> Arc<Model> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    Model::open(folder.join(name)).expect("a fixture")
}

/// Returns models whose attention reads the entire context: with rotary positions, and next to recurrent layers.
fn models() -> [Arc<Model>; 2] {
    ["transformer_full", "hf_qwen3_5_images"].map(model)
}

fn device() -> Option<Arc<Device>> {
    match std::env::var("WATERLINE_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::open(0).expect("a GPU")),
        _ => None,
    }
}

fn options(end: ContextEnd) -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (CONTEXT, 8);
    options.state.kv = Kv::F32;
    (options.context_end, options.keep) = (end, KEEP);
    (options.chunk, options.threads, options.device) = (7, 2, device());
    options
}

fn session(model: &Arc<Model>, end: ContextEnd) -> Session {
    Session::new(Arc::clone(model), options(end)).expect("a session")
}

fn tokens(model: &Model, count: usize, seed: u32) -> Vec<u32> {
    let vocab = model.spec().vocab as u32;
    let mut number = seed;
    let mut next = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 8) % vocab
    };
    (0..count).map(|_| next()).collect()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(b);
    pairs.fold(0.0f32, |m, (x, y)| m.max((x - y).abs() / largest))
}

/// Returns the keys `[heads, context, width]` of the first layer that caches the context, and their width.
fn keys(session: &Session) -> (Vec<f32>, usize) {
    let snapshot = session.snapshot().expect("a snapshot");
    let (tensor, bytes) = snapshot
        .tensors()
        .find(|(tensor, _)| tensor.name == "keys" && tensor.shape[1] == CONTEXT)
        .expect("cached keys");
    let floats = bytes.as_chunks().0.iter();
    let keys = floats.map(|&x| f32::from_le_bytes(x)).collect();
    (keys, tensor.shape[2])
}

#[test]
fn first_tokens_move_as_if_they_had_been_read_where_they_come() {
    let model = model("transformer_full");
    let first = tokens(&model, CONTEXT, 1);
    let mut shifted = session(&model, ContextEnd::Shift);
    shifted.feed(&first).expect("a full context");
    shifted.feed(&tokens(&model, 1, 2)).expect("one more");
    // A key of the first layer depends only on its token and its position.
    let mut expected = session(&model, ContextEnd::Refuse);
    let half = CONTEXT / 2;
    expected.feed(&first[..half]).expect("others");
    expected.feed(&first[..KEEP]).expect("the first ones again");
    let ((found, width), (there, _)) = (keys(&shifted), keys(&expected));
    let rows = half * width..(half + KEEP) * width;
    assert!(difference(&found[rows.clone()], &there[rows]) < ROUNDING);
    // After another half context they are at the beginning again, twelve positions further.
    shifted.feed(&tokens(&model, half, 3)).expect("half more");
    let (found, _) = keys(&shifted);
    let mut later = session(&model, ContextEnd::Shift);
    later.feed(&first[..KEEP]).expect("the first ones");
    let turned = &found[..KEEP * width];
    assert!(
        difference(turned, &keys(&later).0[..KEEP * width]) > 0.1,
        "they turn"
    );
}

#[test]
fn any_split_shifts_as_single_steps_do() {
    for model in models() {
        let text = tokens(&model, 4 * CONTEXT + 5, 4);
        let mut steps = session(&model, ContextEnd::Shift);
        for token in &text {
            steps.feed(&[*token]).expect("a step");
        }
        for piece in [3, 11, text.len()] {
            let mut split = session(&model, ContextEnd::Shift);
            for piece in text.chunks(piece) {
                split.feed(piece).expect("a piece");
            }
            let logits = [&split, &steps].map(|session| session.logits().expect("logits"));
            assert!(
                difference(logits[0], logits[1]) < 10.0 * ROUNDING,
                "{piece}"
            );
            assert_eq!(split.position(), text.len() as u64);
        }
    }
}

/// Without the first tokens, attention has other keys and the results differ.
#[test]
fn the_first_tokens_are_seen_after_a_shift() {
    let model = model("transformer_full");
    let logits = |keep: usize, first: u32| {
        let mut options = options(ContextEnd::Shift);
        options.keep = keep;
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        session.feed(&tokens(&model, KEEP, first)).expect("first");
        session.feed(&tokens(&model, 3 * CONTEXT, 9)).expect("more");
        session.logits().expect("logits").to_vec()
    };
    assert!(difference(&logits(KEEP, 5), &logits(KEEP, 6)) > 10.0 * ROUNDING);
    assert!(difference(&logits(0, 5), &logits(KEEP, 5)) > 10.0 * ROUNDING);
}

#[test]
fn a_compacted_session_is_one_that_has_read_the_kept_tokens() {
    for model in models() {
        let text = tokens(&model, 3 * CONTEXT, 7);
        let mut compacted = session(&model, ContextEnd::Compact);
        compacted.feed(&text).expect("all of it");
        let read = compacted.position() as usize;
        assert!(read <= CONTEXT);
        let kept = [&text[..KEEP], &text[text.len() - (read - KEEP)..]].concat();
        let mut plain = session(&model, ContextEnd::Refuse);
        plain.feed(&kept).expect("the kept tokens");
        let logits = [&compacted, &plain].map(|session| session.logits().expect("logits"));
        assert!(difference(logits[0], logits[1]) < ROUNDING);

        // A complete history is compacted before it is read, and a longer history continues from there.
        let mut told = session(&model, ContextEnd::Compact);
        let found = told.read_history(&text).expect("a history");
        assert_eq!((found.reused, found.read), (0, read));
        let longer = [&text[..], &tokens(&model, 2, 8)].concat();
        let found = told.read_history(&longer).expect("a longer one");
        let (reused, position) = (found.reused, told.position() as usize);
        assert!(reused == read || position < read, "{reused} of {read}");
        compacted.feed(&longer[text.len()..]).expect("the same");
        assert_eq!(compacted.position(), told.position());
        let logits = [&compacted, &told].map(|session| session.logits().expect("logits"));
        assert!(difference(logits[0], logits[1]) < ROUNDING);
    }
}

#[test]
fn memory_is_planned_and_too_many_first_tokens_are_refused() {
    let model = model("transformer_full");
    for end in [ContextEnd::Refuse, ContextEnd::Shift, ContextEnd::Compact] {
        let options = options(end);
        let plan = Session::plan(&model, &options).expect("a plan");
        let session = Session::new(Arc::clone(&model), options).expect("a session");
        if session.device_bytes() == 0 {
            assert_eq!(plan.work_bytes, session.work_bytes(), "{end:?}");
        }
        assert_eq!(plan.state_bytes, session.state_bytes(), "{end:?}");
    }
    let mut wrong = options(ContextEnd::Shift);
    wrong.keep = CONTEXT / 2;
    let refused = Session::new(Arc::clone(&model), wrong).map(|_| ());
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

#[test]
fn forks_and_saved_states_shift_like_the_session_itself() {
    for model in models() {
        let mut one = session(&model, ContextEnd::Shift);
        one.feed(&tokens(&model, CONTEXT + CONTEXT / 2, 10))
            .expect("before a shift");
        let mut fork = one.fork().expect("a fork");
        let mut restored = session(&model, ContextEnd::Shift);
        restored
            .restore(&one.snapshot().expect("a snapshot"))
            .expect("restored");
        let rest = tokens(&model, CONTEXT, 11);
        for other in [&mut one, &mut fork, &mut restored] {
            other.feed(&rest).expect("after it");
        }
        let expected = one.logits().expect("logits");
        assert_eq!(fork.logits().expect("logits"), expected);
        assert_eq!(restored.logits().expect("logits"), expected);
    }
}

#[cfg(feature = "emulator")]
#[test]
fn a_gpu_shifts_like_a_cpu() {
    let model = model("transformer_full");
    let text = tokens(&model, 2 * CONTEXT + 3, 12);
    let on = |device: Option<Arc<Device>>| {
        let mut options = options(ContextEnd::Shift);
        options.device = device;
        let mut session = Session::new(Arc::clone(&model), options).expect("a session");
        session.feed(&text[..CONTEXT]).expect("a full context");
        for token in &text[CONTEXT..] {
            session.feed(&[*token]).expect("a step");
        }
        session.logits().expect("logits").to_vec()
    };
    assert!(difference(&on(Some(Device::emulated())), &on(None)) < 10.0 * ROUNDING);
}
