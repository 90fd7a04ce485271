//! The error type of this crate.

use std::path::{Path, PathBuf};

/// Errors of formats, matrices and files. Each message names the place, the value found and the value expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{path}: cannot {action}: {reason}", path = .path.display(), reason = reason(.source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The action that failed: "open", "map", "write", ...
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file holds a value that its format or its reader does not allow.
    #[error("{file}: {item}: found {found}, expected {expected}")]
    Invalid {
        /// The file.
        file: String,
        /// The key, tensor or header field.
        item: String,
        /// The value found.
        found: String,
        /// The value expected.
        expected: String,
    },
    /// A file lacks a key or tensor.
    #[error("{file}: {item} is missing")]
    Missing {
        /// The file.
        file: String,
        /// The key or tensor.
        item: String,
    },
    /// A number format that does not exist, or that this crate does not implement.
    #[error("unknown number format {found}, expected one of {expected}")]
    UnknownFormat {
        /// The name or ggml type number given.
        found: String,
        /// The names of the known formats.
        expected: String,
    },
    /// A row that is not a whole number of blocks.
    #[error(
        "a row of {cols} numbers cannot be stored as {format}: expected a multiple of {block_len}"
    )]
    PartialBlock {
        /// The format's name.
        format: &'static str,
        /// Values in the row.
        cols: usize,
        /// Values in a block.
        block_len: usize,
    },
    /// Data whose length does not match its shape.
    #[error("{format} data of shape {shape:?}: found {found} bytes, expected {expected}")]
    DataLength {
        /// The format's name.
        format: &'static str,
        /// The shape, outermost dimension first.
        shape: Vec<usize>,
        /// Bytes given.
        found: usize,
        /// Bytes that the shape needs.
        expected: usize,
    },
    /// A shape whose size in bytes exceeds the address range.
    #[error("shape {shape:?} is too large")]
    TooLarge {
        /// The shape, outermost dimension first.
        shape: Vec<usize>,
    },
    /// Memory that the system refuses to allocate.
    #[error("{bytes} bytes of working memory cannot be allocated")]
    Memory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A SIMD level that this CPU lacks.
    #[error("this CPU has no {0:?}")]
    NoSimd(crate::Simd),
}

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Returns the operating system's reason in words, without the error number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((words, _)) => words.into(),
        None => text,
    }
}

impl Error {
    pub(crate) fn io(path: &Path, action: &'static str, source: std::io::Error) -> Error {
        Error::Io {
            path: path.to_path_buf(),
            action,
            source,
        }
    }

    pub(crate) fn invalid(
        file: &str,
        item: impl Into<String>,
        found: impl ToString,
        expected: impl Into<String>,
    ) -> Error {
        Error::Invalid {
            file: file.to_string(),
            item: item.into(),
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}
