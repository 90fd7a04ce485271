//! Installs the library with `ffi/install`, once for all tests, and builds programs against it.

use crate::skipped::skipped;
use std::ffi::OsStr;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns a folder for files that the tests write.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    folder
}

/// Returns the path of a file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the prefix of the installed library.
pub fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch("waterline-prefix");
        std::fs::remove_dir_all(&prefix).expect("the prefix is emptied");
        // Cargo builds the libraries before this program, into the same folder.
        let here = std::env::current_exe().expect("this program has a place");
        let mut install = Command::new(source("install"));
        install.arg("--prefix").arg(&prefix);
        install.arg("--built").args(here.parent());
        succeeds(&mut install);
        prefix
    })
}

/// Returns the output of `pkg-config` for the installed library.
pub fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command
        .args(arguments)
        .arg("waterline")
        .env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let flags = succeeds(&mut command).stdout;
    let flags = String::from_utf8(flags).expect("flags are text");
    flags.split_whitespace().map(String::from).collect()
}

/// Builds a program from a source of this crate, with flags from pkg-config, and links it with the shared library.
pub fn build(compiler: &str, path: &str) -> PathBuf {
    let standard = if path.ends_with(".cpp") {
        "-std=c++17"
    } else {
        "-std=c11"
    };
    // Tests run in parallel, and two may build the same program.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = Path::new(path).file_stem().expect("a name");
    let name = format!(
        "{}-{}",
        name.display(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let program = scratch("waterline-programs").join(name);
    let mut command = Command::new(compiler);
    command
        .args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-g"])
        .arg(source(path))
        .arg("-o")
        .arg(&program)
        .args(pkg_config(&["--cflags", "--libs"]))
        .arg("-pthread")
        .arg(format!("-Wl,-rpath,{}", prefix().join("lib").display()));
    succeeds(&mut command);
    program
}

/// Runs a command that must succeed.
#[track_caller]
pub fn succeeds(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns whether a tool that a test needs is on this machine; a test without it prints a message and passes.
pub fn has(tool: &str, arguments: &[&str]) -> bool {
    let there = Command::new(tool)
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        skipped(&format!("`{tool} {}`", arguments.join(" ")));
    }
    there
}

/// Runs a command on `input` and returns its output.
#[track_caller]
pub fn run(command: &mut Command, input: &str) -> String {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(input.as_bytes()).expect("the input");
    file.rewind().expect("the input");
    let output = succeeds(command.stdin(file));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Runs a program on `input` and returns its output.
#[track_caller]
pub fn run_on(program: impl AsRef<OsStr>, input: &str) -> String {
    run(&mut Command::new(program), input)
}
