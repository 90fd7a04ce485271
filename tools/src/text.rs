//! Text that comes from outside.

use std::path::Path;

use crate::error::{Error, Result};

/// The text in `bytes`, which errors call `name`.
pub fn utf8(bytes: Vec<u8>, name: impl AsRef<Path>) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let offset = e.utf8_error().valid_up_to();
        Error::input(
            name,
            format!(
                "not UTF-8: byte {offset} (0x{:02x}) begins no character",
                e.as_bytes()[offset]
            ),
        )
    })
}

/// What a terminal may be sent: line breaks and tabs stay, other control characters (an escape sequence would begin with one) become
/// replacement characters.
pub fn printable(text: &str) -> String {
    let safe = |c: char| {
        if c.is_control() && c != '\n' && c != '\t' {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(safe).collect()
}

/// Writes a result to a file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| {
        Error::Output(waterline_quant::Error::Io {
            path: path.into(),
            action: "write",
            source,
        })
    })
}
