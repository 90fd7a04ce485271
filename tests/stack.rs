//! Reading and generating need little of the caller's stack, because threads on some systems have 128 KiB.

use std::path::PathBuf;
use std::sync::Arc;

use waterline::internal::Checkpoint;
use waterline::{Model, Session, SessionOptions};
use waterline_quant::{BF16, Bytes, F16, F32, Format, Q8_0, Tensor};

/// The bytes of the stack.
const STACK: usize = 128 << 10;

/// Reads a prompt of several chunks and generates, computing only on a thread with this stack.
fn read(model: Arc<Model>) {
    let mut options = SessionOptions::default();
    options.state.context = 1024;
    (options.threads, options.chunk) = (1, 300);
    options.sampler.seed = 1;
    let tokens: Vec<u32> = (0..700u32)
        .map(|i| i * 37 % model.spec().vocab as u32)
        .collect();
    let mut session = Session::new(model, options).expect("a session");
    let thread = std::thread::Builder::new().stack_size(STACK);
    let work = move || {
        session.feed(&tokens).expect("a prompt");
        for _ in 0..4 {
            session.step().expect("a step");
        }
        session.position()
    };
    let read = thread.spawn(work).expect("a thread").join();
    assert_eq!(read.expect("no panic"), 704);
}

fn fixtures() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let entries = std::fs::read_dir(folder).expect("tests/fixtures");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    paths
}

/// Opens a model with its matrices converted to another format.
fn stored_as(path: &PathBuf, format: &'static Format) -> Arc<Model> {
    let mut checkpoint = Checkpoint::open(path).expect("a fixture opens");
    for tensor in checkpoint.tensors.values_mut() {
        let is_matrix = tensor.shape.len() == 2 && tensor.format == &F32;
        let Ok(bytes) = format.tensor_bytes(&tensor.shape) else {
            continue;
        };
        if is_matrix {
            let mut data = vec![0; bytes];
            format.encode_or_imitate(&tensor.to_f32(), &mut data);
            *tensor =
                Tensor::new(format, tensor.shape.clone(), Bytes::from_vec(data)).expect("a tensor");
        }
    }
    Model::bind(checkpoint).expect("a model")
}

#[test]
fn every_mixer_reads_a_prompt_with_a_small_stack() {
    let paths = fixtures();
    assert!(paths.len() >= 16, "the fixtures are part of the repository");
    for path in paths {
        eprintln!("{}", path.display());
        read(Model::open(&path).expect("a fixture opens"));
    }
}

#[test]
fn every_kind_of_product_does() {
    for format in [&F16, &BF16, &Q8_0] {
        for path in fixtures()
            .into_iter()
            .filter(|path| path.ends_with("gdn_plain"))
        {
            read(stored_as(&path, format));
        }
    }
}
