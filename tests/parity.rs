//! Runs `waterline verify` on every fixture: those in the repository, and those in a folder next to it, if it exists.

mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use skipped::skipped;

/// Returns whether the case was rejected because this version does not support its model.
fn is_unknown(output: &std::process::Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.code() == Some(2) && said.contains("not supported: ")
}

/// Returns whether the case was rejected with a sentence, and its meta.json declares that no decoder can give its logits.
fn is_excused(case: &Path, output: &std::process::Output) -> bool {
    let meta = std::fs::read(case.join("meta.json")).expect("meta.json");
    let meta: serde_json::Value = serde_json::from_slice(&meta).expect("JSON");
    is_unknown(output) && meta["informational"] == true && meta["why"] != ""
}

/// Copies the cases whose configuration also exists in an older or published spelling, to separate folders in `room`.
fn respelled(cases: &[PathBuf], room: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for case in cases
        .iter()
        .filter(|case| case.join("config_hub.json").exists())
    {
        let name = case.file_name().expect("a name").to_string_lossy();
        let copy = room.join(format!("{name}, as published"));
        std::fs::create_dir(&copy)?;
        std::fs::copy(case.join("config_hub.json"), copy.join("config.json"))?;
        for file in ["case.safetensors", "meta.json", "model.safetensors"] {
            std::fs::copy(case.join(file), copy.join(file))?;
        }
        all.push(copy);
    }
    Ok(all)
}

/// Verifies every case in `folder`. Only a case's `meta.json` can excuse it; outside the repository a model type may be unknown.
fn verify(folder: &Path, beside: bool) {
    let mut cases: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.join("meta.json").exists())
        .collect();
    cases.sort();
    let room = tempfile::tempdir().expect("a folder");
    cases.extend(respelled(&cases, room.path()).expect("copies"));
    assert!(!cases.is_empty(), "{} holds no cases", folder.display());
    let mut failed = Vec::new();
    for case in &cases {
        let output = Command::new(env!("CARGO_BIN_EXE_waterline"))
            .args(["verify", "--json", "--seed", "5"])
            .arg(case)
            .output()
            .expect("waterline runs");
        let name = case
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if output.status.success() {
            let result: serde_json::Value =
                serde_json::from_slice(&output.stdout).expect("one JSON object");
            println!(
                "{name}: worst {} of {}",
                result["worst"], result["tolerance"]
            );
        } else if is_excused(case, &output) {
            println!("{name}: not compared, as its meta.json says");
        } else if beside && is_unknown(&output) {
            skipped(&format!("frontend for {name}"));
        } else {
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            failed.push(format!("{name}: {}\n{said}", output.status));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {} cases failed:\n{}",
        failed.len(),
        cases.len(),
        failed.join("\n")
    );
}

#[test]
fn the_cases_in_the_repository() {
    verify(
        &PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
        false,
    );
}

#[test]
fn the_cases_beside_the_repository() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures");
    if folder.is_dir() {
        verify(&folder, true);
    } else {
        skipped("recorded cases beside the repository");
    }
}
