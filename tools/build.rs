//! Build facts that the program's sources do not contain: the commit, for the reports of `waterline bench`; its presets, deflated;
//! how its linker makes it small.

#[path = "../runtime/kernels/deflated.rs"]
mod deflated;

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

fn main() {
    commit();
    presets();
    link_small();
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

/// Flags that make the program smaller where the linker has them: rustc's own does, GNU's does not. Functions with the same code share
/// it, and constants with the same bytes too; nothing here compares addresses of constants.
const FOLD: [&str; 3] = [
    "-Wl,--icf=all",
    "-Wl,--ignore-data-address-equality",
    "-Wl,-O2",
];

/// One bit for an address that the loader adjusts, not 24 bytes: 1 MB less, which needs version 2.36 of the GNU C library.
const PACK: &str = "-Wl,-z,pack-relative-relocs";

fn link_small() {
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    // AddressSanitizer watches the memory around each constant, which folding takes away.
    if flags.contains("-Zsanitizer") {
        return;
    }
    let folds = links(&FOLD, &flags);
    // A program for another machine, or for other versions of the library, is not packed.
    let packs = folds
        && env::var("HOST") == env::var("TARGET")
        && !flags.contains("nopack-relative-relocs")
        && links(&[PACK], &flags)
        && succeeds(&mut Command::new(out().join("empty")));
    let fold = FOLD.iter().filter(|_| folds);
    let pack = Some(&PACK).filter(|_| packs);
    for flag in fold.chain(pack) {
        println!("cargo::rustc-link-arg-bins={flag}");
    }
}

/// Whether an empty program can be linked with these flags and those of RUSTFLAGS.
fn links(link: &[&str], flags: &str) -> bool {
    let source = out().join("empty.rs");
    fs::write(&source, "fn main() {}").expect("the folder can be written");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(link.iter().map(|flag| format!("-Clink-arg={flag}")));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(flags.split('\x1f').filter(|flag| !flag.is_empty()));
    let rustc = rustc.arg("-o").arg(out().join("empty")).arg(source);
    succeeds(rustc)
}

fn succeeds(command: &mut Command) -> bool {
    let outcome = command.output();
    outcome.is_ok_and(|outcome| outcome.status.success())
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
