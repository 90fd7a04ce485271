//! If the system refuses memory, however little is available, the program ends with a sentence and a status, never by a signal.
#![cfg(target_os = "linux")]

mod common;

use std::process::Command;

use common::{Workplace, outcome};

#[test]
fn a_limit_of_memory_is_a_sentence() {
    let place = Workplace::new();
    let program = env!("CARGO_BIN_EXE_waterline");
    let (mut refused, mut done) = (0, 0);
    // The system cannot start a program in less memory than its file size.
    let own = std::fs::metadata(program).expect("the program").len() / 1024 + 2_000;
    let limits = (own..own + 40_000).step_by(2_000);
    for kilobytes in limits.chain((own + 40_000..own + 400_000).step_by(40_000)) {
        let script = format!("ulimit -v {kilobytes}; exec {program} run -p Once -n 1 --threads 2");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("HOME", place.home.path());
        let ended = outcome(&mut command);
        match ended.status {
            Some(0) => done += 1,
            // The system's loader found no room for the program.
            Some(127) => {}
            Some(1 | 2) => {
                refused += 1;
                assert!(
                    !ended.stderr.contains("panicked"),
                    "{kilobytes} KB: {}",
                    ended.stderr
                );
                let sentence = ended.stderr.contains("waterline: ");
                assert!(sentence, "{kilobytes} KB: {}", ended.stderr);
            }
            other => panic!("{kilobytes} KB: {other:?}: {}", ended.stderr),
        }
    }
    println!("{refused} refused, {done} done");
    assert!(refused > 0 && done > 0, "{refused} refused, {done} done");
}
