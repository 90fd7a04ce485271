//! A JSON object whose values are read with errors that name the file and the key.

mod written;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use waterline_quant::read_json;

pub(crate) use written::{changed, in_short};

use crate::error::{Error, Result};

/// Maximum number of values in a configuration. The names of 21,000 classes, which some have, are 85,000 values.
const MOST_VALUES: usize = 1 << 17;
/// Maximum length in bytes of a key, and of a text that names something.
const LONGEST_NAME: usize = 1 << 10;
const TEXT: &str = "a string of at most 1024 bytes";

/// A JSON object from a file.
pub(crate) struct Config {
    file: String,
    object: Map<String, Value>,
    used: Used,
    /// Names and rows of the checkpoint's tensors, if known.
    tensors: Option<HashMap<String, usize>>,
}

/// The keys that were read, shared by an object and the objects inside it. A key of an inner object is prefixed with
/// that object's key: `attn.layers`.
#[derive(Clone, Default)]
struct Used {
    prefix: String,
    keys: Rc<RefCell<BTreeMap<String, Depth>>>,
    notes: Rc<RefCell<Vec<String>>>,
}

/// How much of a value was read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// Opened as an object, whose keys are recorded one by one.
    Opened,
    /// Read completely.
    Whole,
}

impl Used {
    fn note(&self, key: &str, depth: Depth) {
        let mut keys = self.keys.borrow_mut();
        let noted = keys.entry(format!("{}{key}", self.prefix)).or_insert(depth);
        *noted = depth.max(*noted);
    }

    fn inside(&self, key: &str) -> Self {
        Used {
            prefix: format!("{}{key}.", self.prefix),
            keys: Rc::clone(&self.keys),
            notes: Rc::clone(&self.notes),
        }
    }

    /// Collects the keys of `object`, which is at `prefix`, that no frontend read. Null counts as absent.
    fn collect_unused<'a>(
        &self,
        prefix: &str,
        object: &'a Map<String, Value>,
        unused: &mut BTreeMap<String, &'a Value>,
    ) {
        for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            let path = format!("{prefix}{key}");
            let depth = self.keys.borrow().get(&path).copied();
            match depth {
                Some(Depth::Whole) => (),
                Some(Depth::Opened) => {
                    let objects = match value {
                        Value::Array(objects) => &objects[..],
                        object => std::slice::from_ref(object),
                    };
                    for object in objects.iter().filter_map(Value::as_object) {
                        self.collect_unused(&format!("{path}."), object, unused);
                    }
                }
                None => {
                    unused.insert(path, value);
                }
            }
        }
    }
}

impl Config {
    /// Wraps `value`, which must be an object, from `file`.
    pub fn new(file: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(object) => Ok(Config {
                file: file.into(),
                object,
                used: Used::default(),
                tensors: None,
            }),
            other => Err(Error::Config {
                file: file.into(),
                key: "the description".into(),
                found: short(&other),
                expected: "a JSON object".into(),
            }),
        }
    }

    /// Parses the text of a file as Python writes it: JSON, except for bare `Infinity` and `NaN`. They become what
    /// newer versions of transformers write, `{"__float__": "Infinity"}`. A byte order mark is skipped.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self> {
        if let Some((found, expected)) = waterline_quant::failed_download(text) {
            return Err(Error::Config {
                file: file.into(),
                key: "the file".into(),
                found: found.into(),
                expected: expected.into(),
            });
        }
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let wrong = |found: String, expected: String| Error::Config {
            file: file.into(),
            key: "the file".into(),
            found,
            expected,
        };
        let value = read_json(&quote_non_finite(text), MOST_VALUES);
        let value = value.map_err(|found| wrong(found, "JSON".into()))?;
        if let Some(key) = long_key(&value) {
            let found = format!("a key of {} bytes, {:?}", key.len(), shortened(key));
            return Err(wrong(found, format!("at most {LONGEST_NAME}")));
        }
        Config::new(file, value)
    }

    /// Adds the names and rows of the checkpoint's tensors.
    pub fn beside<'a>(self, tensors: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let owned = tensors.map(|(name, rows)| (name.to_string(), rows));
        Config {
            tensors: Some(owned.collect()),
            ..self
        }
    }

    /// Number of rows of the tensors whose names end with `ending`, if there are any and all have the same number.
    pub fn rows_of(&self, ending: &str) -> Option<usize> {
        let tensors = self.tensors.as_ref()?;
        let named = tensors.iter().filter(|(name, _)| name.ends_with(ending));
        let mut rows = named.map(|(_, &rows)| rows);
        let first = rows.next()?;
        rows.all(|rows| rows == first).then_some(first)
    }

    /// Whether the checkpoint is known to have no tensor whose name ends with `ending`.
    pub fn lacks_tensor(&self, ending: &str) -> bool {
        let lacks =
            |tensors: &HashMap<String, usize>| !tensors.keys().any(|name| name.ends_with(ending));
        self.tensors.as_ref().is_some_and(lacks)
    }

    /// Whether the checkpoint is known to have a tensor whose name ends with `ending`.
    pub fn has_tensor(&self, ending: &str) -> bool {
        self.tensors.is_some() && !self.lacks_tensor(ending)
    }

    /// Records a note for the user on a value that was read but not followed.
    pub fn note(&self, sentence: String) {
        self.used.notes.borrow_mut().push(sentence);
    }

    /// The recorded notes.
    pub fn notes(&self) -> Vec<String> {
        self.used.notes.borrow().clone()
    }

    /// The file, for error messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The keys and values.
    pub fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// Returns the keys and values by value.
    pub fn into_object(self) -> Map<String, Value> {
        self.object
    }

    /// The value at a key.
    fn get(&self, key: &str) -> Option<&Value> {
        self.used.note(key, Depth::Whole);
        self.object.get(key)
    }

    /// The value at a key, for an object whose keys are read one by one.
    fn get_outside(&self, key: &str) -> Option<&Value> {
        self.used.note(key, Depth::Opened);
        self.object.get(key)
    }

    /// An object inside this one.
    fn inner(&self, key: &str, object: &Value) -> Result<Config> {
        Ok(Config {
            used: self.used.inside(key),
            ..Config::new(&format!("{}: {key}", self.file), object.clone())?
        })
    }

    /// The keys that were read, whether the file has them or not; those of an inner object include its key.
    #[cfg(test)]
    pub fn used(&self) -> Vec<String> {
        self.used.keys.borrow().keys().cloned().collect()
    }

    /// The keys of the file that no frontend read, with their values, sorted.
    pub fn unused(&self) -> BTreeMap<String, &Value> {
        let mut unused = BTreeMap::new();
        self.used.collect_unused("", &self.object, &mut unused);
        unused
    }

    /// The error for a key with an unexpected value.
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::Config {
            file: self.file.clone(),
            key: key.into(),
            found: self.object.get(key).map_or("nothing".into(), short),
            expected: expected.into(),
        }
    }

    /// The object at the first of these keys that holds one; all values count as read completely.
    pub fn first_object<const N: usize>(&self, keys: [&str; N]) -> Option<&Value> {
        let values = keys.map(|key| self.get(key));
        values.into_iter().flatten().find(|value| value.is_object())
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        read: impl Fn(&'a Value) -> Option<T>,
        what: &str,
    ) -> Result<Option<T>> {
        match self.get(key) {
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

    /// The number of layers, up to a plausible maximum.
    pub fn layers(&self) -> Result<usize> {
        let key = "num_hidden_layers";
        let layers = self.usize(key)?;
        if !(1..=DEEPEST).contains(&layers) {
            return Err(self.wrong(key, &format!("a number from 1 to {DEEPEST}")));
        }
        Ok(layers)
    }

    /// A finite number, if the key is there and not null.
    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        let read = |v: &Value| v.as_f64().map(|n| n as f32).filter(|n| n.is_finite());
        self.optional(key, read, "a finite number")
    }

    /// A number.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.required(key, self.optional_f32(key)?, "a finite number")
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
        self.required(key, self.optional_text(key)?, TEXT)
    }

    /// A text, if the key is there and not null.
    pub fn optional_text(&self, key: &str) -> Result<Option<&str>> {
        self.optional(key, name, TEXT)
    }

    /// The text at a key that may hold something else.
    pub fn optional_string(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// One of the texts in `known`, mapped to its meaning; `default` if the key is absent or null.
    pub fn one_of<T: Copy>(&self, key: &str, default: T, known: &[(&str, T)]) -> Result<T> {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let Some(text) = self.optional(key, name, &expected)? else {
            return Ok(default);
        };
        known
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, t)| *t)
            .ok_or_else(|| self.wrong(key, &expected))
    }

    /// A value of type `T`, `default` if the key is absent or null.
    pub fn read_or<T: DeserializeOwned>(&self, key: &str, default: T) -> Result<T> {
        let read = |v: &Value| serde_json::from_value(v.clone()).ok();
        Ok(self
            .optional(key, read, "a valid value for this key")?
            .unwrap_or(default))
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

    /// A pair of numbers, the second of which may be infinite.
    pub fn limits(&self, key: &str, default: (f32, f32)) -> Result<(f32, f32)> {
        let number = |v: &Value| match v.get("__float__").and_then(Value::as_str) {
            Some("Infinity") => Some(f32::INFINITY),
            Some(_) => None,
            None => v.as_f64().map(|n| n as f32),
        };
        let read = |v: &Value| match v.as_array()?.as_slice() {
            [low, high] => Some((number(low)?, number(high)?)).filter(|(low, high)| low <= high),
            _ => None,
        };
        let pair = self.optional(key, read, "two numbers, the smaller first")?;
        Ok(pair.unwrap_or(default))
    }

    /// The objects at a key: none, one, or a list of them.
    pub fn children(&self, key: &str) -> Result<Vec<Config>> {
        let objects = match self.get_outside(key) {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(objects)) => objects,
            Some(object) => std::slice::from_ref(object),
        };
        objects
            .iter()
            .map(|object| self.inner(key, object))
            .collect()
    }

    /// An object inside this one, if there is one.
    pub fn child(&self, key: &str) -> Result<Option<Config>> {
        match self.get_outside(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => self.inner(key, value).map(Some),
        }
    }
}

/// A value, shortened for a message.
fn short(value: &Value) -> String {
    shortened(&value.to_string())
}

/// The beginning of a text, short enough for a message.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// A text that names something; short, because messages may repeat it.
fn name(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| text.len() <= LONGEST_NAME)
}

/// Finds a key in a value that is longer than a name may be.
fn long_key(value: &Value) -> Option<&str> {
    match value {
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let long = (key.len() > LONGEST_NAME).then_some(key.as_str());
            long.or_else(|| long_key(value))
        }),
        Value::Array(values) => values.iter().find_map(long_key),
        _ => None,
    }
}

/// Replaces bare `Infinity`, `-Infinity` and `NaN` outside of strings.
fn quote_non_finite(text: &[u8]) -> Cow<'_, [u8]> {
    const BARE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let mut quoted = Vec::new();
    let (mut copied, mut at) = (0, 0);
    let mut in_string = false;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            b'-' | b'I' | b'N' if !in_string => {
                let starts = |word: &&&str| text[at..].starts_with(word.as_bytes());
                if let Some(word) = BARE.iter().find(starts) {
                    quoted.extend_from_slice(&text[copied..at]);
                    quoted.extend_from_slice(format!("{{\"__float__\":\"{word}\"}}").as_bytes());
                    copied = at + word.len();
                    at = copied - 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    quoted.extend_from_slice(&text[copied..]);
    Cow::Owned(quoted)
}

/// Largest plausible width, depth or count; anything larger means a corrupt file.
pub(crate) const LARGEST: usize = 1 << 24;
/// Largest plausible number of layers.
pub(crate) const DEEPEST: usize = 1 << 16;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
