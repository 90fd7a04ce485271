//! Calls as JSON: one or more objects with a name and arguments, or lists of such objects.

use serde_json::{Map, Value};

use super::{Call, Tools};

/// Parses the calls of a text; `None` if the text holds anything else.
pub fn calls(text: &str, _: &Tools) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    // Llama separates calls by semicolons.
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next()?.ok()? {
            Value::Array(list) => {
                for value in list {
                    calls.push(call(value)?);
                }
            }
            value => calls.push(call(value)?),
        }
        let end = values.byte_offset();
        rest = rest[end..]
            .trim_start()
            .trim_start_matches(';')
            .trim_start();
    }
    (!calls.is_empty()).then_some(calls)
}

fn call(value: Value) -> Option<Call> {
    let Value::Object(mut fields) = value else {
        return None;
    };
    if let Some(Value::Object(function)) = fields.remove("function") {
        fields = function;
    }
    let name = fields.get("name")?.as_str()?.to_string();
    let arguments = fields
        .remove("arguments")
        .or_else(|| fields.remove("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        Some(other) => other,
    };
    arguments.is_object().then_some(Call { name, arguments })
}
