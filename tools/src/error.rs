//! The program's error type, and the exit status of each error.

use std::path::{Path, PathBuf};

use crate::interrupt::INTERRUPTED;
use crate::text::shown;

/// The result of commands.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that ends a command, as a sentence that a user can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused a model, a parameter or a text.
    #[error(transparent)]
    Library(#[from] waterline::Error),
    /// A number format or a tensor file is invalid.
    #[error(transparent)]
    Format(#[from] waterline_quant::Error),
    /// The operating system refused a file operation.
    #[error("{}: {}", path.display(), waterline_quant::reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The content of a file cannot be used.
    #[error("{}: {reason}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file states something else than was found.
    #[error("{}: {reason}", path.display())]
    Differs {
        /// The file.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
    /// Invalid or conflicting arguments.
    #[error("{0}")]
    Usage(String),
    /// A result cannot be written.
    #[error(transparent)]
    Output(waterline_quant::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {}", waterline_quant::reason(.0))]
    Stdout(std::io::Error),
    /// Ctrl-C was pressed.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An error about invalid or conflicting arguments.
    pub fn usage(reason: impl Into<String>) -> Self {
        Error::Usage(reason.into())
    }

    /// An error of the operating system about `path`.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Error::Io {
            path: path.as_ref().into(),
            source,
        }
    }

    /// An error in the content of `path`.
    pub fn input(path: impl AsRef<Path>, reason: impl Into<String>) -> Self {
        Error::Input {
            path: path.as_ref().into(),
            reason: reason.into(),
        }
    }

    /// Whether the reader of standard output closed it, which is not a failure.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Stdout(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Returns the error as a sentence for a terminal. Names the flags that help where the library can name only its options.
    pub fn sentence(&self) -> String {
        let flags = match self {
            Error::Library(waterline::Error::ContextFull { context, .. }) => {
                format!(
                    " (--context {}, or --on-full shift or compact; in a chat, /undo or /clear)",
                    context.saturating_mul(4)
                )
            }
            _ => String::new(),
        };
        shown(&self.to_string()) + &flags
    }

    /// Writes the error to standard error. Returns the exit status.
    pub fn report(&self) -> u8 {
        use std::io::Write;
        // If standard error is closed as well, there is nowhere to report.
        let _ = writeln!(std::io::stderr(), "waterline: {}", self.sentence());
        self.status()
    }

    fn status(&self) -> u8 {
        use waterline::Error as Library;
        match self {
            Error::Interrupted | Error::Library(Library::Cancelled { .. }) => INTERRUPTED,
            Error::Library(
                Library::ContextFull { .. } | Library::Snapshot { .. } | Library::Rewind { .. },
            ) => 1,
            Error::Output(_) | Error::Stdout(_) | Error::Differs { .. } => 1,
            Error::Library(_)
            | Error::Format(_)
            | Error::Io { .. }
            | Error::Input { .. }
            | Error::Usage(_) => 2,
        }
    }
}
