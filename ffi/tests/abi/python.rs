//! The Python package installs without a compiler and keeps its promises.

use std::process::Command;

use crate::installed::{has, prefix, scratch, source, succeeds};

/// Returns a Python with numpy: the one in `WATERLINE_PYTHON`, or the first on the path.
pub fn python() -> Option<String> {
    let python = std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
    has(&python, &["-c", "import numpy"]).then_some(python)
}

/// Sets up a Python command to find the package and the installed library.
pub fn library(command: &mut Command) -> &mut Command {
    command
        .env("PYTHONPATH", source("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WATERLINE_LIBRARY", prefix().join("lib/libwaterline.so"))
}

#[test]
fn the_package_keeps_its_promises() {
    let Some(python) = python() else { return };
    let mut command = Command::new(python);
    command
        .arg(source("tests/programs/package.py"))
        .arg(scratch("waterline-python"));
    assert_eq!(
        String::from_utf8_lossy(&succeeds(library(&mut command)).stdout),
        "all right\n"
    );
}

#[test]
fn the_package_refuses_what_c_would_cut_and_serves_threads() {
    let python = std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
    if !has(&python, &["-c", "import ctypes"]) {
        return;
    }
    let mut command = Command::new(python);
    command
        .arg(source("tests/programs/trust.py"))
        .arg(scratch("waterline-trust"));
    assert_eq!(
        String::from_utf8_lossy(&succeeds(library(&mut command)).stdout),
        "all right\n"
    );
}

#[test]
fn a_newcomer_tells_a_story_and_talks() {
    let python = std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
    if !has(&python, &["-c", "import ctypes"]) {
        return;
    }
    let mut command = Command::new(python);
    command.arg(source("tests/programs/newcomer.py"));
    let said = String::from_utf8_lossy(&succeeds(library(&mut command)).stdout).into_owned();
    assert!(
        said.contains("Anna") && said.ends_with("0.0 True\nWL_ERROR_IO\n"),
        "{said}"
    );
}

/// Installs the wheel of `ffi/wheel` into a clean environment, with neither compiler nor cargo on the path.
#[test]
fn the_wheel_needs_no_compiler() {
    let Some(python) = python() else { return };
    let tools = "import setuptools.command.bdist_wheel, pip, venv";
    if !has(&python, &["-c", tools]) {
        return;
    }
    let folder = scratch("waterline-wheel");
    let mut wheel = Command::new(source("wheel"));
    wheel
        .arg("--library")
        .arg(prefix().join("lib/libwaterline.so"))
        .arg("--out")
        .arg(&folder)
        .env("PYTHON", &python);
    let said = String::from_utf8_lossy(&succeeds(&mut wheel).stdout).into_owned();
    let file = said.trim();
    assert!(file.contains("-py3-none-manylinux_2_"), "{said}");
    let clean = folder.join("environment");
    succeeds(
        Command::new(&python)
            .args(["-m", "venv", "--clear"])
            .arg(&clean),
    );
    let bin = clean.join("bin");
    let alone = |program: &str| {
        let mut command = Command::new(bin.join(program));
        command.env_clear().env("PATH", &bin).env("HOME", &folder);
        command
    };
    let mut pip = alone("python");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--force-reinstall",
    ])
    .args(["--disable-pip-version-check", file]);
    succeeds(&mut pip);
    let said = succeeds(alone("python").arg(source("tests/programs/newcomer.py"))).stdout;
    assert!(String::from_utf8_lossy(&said).contains("Anna"));
}

#[test]
fn the_package_installs_with_pip_alone() {
    let Some(python) = python() else { return };
    let tools = "import setuptools.command.bdist_wheel, pip";
    if !has(&python, &["-c", tools]) {
        return;
    }
    // A copy, because setuptools creates folders where it builds.
    let copy = scratch("waterline-package");
    let target = scratch("waterline-site");
    succeeds(
        Command::new("cp")
            .arg("-r")
            .arg(source("python/."))
            .arg(&copy),
    );
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--no-build-isolation", "--no-index"])
        .arg("--target")
        .args([&target, &copy]);
    succeeds(&mut pip);
    let mut command = Command::new(python);
    command
        .args(["-c", "import waterline; print(waterline.version())"])
        .env("PYTHONPATH", target)
        .env("WATERLINE_LIBRARY", prefix().join("lib/libwaterline.so"));
    let said = String::from_utf8_lossy(&succeeds(&mut command).stdout).into_owned();
    assert_eq!(said.trim(), env!("CARGO_PKG_VERSION"));
}
