//! Weights that a device reads directly from the mapped file.

use std::ops::RangeInclusive;
use std::sync::Arc;

use waterline_quant::F16;

use crate::cuda::Device;
use crate::loaded::Model;
use crate::model::Checkpoint;
use crate::session::{Session, SessionOptions};

fn path(name: &str) -> String {
    format!("{}/../tests/models/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Lower and upper bound of the shared bytes: two-dimensional tensors stored in 16 bits, and all two-dimensional tensors.
fn matrix_bytes(name: &str) -> RangeInclusive<usize> {
    let checkpoint = Checkpoint::open(path(name)).expect("a model");
    let tensors = || {
        let tensors = checkpoint.tensors.values();
        tensors.filter(|tensor| tensor.shape.len() > 1)
    };
    let half = tensors().filter(|tensor| tensor.format.name == F16.name);
    half.map(|tensor| tensor.data.len()).sum()..=tensors().map(|tensor| tensor.data.len()).sum()
}

fn session(model: &Arc<Model>, device: &Arc<Device>) -> Session {
    let mut options = SessionOptions {
        chunk: 8,
        threads: 1,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    options.sampler.seed = 1;
    Session::new(Arc::clone(model), options).expect("a session")
}

fn logits(session: &mut Session) -> Vec<f32> {
    session.feed(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).expect("read");
    session.step().expect("a token");
    session.logits().expect("logits").to_vec()
}

#[test]
fn a_device_that_shares_the_hosts_memory_has_no_second_copy_of_matrices() {
    let model = Model::open(path("gdn.gguf")).expect("a model");
    let (copying, sharing) = (Device::emulated(), Device::emulated_sharing());
    let mut copied = session(&model, &copying);
    let mut shared = session(&model, &sharing);
    assert_eq!(logits(&mut copied), logits(&mut shared));
    assert_eq!(copying.shared_bytes(), 0);
    assert!(matrix_bytes("gdn.gguf").contains(&sharing.shared_bytes()));
    // A second session adds nothing.
    let held = (sharing.weight_bytes(), sharing.shared_bytes());
    session(&model, &sharing);
    assert_eq!((sharing.weight_bytes(), sharing.shared_bytes()), held);
}

#[test]
fn a_device_forgets_the_weights_of_models_that_are_gone() {
    let sharing = Device::emulated_sharing();
    for name in ["gdn.gguf", "gla.gguf", "gdn.gguf"] {
        let model = Model::open(path(name)).expect("a model");
        let mut fresh = session(&model, &Device::emulated());
        let mut session = session(&model, &sharing);
        assert_eq!(logits(&mut session), logits(&mut fresh), "{name}");
        assert!(
            matrix_bytes(name).contains(&sharing.shared_bytes()),
            "{name}"
        );
    }
}
