//! A value that is never published becomes an error that names the op. The session is lost; the device is not.

use std::sync::Arc;

use crate::cuda::Device;
use crate::cuda::FAULT;
use crate::engine::StepProgram;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::session::{Session, SessionOptions};

fn open(model: &Arc<Model>, device: &Arc<Device>, fault: Option<u32>) -> Session {
    FAULT.set(fault);
    let mut options = SessionOptions {
        chunk: 4,
        threads: 1,
        marks: 1,
        step: StepProgram::Persistent,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    options.sampler.seed = 1;
    let session = Session::new(Arc::clone(model), options).expect("a session");
    FAULT.set(None);
    session
}

fn tokens(session: &mut Session) -> Result<Vec<u32>> {
    session.feed(&[5, 9, 1])?;
    (0..3).map(|_| session.step()).collect()
}

#[test]
fn a_value_that_is_never_published_loses_the_session_and_not_the_device() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/models/gdn.gguf");
    let model = Model::open(folder).expect("a model");
    let device = Device::emulated();
    let whole = tokens(&mut open(&model, &device, None)).expect("tokens");
    let mut found = Vec::new();
    for op in 0..8 {
        let mut session = open(&model, &device, Some(op));
        let snapshot = session.snapshot().expect("an empty state");
        // The emulator runs a single thread block, which waits for no arrivals, so a fault in an op that publishes nothing has no effect.
        let Err(error) = tokens(&mut session) else {
            continue;
        };
        assert!(matches!(error, Error::Device { .. }), "{error}");
        let error = error.to_string();
        assert!(
            error.starts_with(
                "emulator: thread block 0 waited more than 12 s for a value in a mailbox in op"
            ),
            "{error}"
        );
        let again = [
            session.feed(&[1]).err(),
            session.step().err(),
            session.sample().err(),
            session.snapshot().err(),
            session.restore(&snapshot).err(),
            session.mark().err(),
            session.fork().err(),
            session.reset().err(),
        ];
        for (operation, other) in again.into_iter().enumerate() {
            let other = other.unwrap_or_else(|| panic!("operation {operation} went through"));
            assert_eq!(other.to_string(), error);
        }
        found.push(error);
        let other = tokens(&mut open(&model, &device, None));
        assert_eq!(other.expect("tokens of another session"), whole);
    }
    // Both GEMVs and recurrences wait for GEMVs.
    for op in ["(streaming_gemv)", "(recur_step)"] {
        assert!(found.iter().any(|error| error.contains(op)), "{found:?}");
    }
}
