//! Values of templates: the subset of Python's that templates can see.

use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Constant, For, Macro};
use super::marked::{Mark, Text};
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Deepest nesting of lists and mappings.
const MAX_DEPTH: u32 = 128;

#[derive(Clone)]
pub enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Text),
    List(Rc<List>),
    Dict(Rc<Dict>),
    /// Index of a namespace in the evaluator, so that a namespace never owns itself.
    Namespace(usize),
    Loop(Rc<Loop>),
    /// A macro and the scopes that it sees.
    Macro(Arc<Macro>, Frame),
    /// A built-in function.
    Function(&'static str),
    /// A method of a value.
    Method(Rc<(Value, &'static str)>),
}

/// The innermost scope that a macro's or loop's definition sees.
#[derive(Clone, Copy, PartialEq)]
pub struct Frame(pub(super) usize);

/// A list or a tuple.
pub struct List {
    pub items: Vec<Value>,
    pub tuple: bool,
    size: Size,
}

/// A mapping in insertion order. Lookup is a linear search, which is charged: templates create small mappings.
pub struct Dict {
    pub entries: Vec<(Value, Value)>,
    size: Size,
}

/// The variable `loop`.
pub struct Loop {
    pub items: Rc<List>,
    pub index: usize,
    /// Depth of the recursion, from 0.
    pub depth: usize,
    /// The statement, if it is recursive, with the scopes that it sees.
    pub statement: Option<(Arc<For>, Frame)>,
}

/// Bounds for walking a value.
#[derive(Clone, Copy)]
struct Size {
    /// Units of work to walk the value. A value contained twice counts twice, so this bounds every walk.
    weight: usize,
    depth: u32,
}

impl Size {
    fn of<'v>(values: impl Iterator<Item = &'v Value>) -> Outcome<Size> {
        let mut size = Size {
            weight: ELEMENT,
            depth: 1,
        };
        for value in values {
            size.weight = size.weight.saturating_add(value.weight());
            size.depth = size.depth.max(1 + value.depth());
        }
        if size.depth > MAX_DEPTH {
            Err(Failure::new("a value nests too deeply"))
        } else {
            Ok(size)
        }
    }
}

impl Value {
    /// A text of the template.
    pub fn str(text: &str) -> Value {
        Value::Str(Text::template(text))
    }

    pub fn list(items: Vec<Value>) -> Outcome<Value> {
        Self::sequence(items, false)
    }

    /// A list or a tuple.
    pub fn sequence(items: Vec<Value>, tuple: bool) -> Outcome<Value> {
        let size = Size::of(items.iter())?;
        Ok(Value::List(Rc::new(List { items, tuple, size })))
    }

    /// Creates a mapping from entries with distinct keys.
    pub(crate) fn dict(entries: Vec<(Value, Value)>) -> Outcome<Value> {
        let size = Size::of(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Dict(Rc::new(Dict { entries, size })))
    }

    /// Converts a JSON value. Its texts get the origin `mark`.
    pub fn from_json(json: &serde_json::Value, mark: Mark, work: &mut Work) -> Outcome<Value> {
        work.spend(ELEMENT)?;
        Ok(match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(value) => Value::Int(value),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => {
                work.spend(text.len())?;
                Value::Str(Text::new(text, mark))
            }
            serde_json::Value::Array(items) => {
                let items = items.iter().map(|item| Value::from_json(item, mark, work));
                Value::list(items.collect::<Outcome<_>>()?)?
            }
            serde_json::Value::Object(entries) => {
                let entries = entries.iter().map(|(key, value)| {
                    work.spend(key.len())?;
                    let key = Value::Str(Text::new(key, mark));
                    Ok((key, Value::from_json(value, mark, work)?))
                });
                Value::dict(entries.collect::<Outcome<_>>()?)?
            }
        })
    }

    pub(crate) fn from_constant(constant: &Constant) -> Value {
        match constant {
            Constant::None => Value::None,
            Constant::Bool(value) => Value::Bool(*value),
            Constant::Int(value) => Value::Int(*value),
            Constant::Float(value) => Value::Float(*value),
            Constant::Str(text) => Value::Str(text.clone()),
        }
    }

    /// Units of work to walk the value.
    pub fn weight(&self) -> usize {
        match self {
            Value::Str(text) => ELEMENT + text.size(),
            Value::List(list) => list.size.weight,
            Value::Dict(dict) => dict.size.weight,
            _ => ELEMENT,
        }
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(list) => list.size.depth,
            Value::Dict(dict) => dict.size.depth,
            // A loop contains its items, which may contain another loop.
            Value::Loop(state) => 1 + state.items.size.depth,
            Value::Method(method) => 1 + method.0.depth(),
            _ => 0,
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// The name of the value's type in error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "none",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::List(list) if list.tuple => "a tuple",
            Value::List(_) => "a list",
            Value::Dict(_) => "a mapping",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "a loop",
            Value::Macro(..) | Value::Function(_) | Value::Method(_) => "a function",
        }
    }

    /// Converts integers and booleans to an integer.
    pub(crate) fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// Converts numbers and booleans to a float.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a loop over the value: its elements, keys or characters.
    pub(crate) fn iterate(&self, work: &mut Work) -> Outcome<Rc<List>> {
        match self {
            Value::List(list) => Ok(Rc::clone(list)),
            Value::Undefined => as_list(Vec::new()),
            Value::Dict(dict) => {
                work.spend_each(dict.entries.len(), ELEMENT)?;
                as_list(dict.entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Value::Str(text) => {
                work.spend_each(text.len(), 2 * ELEMENT)?;
                let characters = |(text, mark): (&str, Mark)| -> Vec<Value> {
                    let character = |c: &str| Value::Str(Text::new(c, mark));
                    text.split_inclusive(|_| true).map(character).collect()
                };
                as_list(text.stretches().flat_map(characters).collect())
            }
            other => Err(Failure::new(format!(
                "{} cannot be iterated over",
                other.kind()
            ))),
        }
    }

    /// The number of elements, entries or characters.
    pub fn length(&self, work: &mut Work) -> Outcome<usize> {
        match self {
            Value::Str(text) => {
                work.spend(text.len())?;
                Ok(text.chars().count())
            }
            Value::List(list) => Ok(list.items.len()),
            Value::Dict(dict) => Ok(dict.entries.len()),
            Value::Undefined => Ok(0),
            other => Err(Failure::new(format!("{} has no length", other.kind()))),
        }
    }

    /// Python's `==`.
    pub fn equals(&self, other: &Value, work: &mut Work) -> Outcome<bool> {
        match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => Ok(true),
            (Value::Str(a), Value::Str(b)) => {
                work.spend(4 + a.len().min(b.len()))?;
                Ok(**a == **b)
            }
            (Value::List(a), Value::List(b)) => {
                if a.tuple != b.tuple || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                all_equal(a.items.iter().zip(&b.items), work)
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key, work)? {
                        Some(other) if value.equals(other, work)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
            (Value::Namespace(a), Value::Namespace(b)) => Ok(a == b),
            (Value::Macro(a, _), Value::Macro(b, _)) => Ok(Arc::ptr_eq(a, b)),
            (Value::Function(a), Value::Function(b)) => Ok(a == b),
            _ => Ok(match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => self.as_float().is_some_and(|a| other.as_float() == Some(a)),
            }),
        }
    }

    /// Python's `is`. Lists and mappings are the same if they are one object; so are equal texts and numbers of one type here.
    pub fn is_same(&self, other: &Value, work: &mut Work) -> Outcome<bool> {
        match (self, other) {
            (Value::List(a), Value::List(b)) => Ok(Rc::ptr_eq(a, b)),
            (Value::Dict(a), Value::Dict(b)) => Ok(Rc::ptr_eq(a, b)),
            // Each use of an unknown name is a value of its own.
            (Value::Undefined, _) => Ok(false),
            _ => Ok(self.kind() == other.kind() && self.equals(other, work)?),
        }
    }

    /// Python's order; fails for values without one.
    pub fn order(&self, other: &Value, work: &mut Work) -> Outcome<Ordering> {
        work.spend(self.weight().min(other.weight()))?;
        self.compare(other).ok_or_else(|| {
            Failure::new(format!(
                "{} cannot be compared with {}",
                self.kind(),
                other.kind()
            ))
        })
    }

    fn compare(&self, other: &Value) -> Option<Ordering> {
        match (self, other) {
            (Value::Str(a), Value::Str(b)) => Some((**a).cmp(&**b)),
            (Value::List(a), Value::List(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    match a.compare(b)? {
                        Ordering::Equal => {}
                        other => return Some(other),
                    }
                }
                Some(a.items.len().cmp(&b.items.len()))
            }
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => Some(a.cmp(&b)),
                _ => self.as_float()?.partial_cmp(&other.as_float()?),
            },
        }
    }

    /// Python's `in`.
    pub fn contains(&self, item: &Value, work: &mut Work) -> Outcome<bool> {
        match (self, item) {
            (Value::Str(text), Value::Str(part)) => {
                work.spend(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            (Value::List(list), _) => {
                for other in &list.items {
                    work.spend(4)?;
                    if other.equals(item, work)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Dict(dict), _) => Ok(dict.get(item, work)?.is_some()),
            (Value::Undefined, _) => Ok(false),
            _ => Err(Failure::new(format!(
                "{} cannot contain {}",
                self.kind(),
                item.kind()
            ))),
        }
    }
}

fn all_equal<'v>(
    mut pairs: impl Iterator<Item = (&'v Value, &'v Value)>,
    work: &mut Work,
) -> Outcome<bool> {
    pairs.try_fold(true, |same, (a, b)| {
        work.spend(4)?;
        Ok(same && a.equals(b, work)?)
    })
}

/// Wraps items in a list that is not a [`Value`] yet.
pub(crate) fn as_list(items: Vec<Value>) -> Outcome<Rc<List>> {
    match Value::list(items)? {
        Value::List(list) => Ok(list),
        _ => unreachable!("a list was made"),
    }
}

impl Dict {
    /// The value of a key.
    pub fn get(&self, key: &Value, work: &mut Work) -> Outcome<Option<&Value>> {
        for (other, value) in &self.entries {
            work.spend(4)?;
            if other.equals(key, work)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value of a string key.
    pub fn get_str(&self, key: &str, work: &mut Work) -> Outcome<Option<&Value>> {
        for (other, value) in &self.entries {
            work.spend(4)?;
            if other.as_str() == Some(key) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}
