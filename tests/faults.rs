//! A failing disk: each system call of a command on its files fails once, or does less than requested. The command must end with a message
//! and a status, the file that it replaces must be complete, and no temporary file may remain, except one that the next run continues;
//! interrupted and short calls must change nothing.
#![cfg(target_os = "linux")]

mod common;
mod fault_shim;
mod skipped;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{Workplace, copy_fixture, outcome, outcome_of_input};
use fault_shim::shim;

/// Linux error numbers.
const EINTR: &str = "4";
const EIO: &str = "5";
const ENOMEM: &str = "12";
const ENOSPC: &str = "28";

/// The system calls made on files, and how each may fail.
const FAULTS: &[(&str, &[&str])] = &[
    ("open", &[EIO, EINTR]),
    ("read", &[EIO, EINTR, "short"]),
    ("write", &[EIO, ENOSPC, EINTR, "short"]),
    ("fsync", &[EIO, ENOSPC]),
    ("ftruncate", &[EIO, ENOSPC]),
    ("rename", &[EIO, ENOSPC]),
    ("mmap", &[ENOMEM]),
];

/// A command, and the file that it writes.
struct Work<'a> {
    arguments: Vec<String>,
    input: &'a str,
    output: Option<PathBuf>,
}

/// Runs the work with every fault; returns the number of faults that happened.
fn run(work: &Work, folder: &Path) -> usize {
    let place = Workplace::new();
    let Some(library) = shim(place.home.path()) else {
        return usize::MAX;
    };
    let happened = place.path("happened");
    let plain = || place.command(&work.arguments);
    let command = || {
        let mut command = plain();
        command
            .env("LD_PRELOAD", &library)
            .env("WATERLINE_FAULT_FOLDER", folder)
            .env("WATERLINE_FAULT_FILE", &happened);
        command
    };
    let mut whole = command();
    let whole = outcome_of_input(&mut whole, work.input.as_bytes());
    assert_eq!(whole.status, Some(0), "{}", whole.stderr);
    let written = || {
        work.output
            .as_ref()
            .map(|path| std::fs::read(path).expect("written"))
    };
    let expected = written();
    let partial = work
        .output
        .as_ref()
        .map(|path| path.with_added_extension("partial"));
    let mut count = 0;
    for (call, faults) in FAULTS {
        for fault in *faults {
            for number in 0.. {
                if let Some(path) = &work.output {
                    std::fs::write(path, "before").expect("written");
                }
                let what = format!("{:?}: {call} {number} {fault}", work.arguments[0]);
                let mut command = command();
                command.env("WATERLINE_FAULT", format!("{call} {number} {fault}"));
                let ended = outcome_of_input(&mut command, work.input.as_bytes());
                if std::fs::remove_file(&happened).is_err() {
                    assert_eq!(ended.status, Some(0), "{what}: {}", ended.stderr);
                    break;
                }
                count += 1;
                let harmless = [EINTR, "short"].contains(fault);
                let said = ended.stderr.contains("waterline: ") || work.input.contains("/save");
                match ended.status {
                    Some(0) if work.input.contains("/save") => {}
                    Some(0) => assert!(written() == expected, "{what}: another file"),
                    Some(1 | 2) if !harmless => assert!(said, "{what}: {}", ended.stderr),
                    other => panic!("{what}: {other:?}: {}", ended.stderr),
                }
                if let Some(found) = written() {
                    let kept = found == b"before" || Some(&found) == expected.as_ref();
                    assert!(kept, "{what}: {} bytes", found.len());
                }
                if partial.as_ref().is_some_and(|path| path.exists()) {
                    let continued = outcome(&mut plain());
                    assert_eq!(continued.status, Some(0), "{what}: {}", continued.stderr);
                    assert!(written() == expected, "{what}: continued");
                }
                let left = std::fs::read_dir(folder)
                    .expect("a folder")
                    .filter(|entry| {
                        let name = entry.as_ref().expect("an entry").file_name();
                        let name = name.to_string_lossy();
                        name.starts_with(".waterline-") || name.ends_with(".partial")
                    });
                assert_eq!(left.count(), 0, "{what}: a temporary file is left");
            }
        }
    }
    count
}

fn texts(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|text| text.to_string()).collect()
}

#[test]
fn a_failing_disk_is_a_sentence_and_leaves_whole_files() {
    let place = Workplace::new();
    let folder = place.path("files");
    let model = folder.join("model");
    copy_fixture("gdn_swa", &model);
    let output = folder.join("out.gguf");
    let name = |path: &Path| path.display().to_string();
    let convert = [
        "convert",
        &name(&model),
        "-o",
        &name(&output),
        "--type",
        "f16",
    ];
    let work = Work {
        arguments: texts(&convert),
        input: "",
        output: Some(output.clone()),
    };
    let count = run(&work, &folder);
    assert!(count > 20, "{count} faults");

    outcome(&mut place.command(convert)).succeeded();
    for copy in [None, Some("--copy")] {
        let mut arguments = texts(&["inspect", &name(&output)]);
        arguments.extend(copy.map(str::to_string));
        let work = Work {
            arguments,
            input: "",
            output: None,
        };
        assert!(run(&work, &folder) > 0);
    }
}

#[test]
fn a_state_is_written_whole_or_continued() {
    let place = Workplace::new();
    let folder = place.path("files");
    std::fs::create_dir_all(&folder).expect("a folder");
    let model = place.model("gdn-tiny").display().to_string();
    let text = place.file("files/book.txt", "The ship was far. ".repeat(10));
    let text = text.display().to_string();
    let output = folder.join("book.state");
    let name = output.display().to_string();
    let read = ["read", &text, "-o", &name, "-m", &model, "--segment", "40"];
    let work = Work {
        arguments: texts(&[&read[..], &["--threads", "1"]].concat()),
        input: "",
        output: Some(output.clone()),
    };
    let count = run(&work, &folder);
    assert!(count > 40, "{count} faults");
    let answer = ["run", &model, "--state", &name, "-p", "x", "-n", "1"];
    for arguments in [&["inspect", &name][..], &answer] {
        let work = Work {
            arguments: texts(arguments),
            input: "",
            output: None,
        };
        assert!(run(&work, &folder) > 3);
    }
}

#[test]
fn a_conversation_that_cannot_be_saved_is_said_and_goes_on() {
    let place = Workplace::new();
    let folder = place.path("files");
    std::fs::create_dir_all(&folder).expect("a folder");
    let output = folder.join("saved");
    let input = format!("Hi.\n/save! {}\n/quit\n", output.display());
    let work = Work {
        arguments: texts(&["chat", "-n", "1", "--temperature", "0", "--seed", "1"]),
        input: &input,
        output: Some(output.clone()),
    };
    assert!(run(&work, &folder) > 3);
    let mode = std::fs::metadata(&output)
        .expect("saved")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
