//! Runs the program's commands from the documents, in folders of small files with the names that documents use, and with counts small
//! enough to finish quickly.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;

use super::commands::Words;
use super::common::{Outcome, Workplace, fixtures, outcome_of_input};
use super::models::KINDS;
use super::typed::find;
use super::{root, serve};

/// Values for placeholders that do not name a file.
const VALUES: [(&str, &str); 4] = [
    ("T", "q8_0"),
    ("PRESET", "gdn-tiny"),
    ("N", "2"),
    ("HOW", "auto"),
];

/// Small counts: command, flag and value.
const SHORT: [(&str, &str, &str); 10] = [
    ("bench", "--prompt", "16"),
    ("bench", "--gen", "2"),
    ("bench", "--depth", "0,4"),
    ("chat", "-n", "4"),
    ("run", "-n", "4"),
    ("eval recall", "--keys", "4"),
    ("eval recall", "--length", "128"),
    ("eval recall", "--sequences", "1"),
    ("imatrix", "--windows", "1"),
    ("serve", "--port", "0"),
];

/// Commands that do not run here, by their beginning or their script's path, with the reason.
const NOT_RUN: [(&str, &str); 18] = [
    ("cargo", "builds or tests the workspace once more"),
    ("git", "prints the history"),
    ("perf", "other people's program"),
    ("cc", "run by ffi/tests/abi/readme.rs"),
    ("export", "run by ffi/tests/abi/readme.rs"),
    ("./stress", "run by ffi/tests/abi/readme.rs"),
    ("pkg-config", "run by ffi/tests/abi/readme.rs"),
    ("pip", "installs"),
    ("sudo", "installs"),
    ("ffi/", "run by tests in ffi/tests/abi"),
    ("tests/campaigns.sh", "takes minutes; run by CI"),
    (
        "tools/",
        "takes minutes, PyTorch, a GPU or other people's programs",
    ),
    (
        "waterline pull",
        "needs the network; tests/pull.rs has a server",
    ),
    (
        "waterline rm",
        "needs a downloaded model; run by tests/pull.rs",
    ),
    ("waterline chat hf:", "needs the network"),
    ("waterline run hf:", "needs the network"),
    ("waterline kernels", "needs NVRTC; run by CI"),
    (
        "waterline bench --serve",
        "needs a server; tests/serve.rs has one",
    ),
];

/// Returns the reason why a command of a document in this folder does not run here.
pub fn reason(folder: &Path, command: &Words) -> Option<&'static str> {
    let is_python = command[0].starts_with("python");
    let path = find(folder, &command[is_python as usize]);
    let path = path.and_then(|path| path.canonicalize().ok());
    let top = root().canonicalize().expect("the top");
    let from_top = path.as_ref().and_then(|path| path.strip_prefix(top).ok());
    let text = from_top.map_or(command.join(" "), |path| path.display().to_string());
    let listed = NOT_RUN.iter().find(|(start, _)| text.starts_with(start));
    // `waterline verify` only names a subcommand.
    let is_name = command[0] == "waterline" && command.len() == 2;
    let reason = listed.map(|(_, reason)| *reason);
    reason.or(is_name.then_some("a name"))
}

/// The small files that commands use.
pub struct Files {
    pub place: Workplace,
    folders: usize,
}

impl Files {
    pub fn new() -> Self {
        let place = Workplace::new();
        let at = |name: &str| place.path("files").join(name);
        std::fs::create_dir(at("")).expect("a folder");
        let model = place.model("transformer-tiny");
        for name in ["MODEL", "model.gguf"] {
            std::fs::copy(&model, at(name)).expect("a copy");
        }
        let kind = KINDS[0];
        for name in ["DIR", "lm", "OUT/gdn"] {
            kind.write_folder(&at(name), &kind.config());
        }
        for (case, name) in [
            ("lalte_stream_gqa", "hf"),
            ("gla_plain", "CASE"),
            ("gla_plain", "CASES/gla"),
            ("gdn_plain", "CASES/gdn"),
        ] {
            copy(&fixtures().join(case), &at(name));
        }
        for name in ["LICENSE", "tests/models/gdn.gguf"] {
            copy(&root().join(name), &at(name));
        }
        copy(
            &root().join("tools/presets/gla-tiny.json"),
            &at("SHAPE.json"),
        );
        let text = std::fs::read_to_string(root().join("LICENSE")).expect("a text");
        let document = json!({ "text": text[..500] }).to_string();
        let question = json!({
            "question": "What is the capital of France?", "answerKey": "A",
            "choices": { "text": ["Paris", "Rome"], "label": ["A", "B"] },
        });
        for (name, content) in [
            ("FILE", &text),
            ("TEXT", &text),
            ("heldout.jsonl", &document),
            ("questions.jsonl", &question.to_string()),
        ] {
            std::fs::write(at(name), content).expect("a file");
        }
        for name in ["A.json", "B.json"] {
            let bench = words("bench model.gguf --prompt 8 --gen 2 --depth 0 --json");
            let mut command = place.command(bench);
            command.arg(name).current_dir(at(""));
            assert!(command.output().expect("it starts").status.success());
        }
        Files { place, folders: 0 }
    }

    /// Makes a new folder with all of the files.
    pub fn folder(&mut self) -> PathBuf {
        self.folders += 1;
        let folder = self.place.path(&format!("folder{}", self.folders));
        link(&self.place.path("files"), &folder);
        folder
    }

    /// Runs a command in a folder, with a line of input.
    pub fn run(&self, folder: &Path, command: &Words) -> Result<(), String> {
        if command[0] != "waterline" {
            return Err("it is neither run nor listed with a reason".into());
        }
        let words = short(&command[1..]);
        let before = entries(folder);
        let mut command = self.place.command(&words);
        command.current_dir(folder);
        if words[0] == "serve" {
            return serve::answers(&mut command);
        }
        let outcome = outcome_of_input(command.stdin(Stdio::piped()), b"Hello!\n");
        let has_written = !outcome.stdout.is_empty() || entries(folder) != before;
        complaint(&outcome)
            .or((!has_written).then(|| "nothing is printed or written".into()))
            .map_or(Ok(()), |complaint| {
                Err(format!("{}: {complaint}", words.join(" ")))
            })
    }
}

/// Returns the status and errors of a command that failed.
fn complaint(outcome: &Outcome) -> Option<String> {
    let is_error = |line: &str| line.starts_with("waterline: ") || line.contains("panicked");
    let failed = outcome.status != Some(0) || outcome.stderr.lines().any(is_error);
    failed.then(|| format!("status {:?}: {}", outcome.status, outcome.stderr))
}

fn words(text: &str) -> Words {
    text.split_whitespace().map(String::from).collect()
}

/// Returns the arguments with values for placeholders, an available device, and small counts.
fn short(arguments: &[String]) -> Words {
    let mut words = arguments.to_vec();
    let is_named = |command: &str| arguments.join(" ").starts_with(command);
    // A benchmark would take minutes on the emulator.
    let emulates = cfg!(feature = "emulator") && !is_named("bench");
    let device = if emulates { "emulator" } else { "cpu" };
    for word in &mut words {
        let value = VALUES.iter().find(|(name, _)| word == name);
        if let Some((_, value)) = value {
            *word = value.to_string();
        } else if ["cuda", "emulator"].contains(&&**word) {
            *word = device.into();
        }
    }
    let compares = arguments.iter().any(|word| word == "--compare");
    for (command, flag, value) in SHORT {
        if !is_named(command) || compares {
            continue;
        }
        match words.iter().position(|word| word == flag) {
            Some(at) => words[at + 1] = value.into(),
            None => words.extend([flag.into(), value.into()]),
        }
    }
    words
}

/// Returns the names and modification times of the files in a folder.
fn entries(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let entry = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("an entry");
        let changed = entry.metadata().and_then(|data| data.modified());
        (entry.path(), changed.expect("a time"))
    };
    let mut entries: Vec<_> = entries.map(entry).collect();
    entries.sort();
    entries
}

/// Applies `file` to a file, or to each file of a folder, and its path under `to`.
fn give(from: &Path, to: &Path, file: fn(&Path, &Path) -> std::io::Result<()>) {
    if !from.is_dir() {
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        return file(from, to).expect("a file");
    }
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        give(&entry.path(), &to.join(entry.file_name()), file);
    }
}

fn copy(from: &Path, to: &Path) {
    give(from, to, |from, to| std::fs::copy(from, to).map(drop));
}

/// Hard-links the files: the program replaces files and never writes into them.
fn link(from: &Path, to: &Path) {
    give(from, to, |from, to| std::fs::hard_link(from, to));
}
