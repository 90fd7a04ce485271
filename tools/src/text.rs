//! Text from files, models and standard input, and its safe display.

use std::io::{Read, Write};
use std::path::Path;

use serde::Serialize;
use waterline_quant::NewFile;

use crate::error::{Error, Result};

/// Note for chats with a model without a chat template.
pub const NO_TEMPLATE: &str =
    "note: the model has no chat template; messages are written in ChatML";

/// The path that means standard input.
pub const STDIN: &str = "-";

/// Reads the text of a file; `-` is standard input.
///
/// # Errors
/// The file cannot be read or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    if path.as_os_str() == STDIN {
        read_stdin()
    } else {
        read_file(path)
    }
}

/// Reads the text of standard input.
///
/// # Errors
/// Standard input cannot be read or is not UTF-8.
pub fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().read_to_end(&mut bytes);
    read.map_err(|e| Error::io("standard input", e))?;
    utf8(bytes, "standard input")
}

/// Reads the text of a file, even if its name is `-`.
///
/// # Errors
/// The file cannot be read or is not UTF-8.
pub fn read_file(path: &Path) -> Result<String> {
    utf8(std::fs::read(path).map_err(|e| Error::io(path, e))?, path)
}

/// Decodes UTF-8 without a leading byte order mark; `name` is used in errors.
pub fn utf8(mut bytes: Vec<u8>, name: impl AsRef<Path>) -> Result<String> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
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

/// Makes text of a model or a file safe for a terminal. Line breaks and tabs stay. Every other control character (escape
/// sequences begin with one) and every character that changes the direction of writing becomes a replacement character.
pub fn shown(text: &str) -> String {
    let safe = |c: char| {
        if is_hostile(c) {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.chars().map(safe).collect()
}

/// Whether a terminal does anything other than show the character.
fn is_hostile(c: char) -> bool {
    let reverses = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    reverses || c.is_control() && c != '\n' && c != '\t'
}

/// Formats a line of JSON. Characters that a terminal would interpret are escaped, since JSON itself escapes only ASCII's control
/// characters.
pub fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("numbers and texts are JSON");
    let mut line = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if is_hostile(c) {
            line.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            line.push(c)
        }
    }
    line.push('\n');
    line
}

/// Returns the text as [`shown`], on one line of at most `width` characters.
pub fn shown_line(text: &str, width: usize) -> String {
    let line = shown(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    match line.char_indices().nth(width) {
        Some(_) => line
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
        None => line,
    }
}

/// Returns the text as [`shown`], in lines of at most `width` characters. Lines break between words, or inside a word
/// that is longer than a line.
pub fn lines_of(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in shown(text).split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        let follows = |line: &String| line.chars().count() + 1 + letters.len() <= width;
        match lines.last_mut().filter(|line| follows(line)) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.extend(
                letters
                    .chunks(width)
                    .map(|part| part.iter().collect::<String>()),
            ),
        }
    }
    lines
}

/// Returns the end of the text as [`shown`], on one line of at most `width` characters.
pub fn shown_end(text: &str, width: usize) -> String {
    let line = shown_line(text, usize::MAX);
    match line.chars().count() {
        length if length > width => {
            let end = line.chars().skip(length + 1 - width);
            ['…'].into_iter().chain(end).collect()
        }
        _ => line,
    }
}

/// Writes a result to a file, which appears only when it is complete.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let write = || {
        let mut file = NewFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.finish()
    };
    write().map_err(|source| {
        Error::Output(waterline_quant::Error::Io {
            path: path.into(),
            action: "write",
            source,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let text = |bytes: &[u8]| utf8(bytes.to_vec(), "a file").expect("text");
        assert_eq!(text(b"\xef\xbb\xbfa"), "a");
        assert_eq!(text(b"a\xef\xbb\xbf"), "a\u{feff}");
        assert_eq!(text(b""), "");
    }

    #[test]
    fn no_escape_sequence_reaches_a_terminal() {
        assert_eq!(
            shown("a\x1b[31mb\tc\nd\u{9b}e\x7f\u{202e}"),
            "a\u{fffd}[31mb\tc\nd\u{fffd}e\u{fffd}\u{fffd}"
        );
        let text = "a\x1b\u{9b}31m\u{202e}\x7f\u{e9}\n";
        let line = json_line(&text);
        assert_eq!(line, "\"a\\u001b\\u009b31m\\u202e\\u007f\u{e9}\\n\"\n");
        assert_eq!(serde_json::from_str::<String>(&line).expect("JSON"), text);
        assert_eq!(shown_line(" one\n two  three", 9), "one two …");
        assert_eq!(shown_line("one two", 7), "one two");
        assert_eq!(
            lines_of("one two three\nfourfive", 7),
            ["one two", "three", "fourfiv", "e"]
        );
        assert_eq!(shown_end("one two three", 6), "…three");
        assert_eq!(shown_end("one", 6), "one");
    }
}
