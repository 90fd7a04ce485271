//! Clients of `waterline serve`: the Python packages openai, anthropic and ollama, curl, and scripts that operate a server.

mod skipped;

use std::path::Path;
use std::process::Command;

use skipped::skipped;

#[test]
fn clients_of_each_interface_are_served() {
    let has_packages = Command::new(python())
        .args(["-c", "import openai, anthropic, ollama"])
        .output();
    let has_curl = Command::new("curl").arg("--version").output();
    if !has_packages.is_ok_and(|output| output.status.success()) || has_curl.is_err() {
        return skipped("`python3` with openai, anthropic and ollama, and `curl`");
    }
    let checked = run("serve_clients.py");
    assert!(checked.starts_with("40 checked"), "{checked}");
}

/// Hostile requests, while honest clients are served.
#[test]
fn hostile_requests_end_alone() {
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped("`python3`");
    }
    let sent = run("serve_hostile.py");
    assert!(sent.contains(" requests in "), "{sent}");
}

fn python() -> String {
    std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into())
}

/// Runs a script of `tests/` with the program. Returns its output.
fn run(script: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests")
        .join(script);
    let output = Command::new(python())
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_waterline"))
        .output()
        .expect("Python runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", said(&output.stderr));
    said(&output.stdout)
}

#[test]
fn vectors_are_served() {
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped("`python3`");
    }
    let checked = run("serve_embeddings.py");
    assert!(checked.starts_with("12 checked"), "{checked}");
}

#[test]
fn a_server_is_operated() {
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped("`python3`");
    }
    let checked = run("serve_operating.py");
    assert!(checked.starts_with("8 checked"), "{checked}");
}

#[test]
fn limits_signals_and_omissions_are_as_documented() {
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped("`python3`");
    }
    let checked = run("serve_limits.py");
    assert!(checked.starts_with("9 checked"), "{checked}");
}

#[test]
fn models_of_a_folder_make_room_for_each_other() {
    if Command::new(python()).arg("--version").output().is_err() {
        return skipped("`python3`");
    }
    let checked = run("serve_models.py");
    assert!(checked.starts_with("8 checked"), "{checked}");
}
