//! Formats of answers.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Keyword of llguidance in a schema that sets the whitespace of its JSON.
const SPACING: &str = "x-guidance";

/// The format of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that matches a schema. One space separates its parts, unless the schema's `x-guidance` sets other whitespace.
    JsonSchema(Value),
    /// A regular expression that matches the complete answer.
    Regex(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

impl Grammar {
    /// Adds the whitespace settings of [`Grammar::JsonSchema`] to a schema, unless it has its own: for `%json` in a [`Grammar::Lark`].
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

    /// Like [`Grammar::spaced`], and keywords and formats that a grammar cannot express do not make the schema fail: the model alone
    /// follows them, and [`crate::Constraint::warnings`] names them.
    pub fn lenient(schema: &Value) -> Value {
        let mut schema = Grammar::spaced(schema);
        if let Some(settings) = schema.get_mut(SPACING).and_then(Value::as_object_mut) {
            settings.entry("lenient").or_insert(true.into());
        }
        schema
    }
}
