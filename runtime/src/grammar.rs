//! Forms of answers.

use serde_json::{Value, json};

/// Keyword of llguidance by which a schema says how its JSON is spaced.
const SPACING: &str = "x-guidance";

/// The form of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema describes. Between its parts comes one space, unless the schema's `x-guidance` says otherwise.
    JsonSchema(Value),
    /// A regular expression that the whole answer matches.
    Regex(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

impl Grammar {
    /// A schema that says how its JSON is spaced, as [`Grammar::JsonSchema`] spaces it: for `%json` in a [`Grammar::Lark`].
    pub fn spaced(schema: &Value) -> Value {
        let spacing =
            json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
        match schema {
            Value::Object(fields) if fields.contains_key(SPACING) => schema.clone(),
            Value::Object(fields) => {
                let mut fields = fields.clone();
                fields.insert(SPACING.into(), spacing);
                Value::Object(fields)
            }
            Value::Bool(true) => json!({ SPACING: spacing }),
            other => other.clone(),
        }
    }
}
