//! Builds the library of `faults.c`, which makes system calls of a process fail.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skipped::skipped;

/// Compiles the library into `folder`; `None` without a C compiler.
pub fn shim(folder: &Path) -> Option<PathBuf> {
    let library = folder.join("faults.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/faults.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .args([&library, &source])
        .args(["-ldl"])
        .status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "faults.c");
            Some(library)
        }
        Err(_) => {
            skipped("`cc`");
            None
        }
    }
}
