//! Common clients against `waterline serve`: the Python packages openai and anthropic, and curl. `serve_clients.py` has their checks.

mod skipped;

use std::path::Path;
use std::process::Command;

use skipped::skipped;

#[test]
fn clients_of_both_interfaces_are_served() {
    let python = std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
    let has_packages = Command::new(&python)
        .args(["-c", "import openai, anthropic"])
        .output();
    let has_curl = Command::new("curl").arg("--version").output();
    if !has_packages.is_ok_and(|output| output.status.success()) || has_curl.is_err() {
        return skipped("`python3` with openai and anthropic, and `curl`");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/serve_clients.py");
    let output = Command::new(python)
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_waterline"))
        .output()
        .expect("Python runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", said(&output.stderr));
    let checked = said(&output.stdout);
    assert!(checked.starts_with("29 checked"), "{checked}");
}
