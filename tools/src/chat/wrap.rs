//! Breaks lines between words while the text arrives in pieces.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Lines on narrower terminals are not wrapped here.
const NARROWEST: usize = 20;

/// Wraps a text for a terminal.
///
/// Each piece is shown immediately. A word that turns out not to fit its line is erased and written again on the next line.
#[derive(Default)]
pub struct Wrap {
    /// Columns of a line; 0 if lines are not broken.
    width: usize,
    /// Columns used in the current line.
    column: usize,
    /// The word at the end of the line.
    word: String,
    /// The word's width in columns.
    word_width: usize,
}

impl Wrap {
    /// Starts a text at the beginning of a line, on a terminal of this width; `None` turns wrapping off.
    pub fn new(columns: Option<usize>) -> Self {
        Wrap {
            // Terminals differ in the cursor's position after the last column, so that column stays free.
            width: columns.filter(|&n| n >= NARROWEST).map_or(0, |n| n - 1),
            ..Wrap::default()
        }
    }

    /// Returns the terminal output for the next piece of the text.
    pub fn push(&mut self, text: &str) -> String {
        if self.width == 0 {
            return text.into();
        }
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => self.new_line(&mut out),
                ' ' | '\t' => self.space(&mut out),
                _ => self.letter(c, &mut out),
            }
        }
        out
    }

    /// Returns the terminal output for a complete text, in which no word needs to be erased. After a label and two or
    /// more spaces, the continuation lines of the text are indented to its column.
    pub fn push_whole(&mut self, text: &str) -> String {
        let mut out = String::new();
        for line in text.split_inclusive('\n') {
            let indent = " ".repeat(text_column(line).min(self.width / 2));
            for word in line.split_inclusive(' ') {
                let (width, is_wrapped) = (word.trim_end().width(), self.width > 0);
                if is_wrapped && self.column > 0 && self.column + width > self.width {
                    self.new_line(&mut out);
                    out += &self.push(&indent);
                }
                // A space after the last column would begin a line that is not indented.
                let is_full = is_wrapped && self.column + width >= self.width;
                out += &self.push(if is_full {
                    word.trim_end_matches(' ')
                } else {
                    word
                });
            }
        }
        out
    }

    fn new_line(&mut self, out: &mut String) {
        out.push('\n');
        (self.column, self.word_width) = (0, 0);
        self.word.clear();
    }

    /// Writes a space; a space that would exceed the line becomes a line break.
    fn space(&mut self, out: &mut String) {
        if self.column + 1 > self.width {
            return self.new_line(out);
        }
        out.push(' ');
        self.column += 1;
        self.word_width = 0;
        self.word.clear();
    }

    fn letter(&mut self, c: char, out: &mut String) {
        let width = c.width().unwrap_or(0);
        if self.column + width > self.width {
            let word = std::mem::take(&mut self.word);
            let (of_line, of_word) = (self.column, self.word_width);
            if of_word > 0 && of_word < of_line {
                *out += &format!("\x1b[{of_word}D\x1b[K");
                self.new_line(out);
                *out += &word;
                (self.column, self.word_width, self.word) = (of_word, of_word, word);
            } else {
                self.new_line(out);
            }
        }
        out.push(c);
        self.column += width;
        if width > 1 {
            // Scripts of wide characters have no spaces, so a line may break after any character.
            self.word.clear();
            self.word_width = 0;
        } else {
            self.word.push(c);
            self.word_width += width;
        }
    }
}

/// The column of the text after a line's label; without a label, the line's indentation.
fn text_column(line: &str) -> usize {
    const WIDEST_LABEL: usize = 24;
    let label = line.trim_start().split("  ").next().unwrap_or_default();
    let is_label = label.width() <= WIDEST_LABEL && label.len() < line.trim().len();
    let start = line.len() - line.trim_start().len();
    let after = &line[start..][label.len()..];
    match (is_label, start) {
        (true, _) => start + label.width() + after.len() - after.trim_start().len(),
        // Continuation lines keep the indentation of an indented line.
        (false, start) => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a terminal of this width after it received these pieces.
    fn screen(columns: usize, pieces: &[&str]) -> Vec<String> {
        let mut wrap = Wrap::new(Some(columns));
        let sent: String = pieces.iter().map(|piece| wrap.push(piece)).collect();
        let mut lines = vec![Vec::new()];
        let mut rest = sent.as_str();
        while let Some(c) = rest.chars().next() {
            let line = lines.last_mut().unwrap();
            if let Some(escape) = rest.strip_prefix("\x1b[") {
                let end = escape.find(|c: char| c.is_alphabetic()).unwrap();
                if &escape[end..=end] == "D" {
                    let back: usize = escape[..end].parse().unwrap();
                    line.truncate(line.len() - back);
                }
                rest = &escape[end + 1..];
                continue;
            }
            match c {
                '\n' => lines.push(Vec::new()),
                _ => line.push(c),
            }
            assert!(lines.last().unwrap().len() < columns, "{sent:?}");
            rest = &rest[c.len_utf8()..];
        }
        lines.iter().map(|line| line.iter().collect()).collect()
    }

    #[test]
    fn a_word_that_does_not_fit_goes_to_the_next_line() {
        let pieces = [
            "The quick br",
            "own fox ju",
            "mp",
            "s over the la",
            "zy dog",
        ];
        let expected = ["The quick brown fox ", "jumps over the lazy ", "dog"];
        assert_eq!(screen(22, &pieces), expected);
        let letters: Vec<String> = pieces.concat().chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(screen(22, &letters), expected);
    }

    #[test]
    fn a_whole_text_is_broken_without_taking_back() {
        let text = "The quick brown fox jumps over the lazy dog\n  and more";
        let sent = Wrap::new(Some(22)).push_whole(text);
        let expected = "The quick brown fox \njumps over the lazy \ndog\n  and more";
        assert_eq!(sent, expected);
    }

    #[test]
    fn the_text_behind_a_label_goes_on_below_itself() {
        let text = "/undo   take the last message back\n   below of it, indented\nplain  ";
        let sent = Wrap::new(Some(24)).push_whole(text);
        let expected =
            "/undo   take the last \n        message back\n   below of it, \n   indented\nplain  ";
        assert_eq!(sent, expected);
        // A word that ends in the last column.
        let sent = Wrap::new(Some(22)).push_whole("/undo   take the last message");
        assert_eq!(sent, "/undo   take the last\n        message");
    }

    #[test]
    fn a_word_longer_than_a_line_is_broken() {
        let expected = ["a ", "bbbbbbbbbbbbbbbbbbb", "bbbbbb c"];
        assert_eq!(screen(20, &["a ", &"b".repeat(25), " c"]), expected);
    }

    #[test]
    fn lines_of_the_text_stay() {
        assert_eq!(screen(20, &["one\n\n  two\n"]), ["one", "", "  two", ""]);
        assert_eq!(Wrap::new(None).push("one two"), "one two");
        assert_eq!(Wrap::new(Some(19)).push(&"x".repeat(99)), "x".repeat(99));
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let mut wrap = Wrap::new(Some(21));
        assert_eq!(
            wrap.push(&"水".repeat(11)),
            format!("{}\n水", "水".repeat(10))
        );
    }
}
