//! Runs the commands and programs in the documents of this crate.

use std::path::Path;
use std::process::Command;

use crate::installed::{pkg_config, prefix, scratch, source, succeeds};
use crate::python::{library, python};

/// Returns the code blocks of a document in a language.
fn blocks(document: &Path, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(document).expect("a document");
    let blocks = text.split("\n```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    blocks.map(String::from).collect()
}

/// Makes a folder that holds the files named in README.md's commands.
fn workplace(name: &str) -> std::path::PathBuf {
    let folder = scratch(name);
    std::fs::create_dir_all(folder.join("tests/programs")).expect("a folder");
    for (from, to) in [
        ("examples/c/chat.c", "chat.c"),
        ("tests/programs/stress.c", "tests/programs/stress.c"),
    ] {
        std::fs::copy(source(from), folder.join(to)).expect("a copy");
    }
    folder
}

/// Runs commands with `PREFIX` replaced by the installed library's folder, and the long stress run
/// cut to three seconds.
fn run_in(folder: &Path, commands: &str) {
    let here = format!("./stress 3 1 {}", folder.display());
    let commands = commands
        .replace("PREFIX", &prefix().display().to_string())
        .replace("./stress 120 1 /tmp", &here);
    let mut shell = Command::new("sh");
    shell
        .args(["-eu", "-c", &commands])
        .current_dir(folder)
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"))
        .env("LD_LIBRARY_PATH", prefix().join("lib"));
    succeeds(&mut shell);
}

#[test]
fn the_commands_of_the_readme_run() {
    let folder = workplace("waterline-readme");
    let readme = source("README.md");
    let mut run = 0;
    for block in blocks(&readme, "") {
        // The library is installed already, and other tests cover the header.
        if ["export", "cc"].iter().any(|word| block.starts_with(word)) {
            run_in(&folder, &block);
            run += 1;
        }
    }
    let text = std::fs::read_to_string(readme).expect("README.md");
    for piece in text.split('`').filter(|piece| piece.contains(' ')) {
        if ["cc ", "pkg-config "]
            .iter()
            .any(|word| piece.starts_with(word))
        {
            run_in(&folder, piece);
            run += 1;
        }
    }
    assert!(run >= 4, "{run} commands were found");
}

/// Compiles a program and returns its output.
fn output_of(name: &str, program: &str) -> String {
    let folder = scratch("waterline-readme-programs");
    let (file, built) = (folder.join(name).with_extension("c"), folder.join(name));
    std::fs::write(&file, program).expect("a file");
    let rpath = format!("-Wl,-rpath,{}", prefix().join("lib").display());
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-Wall", "-Werror"])
        .arg(&file)
        .arg("-o")
        .arg(&built)
        .args(pkg_config(&["--cflags", "--libs"]))
        .arg(rpath);
    succeeds(&mut compiler);
    String::from_utf8(succeeds(&mut Command::new(built)).stdout).expect("text")
}

#[test]
fn the_c_programs_of_both_readmes_talk() {
    let whole = &blocks(&source("README.md"), "c")[0];
    assert!(output_of("story", whole).len() > 100);
    // The other program is a fragment that uses `show` and `model` of this one.
    let part = &blocks(&source("../README.md"), "c")[0];
    let (before, _) = whole.split_once("int main").expect("a program");
    let main = format!(
        "{before}int main(void) {{ wl_model *model; wl_model_builtin(NULL, &model);\n{part}\nreturn 0; }}\n"
    );
    // The complete answer may be just "Hello!".
    assert!(!output_of("part", &main).trim().is_empty());
}

#[test]
fn the_python_programs_of_the_readme_talk() {
    let Some(python) = python() else { return };
    let blocks = blocks(&source("python/README.md"), "python");
    let [first, second, third, fourth] = &blocks[..] else {
        panic!("{} programs", blocks.len())
    };
    // The second program continues with the first one's session.
    let (start, _) = first.split_once("    for piece").expect("a session");
    let second: String = second.lines().map(|line| format!("    {line}\n")).collect();
    for program in [first, &format!("{start}{second}"), third, fourth] {
        let mut command = Command::new(&python);
        command.args(["-c", program]);
        let said = succeeds(library(&mut command)).stdout;
        assert!(!said.is_empty());
    }
}
