//! The commit that the program is built from, for the reports of `waterline bench`.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_string())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let changed = git(&["status", "--porcelain", "--untracked-files=no", ".."]);
    let commit = commit.map_or("unknown".into(), |commit| {
        match changed.is_some_and(|files| !files.is_empty()) {
            true => format!("{commit} with changes"),
            false => commit,
        }
    });
    println!("cargo::rustc-env=WATERLINE_COMMIT={commit}");
    // A commit writes this log; a change of the sources may make a built commit one with changes.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    for sources in ["src", "presets", "../runtime/src", "../quant/src"] {
        println!("cargo::rerun-if-changed={sources}");
    }
}
