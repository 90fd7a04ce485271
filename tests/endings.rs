//! Runs that end early: the output is full, the reader closes it, or a signal arrives.

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{Workplace, fixture};

#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error() {
    let place = Workplace::new();
    for arguments in [
        &["run", "-p", "Hello"][..],
        &["inspect"],
        &["run", "-p", "Hello", "--json"],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = place
            .command(arguments)
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(
            error.starts_with("waterline: cannot write to standard output")
                && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn a_reader_may_leave() {
    let place = Workplace::new();
    let mut child = place
        .command(["run", "-p", "Hello", "-n", "100000000", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    child.stdout.take().unwrap().read_exact(&mut byte).unwrap();
    // The pipe is closed now.
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap().as_str()
        ),
        (Some(0), "")
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_and_keeps_its_output() {
    for signal in ["INT", "TERM", "HUP"] {
        ends_a_run(signal);
    }
}

#[cfg(unix)]
fn ends_a_run(signal: &str) {
    let place = Workplace::new();
    let mut child = place
        .command([
            "run",
            "-p",
            "Hello",
            "-n",
            "100000000",
            "--ignore-eos",
            "--json-stream",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut printed = vec![0];
    stdout.read_exact(&mut printed).unwrap();
    common::send(&child, signal);
    stdout.read_to_end(&mut printed).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "waterline: interrupted\n"
    );
    let last: serde_json::Value =
        serde_json::from_str(String::from_utf8(printed).unwrap().lines().last().unwrap()).unwrap();
    assert_eq!(last["finish"], "cancelled");
    assert!(last["tokens"].as_u64().unwrap() > 0);
}

#[test]
fn a_reader_may_leave_before_the_result() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let text = place
        .file("text.txt", "Once upon a time there was a dog.")
        .display()
        .to_string();
    let case = fixture("gdn_plain").display().to_string();
    for arguments in [
        &[
            "bench", &model, "--prompt", "4", "--gen", "1", "--depth", "0",
        ][..],
        &["eval", "bpb", &text, &model],
        &[
            "eval",
            "recall",
            &case,
            "--task",
            "mqar",
            "--keys",
            "2",
            "--sequences",
            "1",
        ],
        &["inspect", &model],
        &["verify", &case],
        &["verify", &case, "--json"],
    ] {
        let mut child = place
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), error.as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
}
