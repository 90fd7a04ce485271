//! Checks commands that no test runs: the program has the subcommand, flags and values, a script has the flags, and cargo has the packages
//! and targets.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::commands::Words;
use super::common::Workplace;
use super::root;
use super::skipped::skipped;

/// Returns an error with the reason if a command from a document in this folder is invalid.
pub fn can_be_typed(place: &Workplace, folder: &Path, command: &Words) -> Result<(), String> {
    let (program, arguments) = command.split_first().expect("a command");
    match &**program {
        "waterline" => takes(place, arguments),
        "cargo" => cargo_has(arguments),
        "python" | "python3" => has_flags(folder, &arguments[0], &arguments[1..]),
        // Run by ffi/tests/abi/readme.rs.
        "export" | "cc" | "pkg-config" | "pip" | "sudo" | "./stress" => {
            let here = folder.strip_prefix(root()).expect("below the top");
            let is_run = here.starts_with("ffi");
            is_run.then_some(()).ok_or("no test runs it".into())
        }
        // Programs of other projects.
        "git" | "mkdir" | "perf" | "tar" => Ok(()),
        script => has_flags(folder, script, arguments),
    }
}

/// Checks that the program accepts the arguments.
fn takes(place: &Workplace, words: &[String]) -> Result<(), String> {
    let arguments = words.iter().map(String::as_str).chain(["--help"]);
    let outcome = place.run(arguments);
    (outcome.status == Some(0))
        .then_some(())
        .ok_or(outcome.stderr)
}

/// Finds the script that a document in this folder names, relative to its folder or the repository.
pub fn find(folder: &Path, script: &str) -> Option<PathBuf> {
    let folders = [folder.to_path_buf(), root(), root().join("tools/train")];
    let mut paths = folders.iter().map(|folder| folder.join(script));
    paths.find(|path| path.is_file())
}

/// Checks that a script exists, can be parsed and has the flags.
fn has_flags(folder: &Path, script: &str, arguments: &[String]) -> Result<(), String> {
    let path = find(folder, script).ok_or("no such script")?;
    let text = std::fs::read_to_string(&path).expect("a script");
    for word in arguments {
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

/// Checks that cargo has the command and its flags, and that packages, targets and tests exist.
fn cargo_has(arguments: &[String]) -> Result<(), String> {
    let cargo = || Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    let text = |command: &mut Command| {
        let output = command.current_dir(root()).output().expect("cargo runs");
        assert!(output.status.success(), "{command:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let (command, rest) = arguments.split_first().ok_or("no command")?;
    // Programs that are installed separately.
    let needed = match &**command {
        "binstall" => Some("tools/Cargo.toml"),
        "deny" => Some("deny.toml"),
        _ => None,
    };
    if let Some(needed) = needed {
        let is_there = root().join(needed).is_file();
        return is_there.then_some(()).ok_or(format!("no {needed}"));
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
            // After `cargo test`, a test's name; after `cargo run`, the program's arguments.
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
