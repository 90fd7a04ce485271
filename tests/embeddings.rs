//! `waterline embed`, vectors in `waterline verify`, and states that are read without logits.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn waterline(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_waterline"))
        .args(arguments)
        .output()
        .expect("waterline runs")
}

/// The standard output of a command that succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = waterline(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The message of a command that fails with bad usage.
fn refused(arguments: &[&str]) -> String {
    let output = waterline(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn vectors(text: &str) -> Vec<Vec<f64>> {
    let number = |word: &str| word.parse().expect("a number");
    let line = |line: &str| line.split(' ').map(number).collect();
    text.lines().map(line).collect()
}

fn case() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/hf_qwen3_embed")
}

/// Copies a case, with `change` applied to the bytes of one of its files.
fn changed(name: &str, change: impl Fn(&mut Vec<u8>)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in [
        "config.json",
        "meta.json",
        "model.safetensors",
        "case.safetensors",
    ] {
        let mut bytes = std::fs::read(case().join(file)).expect("a file of the case");
        if file == name {
            change(&mut bytes);
        }
        std::fs::write(folder.path().join(file), bytes).expect("a file");
    }
    folder
}

#[test]
fn verify_compares_states_and_pooled_vectors() {
    let devices: &[&str] = match cfg!(feature = "emulator") {
        true => &["cpu", "emulator"],
        false => &["cpu"],
    };
    for device in devices {
        let folder = case();
        let folder = folder.to_str().expect("UTF-8");
        let result = printed(&["verify", folder, "--json", "--device", device]);
        let result: Value = serde_json::from_str(&result).expect("JSON");
        for way in ["chunk", "ragged", "steps"] {
            for array in ["final", "embed_mean", "embed_cls", "embed_last"] {
                let difference = &result["ways"][way][array]["max_abs"];
                let difference = difference.as_f64().expect("a difference");
                assert!(difference < 1e-3, "{device}: {way}: {array}: {difference}");
            }
        }
    }
}

#[test]
fn a_wrong_vector_is_found() {
    let folder = changed("case.safetensors", |bytes| {
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let json: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("a header");
        let start = json["embed_last"]["data_offsets"][0]
            .as_u64()
            .expect("an offset") as usize;
        let at = 8 + header + start;
        bytes[at..at + 4].copy_from_slice(&2.0f32.to_le_bytes());
    });
    let output = waterline(&["verify", folder.path().to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
}

/// A text has the vector that it has alone, whatever was read before it; vectors have unit length.
#[test]
fn each_text_has_its_vector() {
    let alone = vectors(&printed(&[
        "embed",
        "--pooling",
        "mean",
        "A red cat",
        "--chunk",
        "2",
    ]));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, "A blue dog sat in the sun\nA red cat\n").expect("a file");
    let file = file.to_str().expect("UTF-8");
    let both = printed(&["embed", "--pooling=mean", "--file", file, "--chunk", "2"]);
    let both = vectors(&both);
    assert_eq!((both.len(), &both[1]), (2, &alone[0]));
    assert_ne!(both[0], both[1]);
    for vector in &both {
        let squares: f64 = vector.iter().map(|x| x * x).sum();
        assert!((squares - 1.0).abs() < 1e-5, "{squares}");
    }
    let plain = printed(&["embed", "--pooling=mean", "--normalize=false", "A red cat"]);
    let plain = vectors(&plain);
    let ratio = plain[0][0] / alone[0][0];
    let close = |(a, b): (&f64, &f64)| (a - ratio * b).abs() < 1e-4 * ratio;
    assert!((ratio - 1.0).abs() > 0.1 && plain[0].iter().zip(&alone[0]).all(close));
    let json = printed(&["embed", "--pooling=mean", "--json", "A red cat", "B"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["embeddings"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        json["dimensions"],
        json["embeddings"][1]["embedding"]
            .as_array()
            .expect("numbers")
            .len()
    );
}

#[test]
fn what_the_files_do_not_state_is_refused() {
    for (arguments, sentence) in [
        (&["embed", "A"][..], "pooling: the model's files name none"),
        (
            &["embed", "A", "--pooling", "max"],
            "expected mean, cls or last",
        ),
        (
            &["embed", "A", "--pooling=cls", "--dimensions=8"],
            "dimensions: found 8",
        ),
        (
            &["embed", "A", "--pooling=cls", "--task=query"],
            "task: found \"query\"",
        ),
    ] {
        let said = refused(arguments);
        assert!(said.contains(sentence), "{arguments:?}: {said}");
    }
}

/// No token can be chosen after states were read, until tokens are fed again; a later history does not continue from them.
#[test]
fn a_session_without_logits_chooses_no_token() {
    use waterline::{Device, Model, Session, SessionOptions};
    let devices: [Option<std::sync::Arc<Device>>; 2] = [
        None,
        #[cfg(feature = "emulator")]
        Some(Device::emulated()),
        #[cfg(not(feature = "emulator"))]
        None,
    ];
    for (device, exact) in devices
        .into_iter()
        .flat_map(|d| [(d.clone(), false), (d, true)])
    {
        let model = Model::open(case()).expect("a model");
        let mut options = SessionOptions::default();
        (options.state.context, options.chunk) = (64, 16);
        (options.device, options.exact) = (device, exact);
        let mut session = Session::new(model, options).expect("a session");
        session.feed(&[1, 2, 3, 4, 5]).expect("tokens are read");
        let expected = session.logits().expect("logits").to_vec();
        session.reset().expect("an empty session");
        let mut states = 0;
        for tokens in [&[1, 2, 3][..], &[4]] {
            let read = session.feed_states(tokens, |_, _| states += 1);
            read.expect("states");
            session.sample().expect_err("there are no logits");
        }
        assert_eq!(states, 4);
        session.feed(&[5]).expect("a token is read");
        let found = session.logits().expect("logits");
        let far = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-2;
        assert!(!found.iter().zip(&expected).any(far));
        session.feed_states(&[6], |_, _| ()).expect("states");
        let read = session
            .read_history(&[1, 2, 3, 4, 5, 6])
            .expect("a history");
        assert_eq!(read.reused, 0);
        session.check_logits().expect("logits");
    }
}
