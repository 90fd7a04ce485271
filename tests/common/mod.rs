//! Helpers for tests of the program: running it, and files for it.

#![allow(dead_code)] // each test binary uses a part

pub mod talk;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// Returns a command for the program with a private home and no input.
pub fn waterline(home: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterline"));
    command
        .stdin(Stdio::null())
        .env("HOME", home.path())
        .env_remove("XDG_STATE_HOME")
        .env_remove("LOCALAPPDATA")
        .env_remove("NO_COLOR");
    command
}

/// The result of a run of the program.
pub struct Outcome {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    /// Returns standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("output is UTF-8")
    }

    /// Returns the only JSON object on standard output.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e} in {}", self.text()))
    }

    /// Checks that the run succeeded and wrote nothing to standard error.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""));
        self
    }

    /// Checks that the run failed with `status` and one sentence that contains each of `parts`.
    #[track_caller]
    pub fn failed(self, status: i32, parts: &[&str]) -> Self {
        assert_eq!(self.status, Some(status), "{}", self.stderr);
        let sentence = self
            .stderr
            .strip_prefix("waterline: ")
            .unwrap_or_else(|| panic!("{}", self.stderr));
        assert_eq!(sentence.trim_end().lines().count(), 1, "{sentence}");
        assert!(!sentence.contains("panicked"), "{sentence}");
        for part in parts {
            assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
        }
        self
    }
}

/// Runs a command to its end.
pub fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().expect("the program starts");
    Outcome {
        status: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
    }
}

/// Runs a command on `input`.
pub fn outcome_of_input(command: &mut Command, input: &[u8]) -> Outcome {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let output = std::thread::scope(|scope| {
        // The program may exit before it has read all input.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("the program ends")
    });
    Outcome {
        status: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
    }
}

/// A folder for one test, also the program's home.
pub struct Workplace {
    pub home: TempDir,
}

impl Workplace {
    pub fn new() -> Self {
        Workplace {
            home: TempDir::new().expect("a temporary folder"),
        }
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns a path in the folder as text.
    pub fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a file in the folder.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the file is written");
        path
    }

    /// Returns a command for the program with arguments.
    pub fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = waterline(&self.home);
        command.args(arguments);
        command
    }

    /// Runs the program with arguments.
    pub fn run(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Outcome {
        outcome(&mut self.command(arguments))
    }

    /// Makes a model with random weights and a tokenizer.
    pub fn model(&self, preset: &str) -> PathBuf {
        let path = self.path(&format!("{preset}.gguf"));
        let tokenizer = tokenizer_folder();
        let arguments = ["synth", preset, "--type", "f32", "--seed", "7"].map(OsStr::new);
        let files = [
            "-o".as_ref(),
            path.as_os_str(),
            "--tokenizer".as_ref(),
            tokenizer.as_os_str(),
        ];
        self.run(arguments.into_iter().chain(files)).succeeded();
        path
    }

    /// Returns the sorted names of the files in the folder.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path()).expect("the folder is there");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tools lies in the workspace")
}

/// Returns the folder of a tokenizer with 4096 tokens and a chat template.
pub fn tokenizer_folder() -> PathBuf {
    root().join("runtime/text/tests/data/tok4096")
}

/// Returns the folder of the fixtures in the repository.
pub fn fixtures() -> PathBuf {
    root().join("tests/fixtures")
}

/// Returns the folder of a fixture.
pub fn fixture(case: &str) -> PathBuf {
    let places = [fixtures(), root().join("../shared/fixtures")];
    let mut folders = places.iter().map(|place| place.join(case));
    folders
        .find(|folder| folder.is_dir())
        .unwrap_or_else(|| panic!("there is no fixture {case}"))
}

/// Copies the model of a fixture, so that a test can change it.
pub fn copy_fixture(case: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let content = std::fs::read(fixture(case).join(file)).unwrap();
        std::fs::write(to.join(file), content).unwrap();
    }
}

/// Sends Ctrl-C's signal to a program without a terminal.
#[cfg(unix)]
pub fn interrupt(child: &std::process::Child) {
    send(child, "INT");
}

/// Sends a signal to a program.
#[cfg(unix)]
pub fn send(child: &std::process::Child, signal: &str) {
    let kill = Command::new("kill")
        .args([&format!("-{signal}"), &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
}
