//! Writes values as text: in Python's format, and as JSON. Output is charged to the work budget before it is written.

use super::value::Value;
use super::work::Work;
use super::{Failure, Outcome};

/// A text that is being written.
pub struct Writer<'w> {
    pub work: &'w mut Work,
    pub text: String,
}

impl<'w> Writer<'w> {
    pub fn new(work: &'w mut Work) -> Self {
        Writer {
            work,
            text: String::new(),
        }
    }

    pub fn push(&mut self, text: &str) -> Outcome<()> {
        self.work.spend(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Writes a value like Python's `str`.
    pub fn value(&mut self, value: &Value) -> Outcome<()> {
        match value {
            Value::Str(text) => self.push(text),
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
                self.push(if list.tuple && list.items.len() == 1 {
                    ","
                } else {
                    ""
                })?;
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
            Value::Macro(_) | Value::Function(_) => self.push("<function>"),
        }
    }

    fn quoted(&mut self, text: &str) -> Outcome<()> {
        let quote = if text.contains('\'') && !text.contains('"') {
            "\""
        } else {
            "'"
        };
        self.push(quote)?;
        for character in text.chars() {
            match character {
                '\\' => self.push("\\\\")?,
                '\n' => self.push("\\n")?,
                '\r' => self.push("\\r")?,
                '\t' => self.push("\\t")?,
                '\'' if quote == "'" => self.push("\\'")?,
                other if other.is_control() => self.push(&format!("\\x{:02x}", other as u32))?,
                other => self.push(other.encode_utf8(&mut [0; 4]))?,
            }
        }
        self.push(quote)
    }
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
            format!("{mantissa}e{sign}{digits:0>2}")
        }
    }
}

/// Settings of the JSON writer.
pub struct Json {
    /// Indentation per level; `None` for a single line.
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
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
                let mut entries: Vec<(String, &Value)> = Vec::new();
                for (key, value) in &dict.entries {
                    entries.push((key_text(key, out.work)?, value));
                }
                if self.sort_keys {
                    out.work
                        .spend(value.weight().saturating_mul(1 + log2(entries.len())))?;
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                out.push("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.before(index, level + 1, out)?;
                    self.string(key, out)?;
                    out.push(&self.key_separator)?;
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
        out.push(if index > 0 { &self.item_separator } else { "" })?;
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
        (0..level).try_for_each(|_| out.push(indent))
    }

    fn string(&self, text: &str, out: &mut Writer) -> Outcome<()> {
        out.push("\"")?;
        for character in text.chars() {
            match character {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\x08' => out.push("\\b")?,
                '\x0c' => out.push("\\f")?,
                other if other < ' ' || (self.ascii && other > '~') => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                other => out.push(other.encode_utf8(&mut [0; 4]))?,
            }
        }
        out.push("\"")
    }
}

/// Converts a mapping's key to a string, as JSON requires.
fn key_text(key: &Value, work: &mut Work) -> Outcome<String> {
    let mut writer = Writer::new(work);
    match key {
        Value::None => writer.push("null")?,
        Value::Bool(true) => writer.push("true")?,
        Value::Bool(false) => writer.push("false")?,
        other => writer.value(other)?,
    }
    Ok(writer.text)
}

/// The binary logarithm, rounded down; 0 for 0.
pub fn log2(n: usize) -> usize {
    n.checked_ilog2().unwrap_or(0) as usize
}
