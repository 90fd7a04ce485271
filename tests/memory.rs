//! Under a memory limit, a session that does not fit gives an error, and the process continues.
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use waterline::{Error, Model, Session, SessionOptions};

/// Runs [`sessions_under_a_limit`] in a new process with an address space of `kib` KiB.
fn under_limit(kib: usize, chunk: usize, threads: usize) -> String {
    let program = std::env::current_exe().expect("this test");
    let output = Command::new("sh")
        .args(["-c", "ulimit -v $0 && exec \"$@\""])
        .arg(kib.to_string())
        .arg(program)
        .args([
            "--exact",
            "sessions_under_a_limit",
            "--ignored",
            "--nocapture",
        ])
        .args(["--test-threads", "1"])
        .env("CHUNK", chunk.to_string())
        .env("THREADS", threads.to_string())
        .output()
        .expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{kib} {}: {text}{errors}",
        output.status
    );
    text
}

#[test]
#[ignore = "started by the other tests"]
fn sessions_under_a_limit() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gdn_plain");
    let model = Model::open(&folder).expect("a fixture");
    let mut options = SessionOptions::default();
    options.chunk = number("CHUNK").unwrap_or(64);
    options.threads = number("THREADS").unwrap_or(1);
    match Session::new(Arc::clone(&model), options) {
        Ok(_) => println!("made"),
        Err(error @ Error::Memory { .. }) => {
            println!("refused: {error}")
        }
        Err(error) => panic!("{error}"),
    }
    // The model can still be used.
    let mut options = SessionOptions::default();
    options.threads = 1;
    let mut session = Session::new(model, options).expect("a small session");
    session.feed(&[1, 2, 3]).expect("tokens");
}

#[test]
fn a_chunk_that_does_not_fit_is_refused() {
    for mib in [150, 200, 300] {
        let text = under_limit(mib << 10, 1 << 16, 1);
        assert!(
            text.contains("refused") && text.contains("bytes"),
            "{mib}: {text}"
        );
    }
}

#[test]
fn threads_that_cannot_be_started_are_refused() {
    for mib in [300, 501, 1003] {
        let text = under_limit(mib << 10, 64, 1024);
        assert!(
            text.contains("refused") && text.contains("threads"),
            "{mib}: {text}"
        );
    }
}

#[test]
fn what_fits_is_made() {
    assert!(under_limit(4 << 20, 64, 2).contains("made"));
}
