//! The one error type of the program, and the exit status of each error.

use std::path::{Path, PathBuf};

use crate::interrupt::INTERRUPTED;
use crate::text::shown;

/// Result of the commands.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that ends a command, as a sentence a user can act on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused a model, a parameter or a text.
    #[error(transparent)]
    Library(#[from] waterline::Error),
    /// A number format or a file of tensors.
    #[error(transparent)]
    Format(#[from] waterline_quant::Error),
    /// The operating system refused a file operation.
    #[error("{}: {}", path.display(), waterline_quant::reason(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file holds something that cannot be used.
    #[error("{}: {reason}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),
    /// A result that cannot be written.
    #[error(transparent)]
    Output(waterline_quant::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {}", waterline_quant::reason(.0))]
    Stdout(std::io::Error),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Flags that do not go together, and why.
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

    /// Whether the reader of our output has gone away, which is its good right.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Stdout(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The error, with the flags that help where the library can only name its options; fit for a terminal.
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

    /// Writes the error to standard error; returns the status that the program ends with.
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
            Error::Output(_) | Error::Stdout(_) => 1,
            Error::Library(_)
            | Error::Format(_)
            | Error::Io { .. }
            | Error::Input { .. }
            | Error::Usage(_) => 2,
        }
    }
}
