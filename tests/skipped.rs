//! Reports tests that cannot run on a machine and counts them, so that no skipped test goes unnoticed.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports that a test is skipped because `missing` is missing: on standard error, and as a line of the file named by `WATERLINE_SKIPPED`,
/// whose lines `.ci/run` counts.
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
