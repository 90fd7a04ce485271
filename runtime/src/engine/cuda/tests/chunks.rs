//! Sessions of a model on one device share the memory of chunks and use it one at a time.

use std::sync::Arc;

use crate::cuda::Device;
use crate::loaded::Model;
use crate::session::{Session, SessionOptions};

const CHUNK: usize = 16;

fn session(model: &Arc<Model>, device: &Arc<Device>) -> Session {
    let options = SessionOptions {
        chunk: CHUNK,
        threads: 1,
        device: Some(Arc::clone(device)),
        ..SessionOptions::default()
    };
    Session::new(Arc::clone(model), options).expect("a session")
}

/// Reads a prompt in several chunks and returns the logits after each token.
fn read(session: &mut Session, number: u32) -> Vec<f32> {
    let prompt: Vec<u32> = (0..53).map(|i| (i * 7 + number) % 32).collect();
    let mut all = Vec::new();
    let each = |_, logits: &[f32]| all.extend_from_slice(logits);
    session.feed_each(&prompt, each).expect("a prompt");
    all
}

#[test]
fn two_sessions_need_one_memory_of_chunks() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/gdn_swa");
    let model = Model::open(model).expect("a model");
    let alone = [0, 1].map(|number| read(&mut session(&model, &Device::emulated()), number));

    let device = Device::emulated();
    let free = || device.driver().free_bytes().expect("a number");
    let room = free();
    let one = session(&model, &device);
    let with_one = free();
    let other = session(&model, &device);
    let [first, second] = [room - with_one, with_one - free()];
    let widths = model.program().widths.iter().sum::<usize>();
    let chunk = widths * CHUNK * size_of::<f32>();
    assert!(second + chunk <= first, "{first}, then {second}");

    let together = std::thread::scope(|scope| {
        let threads = [(one, 0), (other, 1)]
            .map(|(mut session, number)| scope.spawn(move || read(&mut session, number)));
        threads.map(|thread| thread.join().expect("logits"))
    });
    assert!(together == alone, "sessions disturb each other");
}
