//! Build facts that the program's sources do not contain: the commit, for the reports of `waterline bench`; its presets, deflated;
//! whether its linker folds functions.

#[path = "../runtime/kernels/deflated.rs"]
mod deflated;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    commit();
    presets();
    fold();
}

/// Where the files go that this program makes.
fn out() -> PathBuf {
    PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"))
}

fn presets() {
    let entries = fs::read_dir("presets").expect("the folder of presets");
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let texts = files.iter().map(|file| {
        let name = file.file_stem().expect("a name").to_string_lossy();
        let text = fs::read_to_string(file).expect("a preset");
        (name.into_owned(), text)
    });
    deflated::write("presets", texts);
}

/// Has functions with the same code share it, and constants with the same bytes too, if a small program can be linked so: rustc's own
/// linker can, GNU's cannot. Nothing here compares addresses of constants.
fn fold() {
    const FOLD: [&str; 3] = [
        "-Wl,--icf=all",
        "-Wl,--ignore-data-address-equality",
        "-Wl,-O2",
    ];
    let source = out().join("empty.rs");
    fs::write(&source, "fn main() {}").expect("the folder can be written");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    // AddressSanitizer watches the memory around each constant, which folding takes away.
    if flags.contains("-Zsanitizer") {
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(FOLD.map(|flag| format!("-Clink-arg={flag}")));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let outcome = rustc
        .arg("-o")
        .arg(out().join("empty"))
        .arg(source)
        .output();
    if outcome.is_ok_and(|outcome| outcome.status.success()) {
        for flag in FOLD {
            println!("cargo::rustc-link-arg-bins={flag}");
        }
    }
}

fn commit() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&["status", "--porcelain", "--untracked-files=no", ".."]);
    let commit = commit.map_or("unknown".into(), |commit| {
        if changed.is_some_and(|files| !files.is_empty()) {
            format!("{commit} with changes")
        } else {
            commit
        }
    });
    println!("cargo::rustc-env=WATERLINE_COMMIT={commit}");
    // A commit writes this log; a change of the sources may make a built commit one with changes.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let runtime = ["", "compute/", "error/", "kernels/", "models/", "text/"];
    let runtime = runtime.map(|folder| format!("../runtime/{folder}src"));
    let others = ["src", "presets", "../quant/src"].map(String::from);
    for sources in runtime.iter().chain(&others) {
        println!("cargo::rerun-if-changed={sources}");
    }
}
