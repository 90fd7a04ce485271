//! The functions that a model may call, and the types of their arguments.

use serde_json::Value;

use super::CallFormat;
use super::json::Literal;

/// References that are followed in a schema.
const MOST_REFERENCES: usize = 16;

/// Functions that may be called, as JSON schemas in OpenAI's form.
#[derive(Debug, Clone, Default)]
pub struct Tools(pub Vec<Value>);

/// JSON types that a value may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kinds(u8);

impl Kinds {
    pub const STRING: Kinds = Kinds(1);
    const INTEGER: Kinds = Kinds(2);
    const NUMBER: Kinds = Kinds(2 | 4);
    const BOOLEAN: Kinds = Kinds(8);
    const NULL: Kinds = Kinds(16);
    const ARRAY: Kinds = Kinds(32);
    const OBJECT: Kinds = Kinds(64);
    /// No schema restricts the type.
    pub const ANY: Kinds = Kinds(127);
    pub const NOT_STRING: Kinds = Kinds(126);

    fn and(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    pub fn has(self, other: Kinds) -> bool {
        self.0 & other.0 != 0
    }

    fn of_name(name: &str) -> Kinds {
        match name {
            "string" => Kinds::STRING,
            "integer" => Kinds::INTEGER,
            "number" => Kinds::NUMBER,
            "boolean" => Kinds::BOOLEAN,
            "null" => Kinds::NULL,
            "array" => Kinds::ARRAY,
            "object" => Kinds::OBJECT,
            _ => Kinds(0),
        }
    }

    fn of_value(value: &Value) -> Kinds {
        match value {
            Value::Null => Kinds::NULL,
            Value::Bool(_) => Kinds::BOOLEAN,
            Value::Number(number)
                if number.is_f64() && number.as_f64().is_none_or(|n| n.fract() != 0.0) =>
            {
                Kinds(4)
            }
            Value::Number(_) => Kinds::INTEGER,
            Value::String(_) => Kinds::STRING,
            Value::Array(_) => Kinds::ARRAY,
            Value::Object(_) => Kinds::OBJECT,
        }
    }

    /// The types that `schema`, a part of `whole`, allows.
    fn of_schema(schema: &Value, whole: &Value, references: usize) -> Kinds {
        let each = |list: &Value| {
            let kinds = list
                .as_array()?
                .iter()
                .map(|one| Self::of_schema(one, whole, references));
            kinds.reduce(Kinds::and)
        };
        if let Some(pointer) = schema["$ref"]
            .as_str()
            .and_then(|text| text.strip_prefix('#'))
        {
            let target = whole.pointer(pointer).filter(|_| references > 0);
            return target.map_or(Kinds::ANY, |target| {
                Self::of_schema(target, whole, references - 1)
            });
        }
        let values = |list: &Value| {
            list.as_array()?
                .iter()
                .map(Self::of_value)
                .reduce(Kinds::and)
        };
        let named = match &schema["type"] {
            Value::String(name) => Some(Self::of_name(name)),
            Value::Array(names) => names
                .iter()
                .filter_map(Value::as_str)
                .map(Self::of_name)
                .reduce(Kinds::and),
            _ => None,
        };
        let mut kinds = named
            .or_else(|| values(&schema["enum"]))
            .or_else(|| schema.get("const").map(Self::of_value))
            .or_else(|| each(&schema["anyOf"]))
            .or_else(|| each(&schema["oneOf"]))
            .or_else(|| each(&schema["allOf"]))
            .or_else(|| schema.get("properties").map(|_| Kinds::OBJECT))
            .or_else(|| schema.get("items").map(|_| Kinds::ARRAY))
            .unwrap_or(Kinds::ANY);
        if schema["nullable"] == true {
            kinds = kinds.and(Kinds::NULL);
        }
        if kinds.0 == 0 { Kinds::ANY } else { kinds }
    }

    /// Converts an argument that a model wrote without quotes.
    pub fn value(self, text: &str) -> Value {
        let trimmed = text.trim();
        if self == Kinds::STRING {
            return text.into();
        }
        let parsed =
            Literal::parse(trimmed).filter(|value| !value.is_string() || !self.has(Kinds::STRING));
        if let Some(value) = parsed.filter(|value| self.has(Self::of_value(value))) {
            return value;
        }
        // Without a type that takes the text, a guess is better than the text.
        if !self.has(Kinds::STRING) && trimmed.starts_with(['{', '[', '(']) {
            let (value, _, _) = Literal::guess(trimmed);
            if let Some(value) = value.filter(|value| self.has(Self::of_value(value))) {
                return value;
            }
        }
        text.into()
    }
}

impl Tools {
    /// Instructions for a model whose template does not list tools. They describe the generic format; a model knows its own.
    pub fn instructions(&self, format: &CallFormat) -> String {
        let functions: Vec<String> = self.functions().map(Value::to_string).collect();
        let functions = functions.join("\n");
        let listed = format!("You can call these functions, given as JSON:\n{functions}");
        if format.name != CallFormat::generic().name {
            return listed;
        }
        listed
            + "\nTo call one, write its name and arguments as JSON between tags, and nothing else:\n\
               <tool_call>\n{\"name\": NAME, \"arguments\": {...}}\n</tool_call>"
    }

    /// Whether a chat template lists tools. The prompt of another template needs [`Tools::instructions`].
    pub fn are_listed(template: &str) -> bool {
        template.contains("tools") || template.contains("functions")
    }

    /// The function's part of each tool.
    pub(super) fn functions(&self) -> impl Iterator<Item = &Value> {
        self.0
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool))
    }

    fn function(&self, name: &str) -> Option<&Value> {
        self.functions().find(|function| function["name"] == name)
    }

    /// Whether there is a function with this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.function(name).is_some()
    }

    /// The names of a function's arguments, in the order of the schema; `None` if the schema does not list them.
    pub(super) fn arguments(&self, name: &str) -> Option<Vec<String>> {
        let properties = self.function(name)?["parameters"]["properties"].as_object()?;
        Some(properties.keys().cloned().collect())
    }

    /// The types of an argument.
    pub(super) fn kinds(&self, name: &str, argument: &str) -> Kinds {
        let Some(function) = self.function(name) else {
            return Kinds::ANY;
        };
        let whole = &function["parameters"];
        match whole["properties"].get(argument) {
            Some(schema) => Kinds::of_schema(schema, whole, MOST_REFERENCES),
            None => Kinds::ANY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_have_the_types_of_their_schema() {
        let tools = Tools(vec![json!({ "name": "f", "parameters": {
            "properties": {
                "text": { "type": "string" },
                "maybe": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "list": { "type": ["null", "string"] },
                "count": { "$ref": "#/$defs/n" },
                "mixed": { "type": ["string", "object"] },
                "unit": { "enum": ["C", "F"] },
                "options": { "anyOf": [{ "type": "object" }, { "type": "null" }] },
                "any": {},
            },
            "$defs": { "n": { "type": "integer" } },
        }})]);
        for (key, text, expected) in [
            ("text", "1", json!("1")),
            ("maybe", "12345", json!("12345")),
            ("maybe", "None", Value::Null),
            ("list", "true", json!("true")),
            ("list", "null", Value::Null),
            ("count", "7", json!(7)),
            ("count", "seven", json!("seven")),
            ("mixed", "{\"a\": 1}", json!({ "a": 1 })),
            ("mixed", "{not json", json!("{not json")),
            ("unit", "C", json!("C")),
            (
                "options",
                "{'on': True, 'n': None}",
                json!({ "on": true, "n": null }),
            ),
            ("any", "[1, 'a']", json!([1, "a"])),
            ("any", "plain", json!("plain")),
        ] {
            assert_eq!(tools.kinds("f", key).value(text), expected, "{key} {text}");
        }
    }
}
