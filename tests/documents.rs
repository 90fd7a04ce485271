//! Every command that the documents show is one that the program takes: subcommand, flags and values. Every file that they
//! link or name exists. What the commands do is tested elsewhere.

mod common;

use std::path::{Path, PathBuf};

use common::Workplace;

/// The documents whose commands people type.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![
        root.join("README.md"),
        root.join("ffi/README.md"),
        root.join("runtime/ARCHITECTURE.md"),
        root.join("tools/train/README.md"),
    ];
    for folder in ["runtime/docs", "runtime/docs/lab"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("a folder of documents");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|kind| kind == "md")));
    }
    found
}

/// The commands in a document: in code between backticks, and lines of its code blocks, with what continues them.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for (i, block) in text.split("\n```").enumerate() {
        let is_code = i % 2 == 1;
        let pieces: Vec<&str> = match is_code {
            true => block.lines().collect(),
            false => block.split('`').skip(1).step_by(2).collect(),
        };
        for piece in pieces {
            let words = piece.split_whitespace();
            let mut words = words.skip_while(|word| word.starts_with("WATERLINE_"));
            if words.next() == Some("waterline") {
                let command: Vec<&str> = words.take_while(|word| *word != "#").collect();
                found.push(command.join(" "));
            }
        }
    }
    found
}

#[test]
fn every_command_in_the_documents_is_one_of_the_program() {
    let place = Workplace::new();
    let mut tested = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document");
        let emulated =
            |command: &String| command.contains("emulator") && !cfg!(feature = "emulator");
        for command in commands(&text).into_iter().filter(|c| !emulated(c)) {
            // The names that stand for a choice, and the brackets around what may be left out.
            let plain = command.replace(['[', ']'], "");
            let arguments = plain.split_whitespace().map(|word| match word {
                "T" => "q8_0",
                "PRESET" => "gdn-tiny",
                "N" => "1",
                word => word,
            });
            let outcome = place.run(arguments.chain(["--help"]));
            assert_eq!(
                outcome.status,
                Some(0),
                "{}: waterline {command}: {}",
                document.display(),
                outcome.stderr
            );
            tested += 1;
        }
    }
    assert!(tested > 20, "{tested} commands were found");
}

/// Words that look like the path of a file in the repository: in code between backticks, and in code blocks.
fn paths(text: &str) -> Vec<&str> {
    const ENDS: [&str; 10] = [
        ".rs", ".py", ".sh", ".cu", ".md", ".h", ".toml", ".json", ".txt", ".svg",
    ];
    let mut words = Vec::new();
    for (i, block) in text.split("\n```").enumerate() {
        match i % 2 {
            1 => words.extend(block.split_whitespace()),
            _ => words.extend(block.split('`').skip(1).step_by(2)),
        }
    }
    let words = words.into_iter().map(|word| word.trim_matches([',', ';']));
    let is_path = |word: &&str| {
        // What `ffi/install` makes lies under include/.
        let is_elsewhere = word.starts_with('/') || word.starts_with("include/");
        let is_pattern = word.contains(['*', '<', '{', ' ']);
        let is_file = ENDS.iter().any(|end| word.ends_with(end));
        word.contains('/') && is_file && !is_elsewhere && !is_pattern
    };
    words.filter(is_path).collect()
}

/// Where links lead, but for those to other sites and to places in a page.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains([':', '#']))
        .collect()
}

#[test]
fn every_file_that_the_documents_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = [
        "",
        "runtime",
        "runtime/src",
        "runtime/src/cuda",
        "runtime/src/ops",
        "tools/src",
    ];
    let (mut seen, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document");
        let here = document.parent().expect("a folder");
        let lost = links(&text)
            .into_iter()
            .filter(|link| !here.join(link).exists());
        missing.extend(lost.map(|link| format!("{}: {link}", document.display())));
        for path in paths(&text) {
            let places = folders.iter().map(|folder| root.join(folder));
            let mut places = places.chain([here.to_path_buf()]);
            if !places.any(|place| place.join(path).exists()) {
                missing.push(format!("{}: {path}", document.display()));
            }
            seen += 1;
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 20, "{seen} paths were found");
}
