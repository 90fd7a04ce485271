//! A device that is lost in the middle of a call or too small causes errors, not panics, and the session continues elsewhere.

use std::sync::Arc;

use crate::cuda::Device;
use crate::cuda::Emulator;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::model::Checkpoint;
use crate::sampler::SamplerParams;
use crate::session::{
    Chat, GenerateOptions, PrefixStore, PrefixStoreOptions, Session, SessionOptions,
};
use crate::state::{Kv, Snapshot, StateOptions};

fn model(name: &str) -> Arc<Model> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../");
    Model::open(format!("{folder}{name}")).expect("a model")
}

fn options(device: Option<Arc<Device>>) -> SessionOptions {
    let mut options = SessionOptions {
        chunk: 8,
        threads: 1,
        marks: 2,
        device,
        ..SessionOptions::default()
    };
    (options.state.context, options.state.history) = (64, 64);
    options.state.kv = Kv::F32;
    options.sampler.seed = 1;
    options
}

fn sampling() -> SamplerParams {
    let mut sampling = SamplerParams::default();
    sampling.repetition_penalty = 1.2;
    sampling.seed = 5;
    sampling
}

/// Calls every public operation of a session once and returns the chosen tokens. `saved` holds the last snapshot.
fn everything(
    model: &Arc<Model>,
    device: Option<Arc<Device>>,
    saved: &mut Option<Snapshot>,
) -> Result<Vec<u32>> {
    let mut session = Session::new(Arc::clone(model), options(device))?;
    let mut tokens = Vec::new();
    session.feed(&[1, 2, 3, 4, 5])?;
    *saved = Some(session.snapshot()?);
    session.mark()?;
    tokens.push(session.step()?);
    session.set_sampler(sampling())?;
    tokens.push(session.step()?);
    tokens.push(session.sample()?);
    session.feed_each(&[6, 7], |_, _| ())?;
    session.logits()?;
    let mut copy = session.snapshot()?;
    session.rewind(5)?;
    session.snapshot_into(&mut copy)?;
    session.restore(&copy)?;
    *saved = Some(copy);
    let mut fork = session.fork()?;
    tokens.push(fork.step()?);
    session.reset()?;
    session.feed(&[8])?;
    tokens.push(session.step()?);
    *saved = Some(session.snapshot()?);
    Ok(tokens)
}

#[test]
fn every_operation_on_a_lost_device_is_a_sentence() {
    let model = model("tests/fixtures/gdn_plain");
    let whole = everything(&model, Some(Device::emulated()), &mut None).expect("a device");
    let mut survived = 0;
    for operations in 0..4096 {
        let mut saved = None;
        let device = Device::emulated_until(operations);
        match everything(&model, Some(device), &mut saved) {
            Ok(tokens) => {
                assert_eq!(tokens, whole);
                survived = operations;
                break;
            }
            Err(error) => {
                assert!(matches!(error, Error::Device { .. }), "{error}");
                assert_eq!(error.to_string(), "emulator: the device was lost");
            }
        }
        // The last snapshot can be continued on the CPU.
        if let Some(saved) = saved {
            let mut session = Session::new(Arc::clone(&model), options(None)).expect("a session");
            session.restore(&saved).expect("a state");
            session.step().expect("a token");
        }
    }
    assert!(survived > 50, "{survived} operations");
}

#[test]
fn a_session_whose_device_was_lost_refuses_everything_and_keeps_its_position() {
    let model = model("tests/fixtures/gdn_plain");
    // The smallest number of device operations that reaches the first token.
    let open = |operations| {
        let device = Device::emulated_until(operations);
        let mut session = Session::new(Arc::clone(&model), options(Some(device)))?;
        session.feed(&[1, 2, 3])?;
        Ok::<_, Error>(session)
    };
    let mut session = (0..4096).find_map(|n| open(n).ok()).expect("enough");
    let on_cpu = Session::new(Arc::clone(&model), options(None)).expect("a session");
    let snapshot = on_cpu.snapshot().expect("a snapshot");
    let mut copy = snapshot.clone();
    let refused = [
        session.feed(&[4]).err(),
        session.feed_each(&[4, 5], |_, _| ()).err(),
        session.step().err(),
        session.sample().err(),
        session.logits().err(),
        session.snapshot().err(),
        session.snapshot_into(&mut copy).err(),
        session.restore(&snapshot).err(),
        session.mark().err(),
        session.rewind(1).err(),
        session.fork().err(),
        session.reset().err(),
    ];
    for (operation, error) in refused.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("operation {operation} went through"));
        assert!(
            matches!(error, Error::Device { .. }),
            "{operation}: {error}"
        );
    }
    session.set_sampler(sampling()).expect("parameters");
    assert_eq!(
        (session.position(), session.recent().0),
        (3, &[1, 2, 3][..])
    );
}

#[test]
fn a_conversation_outlives_its_device() {
    // Uses only the first two layers: the emulator takes a second per token of the complete model.
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tools/model/waterline-chat.gguf"
    );
    let mut checkpoint = Checkpoint::open(path).expect("a model");
    checkpoint.spec.layers.truncate(2);
    let model = Model::bind(checkpoint).expect("a model");
    let options = |device| SessionOptions {
        state: StateOptions::default(),
        ..options(device)
    };
    let talk = |device: Arc<Device>| -> Result<(Chat, Session, Snapshot)> {
        let mut session = Session::new(Arc::clone(&model), options(Some(device)))?;
        let mut chat = Chat::new(&session)?;
        chat.send(&mut session, "Hi", |_, _| ())?;
        chat.answered(&mut session, "Hello")?;
        let snapshot = chat.snapshot(&session)?;
        Ok((chat, session, snapshot))
    };
    // The number of device operations that the conversation needs.
    let emulator = Emulator::open();
    let talked = talk(Device::on(emulator.clone())).expect("a device");
    let enough = usize::MAX - emulator.operations_left();
    drop(talked);
    assert!(enough <= 4096, "more than 4096 operations: {enough}");
    assert!(talk(Device::emulated_until(enough - 1)).is_err());
    let (mut chat, mut session, snapshot) = talk(Device::emulated_until(enough)).expect("enough");
    let said = |chat: &Chat| -> Vec<String> {
        let messages = chat.messages().iter();
        messages.map(|message| message.content.clone()).collect()
    };
    let before = said(&chat);
    assert_eq!(before, ["Hi", "Hello"]);
    let lost = |error: Error| assert!(matches!(error, Error::Device { .. }), "{error}");
    lost(chat.send(&mut session, "Again", |_, _| ()).unwrap_err());
    lost(chat.undo(&mut session).unwrap_err());
    lost(chat.clear(&mut session).unwrap_err());
    lost(chat.snapshot(&session).err().expect("an error"));
    lost(chat.restore(&mut session, &snapshot).unwrap_err());
    let mut pieces = session
        .generate(GenerateOptions::default())
        .expect("a start");
    lost(pieces.next().expect("a piece").unwrap_err());
    assert!(pieces.next().is_none());
    assert_eq!(said(&chat), before);

    let mut session = Session::new(Arc::clone(&model), options(None)).expect("a session");
    chat.restore(&mut session, &snapshot).expect("a state");
    assert_eq!(said(&chat), before);
    chat.send(&mut session, "Again", |_, _| ()).expect("sent");
}

#[test]
fn a_full_memory_is_a_sentence_and_gives_back_what_was_taken() {
    let model = model("tests/fixtures/gdn_plain");
    let device = Device::emulated_with(1 << 20);
    let error = Session::new(Arc::clone(&model), options(Some(Arc::clone(&device)))).err();
    let error = error.expect("too small").to_string();
    assert_eq!(
        error,
        "emulator: its memory is full; choose a smaller model, context or chunk"
    );
    // Weights are allocated 32 MiB at a time.
    let device = Device::emulated_with(40 << 20);
    for _ in 0..20 {
        let session = Session::new(Arc::clone(&model), options(Some(Arc::clone(&device))));
        session.expect("room").feed(&[1]).expect("read");
    }
}

#[test]
fn a_device_that_is_lost_under_a_checkpoint_leaves_a_store_that_serves() {
    let model = model("tests/fixtures/gdn_plain");
    let vocab = model.spec().vocab as u32;
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % vocab).collect();
    let mut fresh = Session::new(Arc::clone(&model), options(None)).expect("a session");
    fresh.feed(&tokens).expect("logits");
    let (mut lost, mut reused) = (0, 0);
    for operations in 0..4096 {
        let store = PrefixStore::new(PrefixStoreOptions {
            grid: 8,
            ..PrefixStoreOptions::default()
        });
        let store = store.expect("a store");
        let session = |device| {
            let mut options = options(device);
            options.store = Some(Arc::clone(&store));
            Session::new(Arc::clone(&model), options)
        };
        let read = || {
            let mut session = session(Some(Device::emulated_until(operations)))?;
            session.read_history(&tokens)?;
            session.read_history(&tokens[..30])?;
            session.step()
        };
        let done = read();
        let mut on_cpu = session(None).expect("a session");
        let found = on_cpu.read_history(&tokens).expect("a history");
        let logits = on_cpu.logits().expect("logits").iter();
        let mut others = logits.zip(fresh.logits().expect("logits"));
        assert!(others.all(|(one, other)| (one - other).abs() < 1e-3));
        match done {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, Error::Device { .. }), "{error}"),
        }
        lost += 1;
        reused += usize::from(found.reused > 0);
    }
    assert!(lost > 50 && reused > 10, "{lost} lost, {reused} reused");
}
