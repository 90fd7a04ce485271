//! Models that are copied into memory outlive their files.

use std::path::{Path, PathBuf};

use waterline::{Model, OpenOptions, Session, SessionOptions};

fn logits(path: &Path, after_opening: impl FnOnce()) -> Vec<u32> {
    let options = OpenOptions {
        copy: true,
        ..OpenOptions::default()
    };
    let model = Model::open_with(path, &options).expect("a model");
    after_opening();
    let mut session = Session::new(model, SessionOptions::default()).expect("a session");
    session.feed(&[3, 1, 4, 1, 5]).expect("tokens");
    let logits = session.logits().expect("logits").iter();
    logits.map(|logit| logit.to_bits()).collect()
}

#[test]
fn files_of_a_copied_model_may_be_shortened_and_rewritten() {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let folder = tempfile::tempdir().expect("a folder");
    let gguf = folder.path().join("model.gguf");
    std::fs::copy(tests.join("models/gdn-swa.gguf"), &gguf).expect("copied");
    let case = folder.path().join("case");
    std::fs::create_dir(&case).expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        let from = tests.join("fixtures/gdn_swa").join(file);
        std::fs::copy(from, case.join(file)).expect("copied");
    }
    for (model, weights) in [
        (&gguf, gguf.clone()),
        (&case, case.join("model.safetensors")),
    ] {
        let expected = logits(model, || ());
        let length = std::fs::metadata(&weights).expect("a file").len();
        let found = logits(model, || {
            let file = std::fs::File::options().write(true).open(&weights);
            let file = file.expect("the file");
            file.set_len(10).expect("shortened");
            file.set_len(length).expect("zeros");
        });
        assert!(found == expected, "{}", weights.display());
    }
}
