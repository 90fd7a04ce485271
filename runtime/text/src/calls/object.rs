//! A call as an object that holds the function's name and its arguments.

use serde_json::Value;

use super::Tools;
use super::head::{ARGUMENT_KEYS, ID_KEYS, NAME_KEYS};
use super::json::Literal;
use super::marks::{Begins, begins};

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Id,
    Arguments,
    Other,
}

/// What a step has read.
#[derive(Default)]
pub(super) struct Step {
    pub read: usize,
    /// Whether a value begins, of which nothing is read yet.
    pub begins_value: bool,
    /// The name and id of the call, which begins.
    pub begins: Option<(String, Option<String>)>,
    pub json: String,
    /// The call's id, after its name.
    pub id: Option<String>,
    pub is_done: bool,
}

/// The object of a call as it arrives.
pub(super) struct ObjectCall {
    /// Whether the key is the name.
    by_key: bool,
    depth: usize,
    key: Option<String>,
    /// The value being read, what it is, and whether it is an object or list.
    value: Option<(Field, Literal, bool)>,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    arguments: String,
    has_arguments: bool,
    has_begun: bool,
    /// Fields beside the name, which some models write in place of arguments.
    others: Vec<(String, String)>,
}

impl ObjectCall {
    pub fn new(by_key: bool) -> Self {
        ObjectCall {
            by_key,
            depth: 0,
            key: None,
            value: None,
            name: None,
            id: None,
            arguments: String::new(),
            has_arguments: false,
            has_begun: false,
            others: Vec::new(),
        }
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The name of a known function, before its arguments, and the call's id.
    pub fn named(self, tools: &Tools) -> Option<(String, Option<String>)> {
        let name = self.name.filter(|name| tools.has(name))?;
        Some((name, self.id))
    }

    /// The rest of the arguments at the end of the answer.
    pub fn rest(mut self, is_cut: bool, tools: &Tools) -> String {
        if let Some((field, mut literal, streams)) = self.value.take()
            && field == Field::Arguments
        {
            if !is_cut {
                literal.finish();
            }
            return if streams {
                literal.json
            } else {
                unquoted(&literal.json)
            };
        }
        if is_cut {
            String::new()
        } else {
            self.missing_arguments(tools)
        }
    }

    fn missing_arguments(&self, tools: &Tools) -> String {
        if self.has_arguments {
            return String::new();
        }
        let names = self
            .name
            .as_deref()
            .and_then(|name| tools.arguments(name))
            .unwrap_or_default();
        let fields = self.others.iter().filter(|(key, _)| names.contains(key));
        let fields: Vec<String> = fields
            .map(|(key, value)| format!("{}:{value}", Value::from(key.as_str())))
            .collect();
        format!("{{{}}}", fields.join(","))
    }

    /// Reads the next part of `text`.
    pub fn step(&mut self, text: &str, is_last: bool, stop: &str, tools: &Tools) -> Step {
        let mut step = Step::default();
        if let Some((field, literal, streams)) = &mut self.value {
            step.read = literal.push(text, is_last, stop);
            if *field == Field::Arguments && *streams && self.has_begun {
                step.json = std::mem::take(&mut literal.json);
            }
            if literal.is_done {
                self.end_value(&mut step);
            }
            return step;
        }
        let blank = text.len() - text.trim_start().len();
        let rest = &text[blank..];
        let Some(first) = rest.chars().next() else {
            return step;
        };
        step.read = blank;
        match begins(rest, stop, is_last) {
            Begins::Yes => {
                self.end(&mut step, tools);
                return step;
            }
            Begins::Unknown => return step,
            Begins::No => {}
        }
        if let Some(key) = &self.key {
            match first {
                ':' => step.read += 1,
                '{' if key == "function" && self.name.is_none() => {
                    self.depth += 1;
                    self.key = None;
                    step.read += 1;
                }
                _ => {
                    self.begin_value(first);
                    step.begins_value = true;
                }
            }
            return step;
        }
        match first {
            '{' if self.depth == 0 => {
                self.depth = 1;
                step.read += 1;
            }
            ',' => step.read += 1,
            '}' => {
                step.read += 1;
                self.depth -= 1;
                if self.depth == 0 {
                    self.end(&mut step, tools);
                }
            }
            '"' | '\'' => {
                if let Some(end) = rest[1..].find(first) {
                    self.key = Some(rest[1..=end].into());
                    step.read += end + 2;
                }
            }
            _ => {
                let end = rest.find([':', '{', '}', '<', '\n']);
                match end.filter(|&end| rest[end..].starts_with(':') && end > 0) {
                    Some(end) => {
                        self.key = Some(rest[..end].trim().into());
                        step.read += end;
                    }
                    None if end.is_none() && !is_last => {}
                    None => self.end(&mut step, tools),
                }
            }
        }
        step
    }

    fn begin_value(&mut self, first: char) {
        let key = self.key.as_deref().unwrap_or_default();
        let is_known = |keys: &[&str]| keys.contains(&key);
        let field = if self.by_key && !is_known(&NAME_KEYS) && self.name.is_none() {
            self.name = Some(key.into());
            Field::Arguments
        } else if is_known(&NAME_KEYS) && self.name.is_none() {
            Field::Name
        } else if is_known(&ARGUMENT_KEYS) && !self.has_arguments {
            Field::Arguments
        } else if is_known(&ID_KEYS) {
            Field::Id
        } else {
            Field::Other
        };
        self.has_arguments |= field == Field::Arguments;
        self.value = Some((field, Literal::default(), "{[".contains(first)));
    }

    fn end_value(&mut self, step: &mut Step) {
        let Some((field, literal, streams)) = self.value.take() else {
            return;
        };
        let key = self.key.take().unwrap_or_default();
        let text = || {
            serde_json::from_str::<Value>(&literal.json)
                .ok()
                .and_then(|value| value.as_str().map(str::to_string))
        };
        match field {
            Field::Name => self.name = text().filter(|name| !name.is_empty()),
            Field::Id if self.has_begun => step.id = text(),
            Field::Id => self.id = text(),
            Field::Other => self.others.push((key, literal.json.clone())),
            Field::Arguments if streams => self.add(literal.json.clone(), step),
            Field::Arguments => self.add(unquoted(&literal.json), step),
        }
        self.begin(step, field == Field::Name || self.by_key);
    }

    fn add(&mut self, json: String, step: &mut Step) {
        if self.has_begun {
            step.json += &json;
        } else {
            self.arguments += &json;
        }
    }

    fn begin(&mut self, step: &mut Step, has_name: bool) {
        let Some(name) = self.name.clone().filter(|_| has_name && !self.has_begun) else {
            return;
        };
        self.has_begun = true;
        step.begins = Some((name, self.id.clone()));
        step.json = std::mem::take(&mut self.arguments) + &step.json;
    }

    fn end(&mut self, step: &mut Step, tools: &Tools) {
        step.is_done = true;
        if self.has_begun {
            step.json += &self.missing_arguments(tools);
            self.has_arguments = true;
        }
    }
}

/// The object in a JSON string; an empty one for null.
fn unquoted(json: &str) -> String {
    if json == "null" {
        return "{}".into();
    }
    let Ok(text) = serde_json::from_str::<String>(json) else {
        return json.into();
    };
    match Literal::guess(&text) {
        (Some(value @ Value::Object(_)), _, _) => value.to_string(),
        _ if text.trim().is_empty() => "{}".into(),
        _ => json.into(),
    }
}
