//! Sessions that step together give the same results as alone.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::{Batch, Error, Model, Session, SessionOptions};

/// Returns every fixture and every small model of the repository.
fn models() -> Vec<(String, Arc<Model>)> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let entries = ["fixtures", "models"].map(|folder| std::fs::read_dir(tests.join(folder)));
    let paths = entries
        .into_iter()
        .flat_map(|entries| entries.expect("a folder"));
    let mut paths: Vec<PathBuf> = paths.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| {
        path.join("meta.json").exists() || path.extension() == Some("gguf".as_ref())
    });
    paths.sort();
    assert!(paths.len() > 20);
    let open = |path: &PathBuf| Model::open(path).expect("a model");
    paths
        .iter()
        .map(|path| (path.display().to_string(), open(path)))
        .collect()
}

fn options() -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.threads, options.chunk) = (2, 16);
    options
}

/// Makes a session that has read a prompt that depends on `number`.
fn session(model: &Arc<Model>, number: usize) -> Session {
    let mut options = options();
    options.sampler.temperature = if number == 0 { 0.0 } else { 0.8 };
    options.sampler.seed = number as u64;
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let vocab = model.spec().vocab;
    let prompt: Vec<u32> = (0..7 + 5 * number)
        .map(|i| ((i * 37 + number * 11) % vocab) as u32)
        .collect();
    session.feed(&prompt).expect("a prompt");
    session
}

const STEPS: usize = 24;
/// More than eight rows, which a chunk would multiply in a different order.
const SESSIONS: usize = 10;

/// Returns whether a session takes part in a step: of every five sessions, the second joins late,
/// the third leaves early, and the fifth takes part in every other step.
fn is_in(number: usize, step: usize) -> bool {
    [true, step >= 5, step < 15, true, step.is_multiple_of(2)][number % 5]
}

#[test]
fn sessions_of_a_batch_give_what_they_give_alone() {
    for (name, model) in models() {
        let mut alone: Vec<Session> = (0..SESSIONS).map(|n| session(&model, n)).collect();
        let mut batched: Vec<Session> = (0..SESSIONS).map(|n| session(&model, n)).collect();
        let mut batch = Batch::new(&alone[0], SESSIONS).expect("a batch");
        let bytes = batch.work_bytes();
        for step in 0..STEPS {
            let numbers: Vec<usize> = (0..SESSIONS).filter(|&n| is_in(n, step)).collect();
            let members = batched.iter_mut().enumerate();
            let members = members.filter(|(n, _)| is_in(*n, step));
            let mut members: Vec<&mut Session> = members.map(|(_, session)| session).collect();
            let tokens = batch.step(&mut members).expect("a step").to_vec();
            for (number, token) in numbers.into_iter().zip(tokens) {
                let (one, other) = (&mut alone[number], &batched[number]);
                assert_eq!(
                    one.step().expect("a step"),
                    token,
                    "{name}: session {number}, step {step}"
                );
                let bits = |session: &Session| -> Vec<u32> {
                    session
                        .logits()
                        .expect("logits")
                        .iter()
                        .map(|x| x.to_bits())
                        .collect()
                };
                assert!(
                    bits(one) == bits(other),
                    "{name}: session {number}, step {step}: logits"
                );
                assert_eq!(one.position(), other.position());
            }
            // A session that is not in the batch's step steps alone.
            for number in (4..SESSIONS).step_by(5).filter(|&n| !is_in(n, step)) {
                let [one, other] = [&mut alone[number], &mut batched[number]];
                assert_eq!(one.step().expect("a step"), other.step().expect("a step"));
            }
        }
        assert_eq!(batch.work_bytes(), bytes);
        for (one, other) in alone.iter().zip(&batched) {
            let bytes = |session: &Session| {
                let mut bytes = Vec::new();
                let snapshot = session.snapshot().expect("a snapshot");
                snapshot.write(&mut bytes).expect("bytes");
                bytes
            };
            assert!(bytes(one) == bytes(other), "{name}: another state");
        }
    }
}

#[test]
fn what_a_batch_cannot_step_is_refused_before_anything_is_read() {
    let models = models();
    let [(_, first), (_, second)] = [&models[0], &models[1]];
    let (mut one, mut other) = (session(first, 0), session(second, 1));
    let mut batch = Batch::new(&one, 1).expect("a batch");
    let position = one.position();
    let refused = |outcome: Result<(), Error>| match outcome {
        Err(Error::Invalid { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let step = |batch: &mut Batch, sessions: &mut [&mut Session]| {
        refused(batch.step(sessions).map(|_| ()))
    };
    assert!(step(&mut batch, &mut [&mut other]).contains("another model"));
    let mut fork = one.fork().expect("a fork");
    assert!(step(&mut batch, &mut [&mut one, &mut fork]).contains("up to 1"));
    assert!(refused(batch.feed(&mut [&mut one], &[1, 2])).contains("2 for 1"));
    assert!(refused(batch.feed(&mut [&mut one], &[u32::MAX])).contains("below"));
    assert!(batch.step(&mut []).expect("nobody").is_empty());
    one.canceller().cancel();
    assert!(matches!(
        batch.step(&mut [&mut one]),
        Err(Error::Cancelled { fed: 0 })
    ));
    assert_eq!(one.position(), position);
    batch.feed(&mut [&mut one], &[1]).expect("a token");
    assert_eq!(one.position(), position + 1);
    assert!(Batch::new(&one, 0).is_err());
}

#[test]
fn a_session_that_fails_does_so_alone() {
    for (name, model) in models().into_iter().step_by(5) {
        let mut alone = [session(&model, 0), session(&model, 3)];
        let mut first = session(&model, 0);
        let mut cancelled = session(&model, 1);
        let mut empty = Session::new(Arc::clone(&model), options()).expect("a session");
        let mut last = session(&model, 3);
        let mut batch = Batch::new(&first, 4).expect("a batch");
        for step in 0..STEPS {
            if step % 3 == 1 {
                cancelled.canceller().cancel();
            }
            let position = cancelled.position();
            let mut members = [&mut first, &mut cancelled, &mut empty, &mut last];
            let stepped = batch.step_each(&mut members).expect("a step");
            let failed = matches!(stepped[1], Err(Error::Cancelled { .. }));
            assert_eq!(failed, step % 3 == 1);
            assert_eq!(cancelled.position() > position, !failed);
            assert!(matches!(stepped[2], Err(Error::Invalid { .. })), "{name}");
            for (one, other) in alone.iter_mut().zip([&stepped[0], &stepped[3]]) {
                let token = one.step().expect("a step");
                assert!(other.as_ref().is_ok_and(|&other| other == token), "{name}");
            }
        }
        let bits = |session: &Session| -> Vec<u32> {
            let logits = session.logits().expect("logits");
            logits.iter().map(|x| x.to_bits()).collect()
        };
        assert!(bits(&alone[0]) == bits(&first), "{name}");
        assert!(bits(&alone[1]) == bits(&last), "{name}");
    }
}
