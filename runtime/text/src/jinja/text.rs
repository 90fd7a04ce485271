//! Writes values as text: in Python's format, and as JSON. Output is charged to the work budget before it is written.

use super::marked::{Mark, Marked, RUN, Text};
use super::value::Value;
use super::work::Work;
use super::{Failure, Outcome};

/// A text that is being written.
pub struct Writer<'w> {
    pub work: &'w mut Work,
    pub out: Marked,
}

impl<'w> Writer<'w> {
    pub fn new(work: &'w mut Work) -> Self {
        Writer {
            work,
            out: Marked::default(),
        }
    }

    /// Writes text of the template.
    pub fn push(&mut self, text: &str) -> Outcome<()> {
        self.marked(text, Mark::Template)
    }

    /// Writes text of one origin.
    pub fn marked(&mut self, text: &str, mark: Mark) -> Outcome<()> {
        self.work.spend(text.len())?;
        if self.out.push(text, mark) {
            self.work.spend(RUN)?;
        }
        Ok(())
    }

    pub fn text(&mut self, text: &Text) -> Outcome<()> {
        text.stretches()
            .try_for_each(|(stretch, mark)| self.marked(stretch, mark))
    }

    /// Writes `text` with the replacements that `escape` returns for some of its characters.
    pub fn escaped(&mut self, text: &Text, escape: impl Fn(char) -> Option<String>) -> Outcome<()> {
        for (stretch, mark) in text.stretches() {
            let mut rest = stretch;
            let replaced = |(at, c): (usize, char)| Some((at, c, escape(c)?));
            for (at, character, replacement) in stretch.char_indices().filter_map(replaced) {
                let done = stretch.len() - rest.len();
                self.marked(&stretch[done..at], mark)?;
                self.marked(&replacement, mark)?;
                rest = &stretch[at + character.len_utf8()..];
            }
            self.marked(rest, mark)?;
        }
        Ok(())
    }

    /// Writes text with the characters of HTML escaped, unless it is safe.
    pub fn html(&mut self, text: &Text) -> Outcome<()> {
        if text.is_safe {
            return self.text(text);
        }
        self.escaped(text, |character| {
            let name = match character {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&#34;",
                '\'' => "&#39;",
                _ => return None,
            };
            Some(name.into())
        })
    }

    /// The text as a value that is safe.
    pub fn finish_safe(self) -> Outcome<Value> {
        let mut text = self.finish_text()?;
        text.is_safe = true;
        Ok(Value::Str(text))
    }

    /// The text as a value, which is a copy.
    pub fn finish(self) -> Outcome<Value> {
        self.finish_text().map(Value::Str)
    }

    pub fn finish_text(self) -> Outcome<Text> {
        let text = self.out.into_text();
        self.work.spend(text.size())?;
        Ok(text)
    }

    /// Writes a value like Python's `str`.
    pub fn value(&mut self, value: &Value) -> Outcome<()> {
        match value {
            Value::Str(text) => self.text(text),
            Value::Undefined => Ok(()),
            other => self.repr(other),
        }
    }

    /// Writes a value like Python's `repr`.
    pub fn repr(&mut self, value: &Value) -> Outcome<()> {
        self.work.spend(4)?;
        match value {
            Value::Undefined => self.push("Undefined"),
            Value::None => self.push("None"),
            Value::Bool(true) => self.push("True"),
            Value::Bool(false) => self.push("False"),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) => self.push(&float(*value, ["inf", "-inf", "nan"])),
            Value::Str(text) => self.quoted(text),
            Value::List(list) => {
                let (open, close) = if list.tuple { ("(", ")") } else { ("[", "]") };
                self.push(open)?;
                for (index, item) in list.items.iter().enumerate() {
                    self.push(if index > 0 { ", " } else { "" })?;
                    self.repr(item)?;
                }
                let single = list.tuple && list.items.len() == 1;
                self.push(if single { "," } else { "" })?;
                self.push(close)
            }
            Value::Dict(dict) => {
                self.push("{")?;
                for (index, (key, value)) in dict.entries.iter().enumerate() {
                    self.push(if index > 0 { ", " } else { "" })?;
                    self.repr(key)?;
                    self.push(": ")?;
                    self.repr(value)?;
                }
                self.push("}")
            }
            Value::Namespace(_) => self.push("<Namespace>"),
            Value::Loop(_) => self.push("<LoopContext>"),
            Value::Macro(..) | Value::Function(_) | Value::Method(_) => self.push("<function>"),
        }
    }

    fn quoted(&mut self, text: &Text) -> Outcome<()> {
        let double = text.contains('\'') && !text.contains('"');
        let quote = if double { "\"" } else { "'" };
        self.push(quote)?;
        self.escaped(text, |character| {
            Some(match character {
                '\\' => "\\\\".into(),
                '\n' => "\\n".into(),
                '\r' => "\\r".into(),
                '\t' => "\\t".into(),
                '\'' if !double => "\\'".into(),
                ' ' => return None,
                hidden if is_hidden(hidden) => match hidden as u32 {
                    code @ ..0x100 => format!("\\x{code:02x}"),
                    code @ ..0x1_0000 => format!("\\u{code:04x}"),
                    code => format!("\\U{code:08x}"),
                },
                _ => return None,
            })
        })?;
        self.push(quote)
    }
}

/// Whether Python's `repr` escapes a character: control and format characters, private ones and white space.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || character.is_whitespace()
        || matches!(character,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..)
}

/// Formats a float like Python; `odd` are the texts for infinity, negative infinity and NaN.
fn float(value: f64, odd: [&str; 3]) -> String {
    if value.is_nan() {
        return odd[2].into();
    }
    if value.is_infinite() {
        return odd[usize::from(value < 0.0)].into();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            let mantissa = mantissa.strip_suffix(".0").unwrap_or(mantissa);
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}

/// Settings of the JSON writer.
pub struct Json {
    /// Indentation per level; `None` for a single line.
    pub indent: Option<Text>,
    pub item_separator: Text,
    pub key_separator: Text,
    pub sort_keys: bool,
    pub ascii: bool,
}

impl Json {
    pub fn write(&self, value: &Value, level: usize, out: &mut Writer) -> Outcome<()> {
        out.work.spend(4)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(true) => out.push("true"),
            Value::Bool(false) => out.push("false"),
            Value::Float(value) => out.push(&float(*value, ["Infinity", "-Infinity", "NaN"])),
            Value::Int(_) => out.repr(value),
            Value::Str(text) => self.string(text, out),
            Value::List(list) => {
                out.push("[")?;
                for (index, item) in list.items.iter().enumerate() {
                    self.before(index, level + 1, out)?;
                    self.write(item, level + 1, out)?;
                }
                self.after(list.items.len(), level, out)?;
                out.push("]")
            }
            Value::Dict(dict) => {
                let mut entries: Vec<(Text, &Value)> = Vec::new();
                for (key, value) in &dict.entries {
                    entries.push((key_text(key, out.work)?, value));
                }
                if self.sort_keys {
                    let weight = value.weight().saturating_mul(1 + log2(entries.len()));
                    out.work.spend(weight)?;
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                out.push("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.before(index, level + 1, out)?;
                    self.string(key, out)?;
                    out.text(&self.key_separator)?;
                    self.write(value, level + 1, out)?;
                }
                self.after(entries.len(), level, out)?;
                out.push("}")
            }
            other => Err(Failure::new(format!(
                "{} cannot be written as JSON",
                other.kind()
            ))),
        }
    }

    fn before(&self, index: usize, level: usize, out: &mut Writer) -> Outcome<()> {
        if index > 0 {
            out.text(&self.item_separator)?;
        }
        self.line(level, out)
    }

    fn after(&self, length: usize, level: usize, out: &mut Writer) -> Outcome<()> {
        match length {
            0 => Ok(()),
            _ => self.line(level, out),
        }
    }

    fn line(&self, level: usize, out: &mut Writer) -> Outcome<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        out.push("\n")?;
        (0..level).try_for_each(|_| out.text(indent))
    }

    fn string(&self, text: &Text, out: &mut Writer) -> Outcome<()> {
        out.push("\"")?;
        out.escaped(text, |character| {
            Some(match character {
                '"' => "\\\"".into(),
                '\\' => "\\\\".into(),
                '\n' => "\\n".into(),
                '\r' => "\\r".into(),
                '\t' => "\\t".into(),
                '\x08' => "\\b".into(),
                '\x0c' => "\\f".into(),
                other if other < ' ' || (self.ascii && other > '~') => {
                    let mut units = [0; 2];
                    let units = other.encode_utf16(&mut units).iter();
                    units.map(|unit| format!("\\u{unit:04x}")).collect()
                }
                _ => return None,
            })
        })?;
        out.push("\"")
    }
}

/// Converts a mapping's key to a string, as JSON requires.
fn key_text(key: &Value, work: &mut Work) -> Outcome<Text> {
    let mut writer = Writer::new(work);
    match key {
        Value::None => writer.push("null")?,
        Value::Bool(true) => writer.push("true")?,
        Value::Bool(false) => writer.push("false")?,
        Value::List(_) => return Err(Failure::new("a tuple cannot be a key in JSON")),
        other => writer.value(other)?,
    }
    Ok(writer.out.into_text())
}

/// The binary logarithm, rounded down; 0 for 0.
pub fn log2(n: usize) -> usize {
    n.checked_ilog2().unwrap_or(0) as usize
}
