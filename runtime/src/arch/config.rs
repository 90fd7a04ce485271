//! A JSON object whose values are read with errors that name the file and the key.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object from a file.
pub(crate) struct Config {
    file: String,
    object: Map<String, Value>,
}

impl Config {
    /// `value`, which must be an object, from `file`.
    pub fn new(file: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(object) => Ok(Config {
                file: file.into(),
                object,
            }),
            other => Err(Error::Config {
                file: file.into(),
                key: "the description".into(),
                found: short(&other),
                expected: "a JSON object".into(),
            }),
        }
    }

    /// The file, for errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The keys and values.
    pub fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// The error of a key whose value is not what is expected.
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::Config {
            file: self.file.clone(),
            key: key.into(),
            found: self.object.get(key).map_or("nothing".into(), short),
            expected: expected.into(),
        }
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        what: &str,
    ) -> Result<Option<T>> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(key, what)),
        }
    }

    fn required<T>(&self, key: &str, value: Option<T>, what: &str) -> Result<T> {
        value.ok_or_else(|| self.wrong(key, what))
    }

    /// A whole number, if the key is there and not null.
    pub fn optional_usize(&self, key: &str) -> Result<Option<usize>> {
        let read = |v: &Value| {
            v.as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|&n| n < 1 << 48)
        };
        self.optional(key, read, "a whole number")
    }

    /// A whole number.
    pub fn usize(&self, key: &str) -> Result<usize> {
        self.required(key, self.optional_usize(key)?, "a whole number")
    }

    /// A whole number, `default` if the key is absent or null.
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional_usize(key)?.unwrap_or(default))
    }

    /// A number, if the key is there and not null.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.optional(key, |v| v.as_f64().map(|n| n as f32), "a number")
    }

    /// A number.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.required(key, self.optional_f32(key)?, "a number")
    }

    /// A number, `default` if the key is absent or null.
    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.optional_f32(key)?.unwrap_or(default))
    }

    /// True or false.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.required(
            key,
            self.optional(key, Value::as_bool, "true or false")?,
            "true or false",
        )
    }

    /// True or false, `default` if the key is absent or null.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self
            .optional(key, Value::as_bool, "true or false")?
            .unwrap_or(default))
    }

    /// A text.
    pub fn string(&self, key: &str) -> Result<&str> {
        self.required(key, self.optional(key, Value::as_str, "a text")?, "a text")
    }

    /// A text, if there is one.
    pub fn optional_string(&self, key: &str) -> Option<&str> {
        self.object.get(key).and_then(Value::as_str)
    }

    /// A text out of `known`, each with its meaning; `default` if the key is absent or null.
    pub fn one_of<T: Copy>(&self, key: &str, default: T, known: &[(&str, T)]) -> Result<T> {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let Some(text) = self.optional(key, Value::as_str, &expected)? else {
            return Ok(default);
        };
        known
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, t)| *t)
            .ok_or_else(|| self.wrong(key, &expected))
    }

    /// A list.
    pub fn array(&self, key: &str) -> Result<&[Value]> {
        let list = self.optional(key, |v| v.as_array().map(Vec::as_slice), "a list")?;
        self.required(key, list, "a list")
    }

    /// A list of whole numbers.
    pub fn usizes(&self, key: &str) -> Result<Vec<usize>> {
        let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        let numbers = self.array(key)?.iter().map(number).collect();
        self.required(key, numbers, "a list of whole numbers")
    }

    /// The objects at a key: none, one, or a list of them.
    pub fn children(&self, key: &str) -> Result<Vec<Config>> {
        let objects = match self.object.get(key) {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(objects)) => objects,
            Some(object) => std::slice::from_ref(object),
        };
        let file = format!("{}: {key}", self.file);
        let read = |object: &Value| Config::new(&file, object.clone());
        objects.iter().map(read).collect()
    }

    /// An object inside this one, if there is one.
    pub fn child(&self, key: &str) -> Result<Option<Config>> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Config::new(&format!("{}: {key}", self.file), value.clone()).map(Some),
        }
    }
}

/// A value as it can stand in a sentence.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
