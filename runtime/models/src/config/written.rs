//! Hyperparameters as stored in this project's files.

use serde_json::{Map, Value, json};

/// The fields of an object that differ from the default ones.
pub(crate) fn changed(value: Value, usual: &Value) -> Map<String, Value> {
    let fields = match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let differs = |(key, value): &(String, Value)| usual.get(key) != Some(value);
    fields.into_iter().filter(differs).collect()
}

/// The value, with each number that is an f32 in its shortest form: JSON's numbers are f64, in which 1e-6 is 9.99999997e-7.
pub(crate) fn in_short(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter();
            Value::Object(fields.map(|(key, x)| (key, in_short(x))).collect())
        }
        Value::Array(values) => values.into_iter().map(in_short).collect(),
        Value::Number(number) if number.is_f64() => {
            let exact = number.as_f64().unwrap_or_default();
            let short = (exact as f32).to_string().parse::<f64>();
            match short {
                Ok(short) if f64::from(exact as f32) == exact => json!(short),
                _ => Value::Number(number),
            }
        }
        other => other,
    }
}
