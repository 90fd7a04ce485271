//! Metadata values.

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is the type that it names
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array: elements of one type, which may itself be an array.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // each variant is the type that it names
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

pub(super) const STRING: u32 = 8;
pub(super) const ARRAY: u32 = 9;

impl Value {
    /// GGUF's number of the type.
    pub(super) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => STRING,
            Value::Array(_) => ARRAY,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// The string, if the value is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// The integer, if the value is a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::U64(value) => Some(value),
            _ => self.as_i64()?.try_into().ok(),
        }
    }

    /// The integer, if the value is a non-negative integer that fits in 32 bits.
    pub(crate) fn as_u32(&self) -> Option<u32> {
        self.as_u64()?.try_into().ok()
    }

    /// The integer, if the value is an integer that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::I8(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::I64(value) => Some(value),
            Value::U8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::U64(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The float, if the value is a float.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }

    /// The bool, if the value is a bool.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The array, if the value is an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a short description for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Array(array) => format!("an array of {} elements", array.len()),
            Value::String(value) if value.chars().count() > 40 => {
                format!("string {:?}...", value.chars().take(40).collect::<String>())
            }
            Value::String(value) => format!("string {value:?}"),
            Value::U8(value) => format!("u8 {value}"),
            Value::I8(value) => format!("i8 {value}"),
            Value::U16(value) => format!("u16 {value}"),
            Value::I16(value) => format!("i16 {value}"),
            Value::U32(value) => format!("u32 {value}"),
            Value::I32(value) => format!("i32 {value}"),
            Value::F32(value) => format!("f32 {value}"),
            Value::Bool(value) => format!("bool {value}"),
            Value::U64(value) => format!("u64 {value}"),
            Value::I64(value) => format!("i64 {value}"),
            Value::F64(value) => format!("f64 {value}"),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::String(values) => values.len(),
            Array::Array(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F64(values) => values.len(),
        }
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The strings, if the elements are strings.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Array::String(values) => Some(values),
            _ => None,
        }
    }

    /// The elements as integers, if they are integers that fit in an `i64`.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        match self {
            Array::U8(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::I8(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::U16(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::I16(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::U32(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::I32(values) => Some(values.iter().map(|&v| v.into()).collect()),
            Array::U64(values) => values.iter().map(|&v| v.try_into().ok()).collect(),
            Array::I64(values) => Some(values.clone()),
            _ => None,
        }
    }

    /// The elements as floats, if they are floats.
    pub fn to_f32s(&self) -> Option<Vec<f32>> {
        match self {
            Array::F32(values) => Some(values.clone()),
            Array::F64(values) => Some(values.iter().map(|&v| v as f32).collect()),
            _ => None,
        }
    }

    /// GGUF's number of the element type.
    pub(super) fn element_type(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::String(_) => STRING,
            Array::Array(_) => ARRAY,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::String(value.to_string())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::String(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Value {
        Value::U32(value)
    }
}

impl From<f32> for Value {
    fn from(value: f32) -> Value {
        Value::F32(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Value {
        Value::Array(Array::String(values))
    }
}
