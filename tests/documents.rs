//! Every command in the documents can be typed: the program accepts its subcommand, flags and values, a script has its flags, cargo
//! its packages and targets. The commands of the C library's documents are run by `ffi/tests/abi/readme.rs`. Every file that they
//! link or name exists. Other tests cover the commands' effects.

mod common;
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Workplace;
use skipped::skipped;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    let found = files(".md");
    assert!(found.len() > 12, "{found:?}");
    found
}

/// All files below the top with this suffix, except those of builds and environments.
fn files(end: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_made = name.starts_with('.') || name == "target" || name == "dist";
            if path.is_dir() {
                if !is_made && !path.is_symlink() {
                    folders.push(path);
                }
            } else if name.ends_with(end) {
                found.push(path);
            }
        }
    }
    found
}

/// First words of commands. A script is named by its path.
const PROGRAMS: [&str; 11] = [
    "waterline",
    "cargo",
    "python",
    "python3",
    "pip",
    "cc",
    "pkg-config",
    "sudo",
    "export",
    "git",
    "perf",
];

fn is_script(word: &str) -> bool {
    word.ends_with(".py") || word.ends_with(".sh") || word.starts_with("ffi/") || word == "./stress"
}

/// The commands of the program, which documents also name without it: `bench MODEL --gen 60`.
const COMMANDS: [&str; 10] = [
    "chat", "run", "bench", "convert", "quantize", "inspect", "verify", "eval", "synth", "kernels",
];

/// The words of each simple command of a line: without loops, variables in front and comments.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" # ").next().unwrap_or(line);
    let line = line.split("  #").next().unwrap_or(line);
    let parts = line.split("; ").map(str::trim);
    let parts = parts.filter(|part| !part.starts_with("for ") && !["do", "done"].contains(part));
    let words = |part: &str| -> Vec<String> {
        let words = part.trim_start_matches("do ").split_whitespace();
        let is_variable = |word: &&str| word.starts_with("WATERLINE_");
        let words = words.skip_while(is_variable).map(String::from);
        let words: Vec<String> = words.collect();
        let names_command =
            words.iter().any(|word| word.starts_with('-')) && COMMANDS.contains(&words[0].as_str());
        let program = names_command.then(|| "waterline".to_string());
        program.into_iter().chain(words).collect()
    };
    parts.map(words).filter(|words| !words.is_empty()).collect()
}

fn is_command(words: &[String]) -> bool {
    PROGRAMS.contains(&&*words[0]) || is_script(&words[0])
}

/// The commands in a document: in code between backticks, and all lines of code blocks that begin with one.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for (i, block) in text.split("\n```").enumerate() {
        if i % 2 == 0 {
            // A single word is the name of a program or a file.
            let pieces = block.split('`').skip(1).step_by(2);
            let pieces = pieces.flat_map(simple_commands);
            found.extend(pieces.filter(|words| words.len() > 1 && is_command(words)));
            continue;
        }
        // The first line is the block's language.
        let lines: Vec<_> = block.lines().skip(1).flat_map(simple_commands).collect();
        if lines.first().is_some_and(|words| is_command(words)) {
            found.extend(lines);
        }
    }
    found
}

/// The flags that a command of the program cannot do without, by the first line of its help.
fn required(usage: &str) -> Vec<&str> {
    let words = usage.split_whitespace();
    words.filter(|word| word.starts_with("--")).collect()
}

/// Whether the flag is among the words, in either form.
fn has(words: &[String], flag: &str) -> bool {
    let short = match flag {
        "--output" => "-o",
        other => other,
    };
    words.iter().any(|word| word == flag || word == short)
}

/// Arguments of the program, with values for placeholders, and without the brackets around optional parts. A command that names
/// its output is complete: it must have every required flag.
fn takes(place: &Workplace, words: &[String]) -> Result<(), String> {
    if words.iter().any(|word| word == "emulator") && !cfg!(feature = "emulator") {
        return Ok(());
    }
    let plain = words.iter().map(|word| word.replace(['[', ']'], ""));
    let arguments = plain.map(|word| match &*word {
        "T" | "$t" => "q8_0".into(),
        "PRESET" => "gdn-tiny".into(),
        "N" => "1".into(),
        "HOW" => "auto".into(),
        _ => word,
    });
    let outcome = place.run(arguments.chain(["--help".into()]));
    if outcome.status != Some(0) {
        return Err(outcome.stderr);
    }
    let help = outcome.text();
    let usage = help.lines().find(|line| line.starts_with("Usage: "));
    let mut missing = required(usage.unwrap_or_default());
    missing.retain(|flag| !has(words, flag));
    if has(words, "--output") && !missing.is_empty() {
        Err(format!("{missing:?} must be given"))
    } else {
        Ok(())
    }
}

/// A script that exists, can be parsed and has the flags. Scripts are named from their document's folder or from the top.
fn has_flags(folder: &Path, script: &str, arguments: &[String]) -> Result<(), String> {
    let folders = [folder.to_path_buf(), root(), root().join("tools/train")];
    let mut places = folders.iter().map(|folder| folder.join(script));
    let Some(path) = places.find(|path| path.is_file()) else {
        return Err("no such script".into());
    };
    let text = std::fs::read_to_string(&path).expect("a script");
    for word in arguments.iter().map(|word| word.replace(['[', ']'], "")) {
        let has_flag = |end: &str| text.contains(&format!("{word}{end}"));
        if word.starts_with("--") && !["\"", " ", ")", "'"].into_iter().any(has_flag) {
            return Err(format!("{} has no {word}", path.display()));
        }
    }
    let parse: (&str, &[&str]) = if script.ends_with(".py") {
        (
            "python3",
            &["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"],
        )
    } else {
        ("bash", &["-n"])
    };
    match Command::new(parse.0).args(parse.1).arg(&path).output() {
        Err(_) => skipped(&format!("`{}`", parse.0)),
        Ok(output) if !output.status.success() => {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(_) => {}
    }
    Ok(())
}

/// A command of cargo with flags that it has, and packages, targets and tests that exist.
fn cargo_has(arguments: &[String]) -> Result<(), String> {
    let cargo = || Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    let text = |command: &mut Command| {
        let output = command.current_dir(root()).output().expect("cargo runs");
        assert!(output.status.success(), "{command:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let (command, rest) = arguments.split_first().ok_or("no command")?;
    if command == "deny" {
        // A separately installed program.
        let is_there = root().join("deny.toml").is_file();
        return is_there.then_some(()).ok_or("no deny.toml".into());
    }
    let help = text(cargo().args([command, "--help"]));
    let metadata = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let metadata = text(cargo().args(metadata));
    let mut words = rest.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let known = match &**word {
            "-p" | "--test" | "--example" | "--features" => {
                let value = words.next().ok_or("a flag without a value")?;
                metadata.contains(&format!("\"name\":\"{value}\""))
                    || metadata.contains(&format!("\"{value}\":["))
            }
            "--path" => {
                let folder = root().join(words.next().ok_or("a flag without a value")?);
                folder.join("Cargo.toml").is_file()
            }
            flag if flag.starts_with('-') => help.contains(flag),
            // For `cargo test` the name of a test; for `cargo run` the program's arguments.
            name => {
                command == "run"
                    || text(Command::new("git").args(["grep", "-c", &format!("fn {name}()")]))
                        .contains(".rs:")
            }
        };
        if !known {
            return Err(format!("{word} is unknown"));
        }
    }
    Ok(())
}

#[test]
fn every_command_in_the_documents_can_be_typed() {
    let place = Workplace::new();
    let (mut tested, mut refused) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document");
        let folder = document.parent().expect("a folder");
        for command in commands(&text) {
            let (program, arguments) = command.split_first().expect("a command");
            let possible = match &**program {
                "waterline" => takes(&place, arguments),
                "cargo" => cargo_has(arguments),
                "python" | "python3" => has_flags(folder, &arguments[0], &arguments[1..]),
                // Run by ffi/tests/abi/readme.rs.
                "export" | "cc" | "pkg-config" | "pip" | "sudo" | "./stress" => {
                    let here = folder.strip_prefix(root()).expect("below the top");
                    let is_run = here.starts_with("ffi");
                    is_run.then_some(()).ok_or("no test runs it".into())
                }
                // Other people's programs.
                "git" | "mkdir" | "perf" | "tar" => Ok(()),
                script => has_flags(folder, script, arguments),
            };
            if let Err(reason) = possible {
                let (document, command) = (document.display(), command.join(" "));
                refused.push(format!("{document}: {command}: {reason}"));
            }
            tested += 1;
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(tested > 60, "{tested} commands were found");
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
        // Files that `ffi/install` creates are under include/.
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
    let root = root();
    let folders = [
        "",
        "runtime",
        "runtime/src",
        "runtime/compute/src",
        "runtime/compute/src/cuda",
        "runtime/compute/src/ops",
        "runtime/models/src",
        "runtime/text/src",
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

#[test]
fn documents_stay_short() {
    for (document, most) in [
        ("README.md", 700),
        ("runtime/ARCHITECTURE.md", 1500),
        ("runtime/docs/cuda.md", 1300),
        ("runtime/docs/performance.md", 1500),
        ("runtime/docs/DECISIONS.md", 2500),
    ] {
        let text = std::fs::read_to_string(root().join(document)).expect("a document");
        let words = text.split_whitespace().count();
        assert!(
            words <= most,
            "{document}: {words} words, expected {most} at most"
        );
    }
}

/// Viewers other than browsers ignore style sheets: each element has its colour, and a style sheet may only override it.
#[test]
fn every_picture_shows_in_every_viewer() {
    let pictures = files(".svg");
    assert!(pictures.len() >= 2, "{pictures:?}");
    for picture in pictures {
        let text = std::fs::read_to_string(&picture).expect("a picture");
        for part in ["class=", "var(", "<script", "<foreignObject"] {
            assert!(!text.contains(part), "{}: {part}", picture.display());
        }
    }
}
