//! Running the ops of a level in either order gives the same bits, because they are independent. On the emulator, or on a GPU if available.

use std::sync::Arc;

use crate::cuda::Device;
use crate::cuda::REVERSED;
use crate::devices::persistent_device;
use crate::engine::StepProgram;
use crate::loaded::Model;
use crate::session::{Session, SessionOptions};
use crate::state::Kv;

/// Reads some tokens one by one and returns the logits after each.
fn logits(model: &Arc<Model>, device: &Arc<Device>, reversed: bool) -> Vec<f32> {
    REVERSED.set(reversed);
    let mut options = SessionOptions {
        chunk: 4,
        threads: 1,
        step: StepProgram::Persistent,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    (options.state.context, options.state.history) = (64, 64);
    options.state.kv = Kv::F32;
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    REVERSED.set(false);
    let mut all = Vec::new();
    for token in [5, 9, 1, 30, 7, 9] {
        session.feed(&[token]).expect("a step");
        all.extend_from_slice(session.logits().expect("logits"));
    }
    all
}

#[test]
fn ops_of_a_level_are_independent() {
    let Some((device, _)) = persistent_device() else {
        return;
    };
    for name in [
        "models/sse-n4k1.gguf",
        "models/lalte.gguf",
        "models/gsa.gguf",
        "fixtures/lalte_stream_gqa",
        "fixtures/rwkv7_plain",
        "fixtures/mom_k2",
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/");
        let model = Model::open(format!("{folder}{name}")).expect("a model");
        let [one, other] = [false, true].map(|reversed| logits(&model, &device, reversed));
        assert!(one.iter().all(|x| x.is_finite()), "{name}");
        assert_eq!(one, other, "{name}");
    }
}
