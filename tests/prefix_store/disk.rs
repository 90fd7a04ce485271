//! A failing disk under a store: each system call on its files fails once. The tokens must still be read, and the contents of the directory
//! must be valid afterwards.

use std::path::Path;
use std::process::Command;

use waterline::{PrefixStore, PrefixStoreOptions};

use super::directory::{hybrid, reads};
use super::fault_shim::shim;
use super::{Random, store};

/// The folder that this test's child process writes to.
const CHILD: &str = "WATERLINE_FAULTY_STORE";
/// Linux error numbers.
const EIO: &str = "5";
const ENOSPC: &str = "28";
/// The system calls made on files, and how each may fail.
const FAULTS: &[(&str, &[&str])] = &[
    ("open", &[EIO]),
    ("read", &[EIO]),
    ("write", &[ENOSPC, "short"]),
    ("fsync", &[ENOSPC]),
    ("rename", &[EIO]),
];

/// Reads two histories with a store in `folder`, like two processes.
fn work(folder: &Path) {
    let model = hybrid();
    let tokens = Random(3).tokens(60, model.spec().vocab);
    for count in [40, 60] {
        let mut options = PrefixStoreOptions::default();
        (options.grid, options.directory) = (16, Some(folder.to_path_buf()));
        // No store can be made on a directory that cannot be read.
        if let Ok(shared) = PrefixStore::new(options) {
            reads(&model, &shared, &tokens[..count]);
            shared.flush();
        }
    }
}

#[test]
fn a_failing_disk_costs_checkpoints_and_nothing_else() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return work(Path::new(&folder));
    }
    let (model, place) = (hybrid(), tempfile::tempdir().expect("a folder"));
    let Some(library) = shim(place.path()) else {
        return;
    };
    let (happened, mut count) = (place.path().join("happened"), 0);
    for (call, faults) in FAULTS {
        for fault in *faults {
            for number in 0.. {
                let folder = tempfile::tempdir().expect("a folder");
                let what = format!("{call} {number} {fault}");
                let child = Command::new(std::env::current_exe().expect("this program"))
                    .args([
                        "--exact",
                        "disk::a_failing_disk_costs_checkpoints_and_nothing_else",
                    ])
                    .env(CHILD, folder.path())
                    .env("LD_PRELOAD", &library)
                    .env("WATERLINE_FAULT", &what)
                    .env("WATERLINE_FAULT_FOLDER", folder.path())
                    .env("WATERLINE_FAULT_FILE", &happened)
                    .output()
                    .expect("a child");
                let said = String::from_utf8_lossy(&child.stdout);
                assert!(child.status.success(), "{what}: {said}");
                let shared = store(1 << 24, 16, Some(folder.path()));
                let tokens = Random(3).tokens(60, model.spec().vocab);
                let read = reads(&model, &shared, &tokens);
                // A background thread writes the store's files.
                shared.flush();
                assert_eq!(shared.take_notes(), [""; 0], "{what}");
                for entry in std::fs::read_dir(folder.path()).expect("the directory") {
                    let name = entry.expect("an entry").file_name();
                    assert!(
                        name == "key" || name.to_string_lossy().ends_with(".prefix"),
                        "{what}: {name:?}"
                    );
                }
                if std::fs::remove_file(&happened).is_err() {
                    assert_eq!(read, 0, "{what}");
                    break;
                }
                count += 1;
            }
        }
    }
    assert!(count > 8, "{count} faults");
}
