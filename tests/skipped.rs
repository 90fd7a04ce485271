//! Tests that cannot run on a machine: each is counted, so that none is skipped unseen.

use std::fs::OpenOptions;
use std::io::Write;

/// Notes that a test is skipped because `missing` is missing: on standard error, and as a line of the file that
/// `WATERLINE_SKIPPED` names, which `.ci/run` counts.
pub fn skipped(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    eprintln!("{test}: skipped: no {missing}");
    let Some(path) = std::env::var_os("WATERLINE_SKIPPED") else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    let line = format!("{missing}: {test}\n");
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the list of skipped tests can be written");
}
