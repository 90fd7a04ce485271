//! The arguments of a call as tags.

use serde_json::{Value, json};

use super::Tools;
use super::formats::{CallFormat, Tags};
use super::marks::{Begins, LONGEST_HEAD, begins, begins_any, clipped, partial};
use super::tools::Kinds;

/// The text before a value that may contain tags.
const DATA: &str = "<![CDATA[";

/// A value that is being read.
struct OpenValue {
    kinds: Kinds,
    /// Whether its JSON is written as it arrives.
    streams: bool,
    /// Whether a line break after the opening tag was removed; then one before the closing tag is, too.
    is_wrapped: bool,
    has_begun: bool,
}

/// The arguments of a call as they arrive.
pub(super) struct TagCall {
    tags: Tags,
    /// The texts that may follow a value, or the arguments.
    nexts: Vec<&'static str>,
    closings: Vec<&'static str>,
    openings: Vec<&'static str>,
    kinds: Vec<(String, Kinds)>,
    /// Whether the schema lists the arguments.
    is_listed: bool,
    keys: Vec<String>,
    value: Option<OpenValue>,
    is_done: bool,
}

/// Where a value ends.
enum End {
    /// The value has so many bytes, and what follows begins at the second position.
    At(usize, usize),
    /// So many bytes belong to the value.
    After(usize),
}

impl TagCall {
    pub fn new(tags: Tags, format: &CallFormat, name: &str, tools: &Tools) -> Self {
        let keys = tools.arguments(name);
        let set = |texts: &[&'static str]| -> Vec<&'static str> {
            texts
                .iter()
                .map(|text| text.trim())
                .filter(|text| !text.is_empty())
                .collect()
        };
        TagCall {
            tags,
            nexts: set(&[
                tags.key[0],
                tags.end,
                format.call[1],
                format.section[1],
                format.call[0],
                format.section[0],
                tags.name[0],
            ]),
            closings: set(&[format.call[1], format.section[1]]),
            openings: set(&[format.call[0], format.section[0], tags.name[0]]),
            is_listed: keys.is_some(),
            kinds: keys
                .unwrap_or_default()
                .into_iter()
                .map(|key| (key.clone(), tools.kinds(name, &key)))
                .collect(),
            keys: Vec::new(),
            value: None,
            is_done: false,
        }
    }

    /// Reads the next part of `text`. Returns how much was read, the JSON that it adds, and whether the arguments are complete.
    pub fn step(&mut self, text: &str, is_last: bool) -> (usize, String, bool) {
        if self.value.is_some() {
            let (read, json) = self.in_value(text, is_last);
            return (read, json, false);
        }
        let blank = text.len() - text.trim_start().len();
        let rest = &text[blank..];
        if rest.is_empty() && !is_last {
            return (0, String::new(), false);
        }
        let [key_open, key_close] = self.tags.key;
        match begins(rest, key_open, is_last) {
            Begins::Yes => match self.key(clipped(&rest[key_open.len()..]), key_close) {
                Ok(Some((read, json))) => return (blank + key_open.len() + read, json, false),
                Ok(None) if !is_last && rest.len() - key_open.len() <= LONGEST_HEAD => {
                    return (0, String::new(), false);
                }
                _ => return (blank, self.end(), true),
            },
            Begins::Unknown => return (0, String::new(), false),
            Begins::No => {}
        }
        match begins_any(rest, &[self.tags.end.trim()], is_last) {
            (Begins::Yes, length) => (blank + length, self.end(), true),
            (Begins::Unknown, _) => (0, String::new(), false),
            _ => (blank, self.end(), true),
        }
    }

    /// Whether the text that follows belongs to a value.
    pub fn is_in_value(&self) -> bool {
        self.value.is_some()
    }

    /// The rest of the arguments at the end of the answer, where `text` is left.
    pub fn rest(mut self, is_cut: bool, text: &str) -> String {
        match self.value.take() {
            None if is_cut => String::new(),
            None => self.end(),
            Some(value) if is_cut && value.streams => escaped(text),
            Some(value) if is_cut => {
                if value.has_begun {
                    text.trim().into()
                } else {
                    String::new()
                }
            }
            Some(value) => finished(&value, text) + &self.end(),
        }
    }

    fn end(&mut self) -> String {
        match std::mem::replace(&mut self.is_done, true) {
            true => String::new(),
            false if self.keys.is_empty() => "{}".into(),
            false => "}".into(),
        }
    }

    /// Reads a key and what precedes its value. `Err`: it is no key.
    fn key(&mut self, text: &str, close: &str) -> Result<Option<(usize, String)>, ()> {
        let Some(end) = text.find(close) else {
            return Ok(None);
        };
        let key = text[..end].trim();
        if key.contains('\n') {
            return Err(());
        }
        let mut at = end + close.len();
        let mut attributes = "";
        if !self.tags.tag_end.is_empty() {
            let Some(tag_end) = text[at..].find(self.tags.tag_end) else {
                return Ok(None);
            };
            attributes = &text[at..at + tag_end];
            at += tag_end + self.tags.tag_end.len();
        }
        let open = self.tags.value[0];
        if !open.is_empty() {
            let rest = text[at..].trim_start();
            match begins(rest, open, false) {
                Begins::Yes => at = text.len() - rest.len() + open.len(),
                Begins::Unknown => return Ok(None),
                Begins::No => {}
            }
        }
        let known = self
            .kinds
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, kinds)| *kinds);
        let kinds = match attributes {
            hint if hint.contains("=\"true\"") || hint.contains("=\"string\"") => Kinds::STRING,
            hint if hint.contains("=\"") => Kinds::NOT_STRING,
            _ => known.unwrap_or(Kinds::ANY),
        };
        let json = format!(
            "{}{}:",
            if self.keys.is_empty() { '{' } else { ',' },
            Value::from(key)
        );
        self.keys.push(key.into());
        self.value = Some(OpenValue {
            kinds,
            streams: kinds == Kinds::STRING,
            is_wrapped: false,
            has_begun: false,
        });
        Ok(Some((at, json)))
    }

    fn in_value(&mut self, text: &str, is_last: bool) -> (usize, String) {
        let Some(value) = &self.value else {
            return (0, String::new());
        };
        let mut at = 0;
        let (mut is_wrapped, mut is_data) = (value.is_wrapped, false);
        let has_begun = value.has_begun;
        if !has_begun {
            if text.is_empty() || (text == "\r" && !is_last) {
                return (0, String::new());
            }
            let line = ["\r\n", "\n"]
                .into_iter()
                .find(|line| text.starts_with(line));
            is_wrapped = line.is_some();
            at = line.map_or(0, str::len);
            match begins(text[at..].trim_start(), DATA, is_last) {
                Begins::Unknown if !text[at..].is_empty() => return (0, String::new()),
                Begins::Yes => is_data = true,
                _ => {}
            }
        }
        let end = self.find_end(&text[at..], is_last);
        let Some(value) = &mut self.value else {
            return (0, String::new());
        };
        value.is_wrapped = is_wrapped;
        value.streams &= !is_data;
        match end {
            End::At(length, next) => {
                let is_closed = next > length;
                let mut text = &text[at..at + length];
                if !is_closed && !value.is_wrapped {
                    text = text.strip_suffix('\n').unwrap_or(text);
                }
                let json = finished(value, text);
                self.value = None;
                (at + next, json)
            }
            End::After(length) if value.streams => {
                let mut json = String::new();
                if !has_begun {
                    json.push('"');
                }
                value.has_begun = true;
                // A line break before the closing tag may be removed.
                let kept = length
                    - text[at..at + length]
                        .strip_suffix('\n')
                        .map_or(length, str::len);
                let length = if kept > 0 { length - kept } else { length };
                let length = if text[at..at + length].ends_with('\r') {
                    length - 1
                } else {
                    length
                };
                json += &escaped(&text[at..at + length]);
                (at + length, json)
            }
            End::After(_) if has_begun => (0, String::new()),
            End::After(_) => {
                value.has_begun = true;
                (at, String::new())
            }
        }
    }

    /// Finds the end of a value. A closing tag ends it if a call can go on after it; the opening of the next argument or the end of the
    /// arguments end a value whose closing tag was forgotten.
    fn find_end(&self, text: &str, is_last: bool) -> End {
        let close = self.tags.value[1];
        let (mut from, mut last_close) = (0, None);
        let marks: Vec<&str> = [close, self.tags.end.trim(), self.tags.key[0]]
            .into_iter()
            .chain(self.closings.iter().copied())
            .filter(|mark| !mark.is_empty())
            .collect();
        loop {
            let next = marks
                .iter()
                .filter_map(|mark| Some((text[from..].find(mark)? + from, *mark)))
                .min();
            let Some((at, mark)) = next else { break };
            let after = &text[at + mark.len()..];
            let found = match mark {
                mark if mark == close => {
                    last_close = last_close.or(Some((at, at + mark.len())));
                    follows(after, &self.nexts, is_last)
                }
                mark if mark == self.tags.key[0] => {
                    self.begins_argument(&text[..at], after, is_last)
                }
                mark if mark == self.tags.end.trim() => {
                    let nexts: Vec<&str> = self
                        .closings
                        .iter()
                        .chain(&self.openings)
                        .copied()
                        .collect();
                    follows(after, &nexts, is_last)
                }
                _ => follows(after, &self.openings, is_last),
            };
            match found {
                Begins::Yes => {
                    let next = if mark == close { at + mark.len() } else { at };
                    return End::At(at, next);
                }
                Begins::Unknown => return End::After(at),
                Begins::No => from = at + mark.len(),
            }
        }
        match last_close {
            Some((at, next)) if is_last => End::At(at, next),
            _ if is_last => End::At(text.len(), text.len()),
            _ => {
                let keep = marks
                    .iter()
                    .map(|mark| partial(text, mark))
                    .max()
                    .unwrap_or(0);
                End::After(text.len() - keep)
            }
        }
    }

    /// Whether an argument begins that the function has and that was not given yet, at the beginning of a line.
    fn begins_argument(&self, before: &str, after: &str, is_last: bool) -> Begins {
        let at_start = before.is_empty() || before.ends_with('\n') || !self.is_wrapped();
        if !at_start {
            return Begins::No;
        }
        let Some(end) = clipped(after).find(self.tags.key[1]) else {
            let fits = after.len() <= LONGEST_HEAD && !after.contains('\n') && !is_last;
            return if fits { Begins::Unknown } else { Begins::No };
        };
        let key = after[..end].trim();
        let is_known = !self.is_listed || self.kinds.iter().any(|(name, _)| name == key);
        let is_new = !self.keys.iter().any(|given| given == key);
        if is_known && is_new {
            Begins::Yes
        } else {
            Begins::No
        }
    }

    fn is_wrapped(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.is_wrapped)
    }
}

/// Whether one of `nexts` or the end of the answer follows.
fn follows(after: &str, nexts: &[&str], is_last: bool) -> Begins {
    let rest = after.trim_start();
    match rest.is_empty() {
        true if is_last => Begins::Yes,
        true => Begins::Unknown,
        false => begins_any(rest, nexts, is_last).0,
    }
}

/// The JSON of a complete value, or of the rest of one that was begun.
fn finished(value: &OpenValue, text: &str) -> String {
    let mut text = text;
    if value.is_wrapped {
        text = text.strip_suffix('\n').unwrap_or(text);
        text = text.strip_suffix('\r').unwrap_or(text);
    }
    if let Some(data) = text
        .trim()
        .strip_prefix(DATA)
        .and_then(|data| data.strip_suffix("]]>"))
    {
        text = data;
    }
    match (value.streams, value.has_begun) {
        (true, true) => escaped(text) + "\"",
        (true, false) => json!(text).to_string(),
        _ => value.kinds.value(text).to_string(),
    }
}

/// The characters of a JSON string.
fn escaped(text: &str) -> String {
    let json = json!(text).to_string();
    json[1..json.len() - 1].into()
}
