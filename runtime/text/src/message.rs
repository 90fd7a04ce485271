//! Messages, in the forms in which clients send them and templates expect them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The speaker. A template decides which roles it accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Another role, such as `tool` or `developer`.
    Other(String),
}

impl Role {
    /// The name in chat templates.
    pub fn name(&self) -> &str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Other(name) => name,
        }
    }

    /// Whether the role is one of those from whose names templates make control tokens.
    pub(crate) fn is_known(&self) -> bool {
        const KNOWN: [&str; 8] = [
            "developer",
            "environment",
            "function",
            "ipython",
            "model",
            "observation",
            "tool",
            "tool_response",
        ];
        match self {
            Role::Other(name) => KNOWN.contains(&name.as_str()),
            _ => true,
        }
    }
}

impl From<String> for Role {
    fn from(name: String) -> Self {
        match name.as_str() {
            "system" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => Role::Other(name),
        }
    }
}

impl From<Role> for String {
    fn from(role: Role) -> Self {
        role.name().into()
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text.
    pub content: String,
    /// More fields for the template, such as `name` or `tool_calls`.
    pub fields: Map<String, Value>,
    /// The content's JSON if it was not a string, and the text in it.
    given: Option<Given>,
}

/// A content that was not given as a string.
#[derive(Clone, Debug, PartialEq)]
struct Given {
    /// `None` for an absent content.
    json: Option<Value>,
    text: String,
}

impl Eq for Message {}

impl Message {
    /// Creates a message without further fields.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            fields: Map::new(),
            given: None,
        }
    }

    /// The content in the form in which it was given; `None` if it was absent.
    pub(crate) fn content(&self) -> Option<Value> {
        match &self.given {
            // The text may have been changed since.
            Some(given) if given.text == self.content => given.json.clone(),
            _ => Some(self.content.as_str().into()),
        }
    }

    /// Whether this is the result of a tool call.
    pub(crate) fn is_result(&self) -> bool {
        matches!(self.role.name(), "tool" | "function")
    }

    /// Puts a paragraph before the content.
    pub(crate) fn prepend(&mut self, text: &str) {
        self.content = format!("{text}\n\n{}", self.content);
    }

    /// The message in the plainest form: its content is text, arguments of calls are mappings, or text if `text_arguments`, fields
    /// without a value are left out.
    pub(crate) fn simplified(&self, text_arguments: bool) -> Message {
        let mut message = Message {
            given: None,
            ..self.clone()
        };
        let is_empty = |value: &Value| value.is_null() || *value == json!([]);
        message.fields.retain(|_, value| !is_empty(value));
        for call in message.calls() {
            match call.get_mut("arguments") {
                Some(arguments) if text_arguments && !arguments.is_string() => {
                    *arguments = arguments.to_string().into();
                }
                Some(arguments) if !text_arguments && !arguments.is_object() => {
                    *arguments = json!({ "arguments": arguments });
                }
                _ => {}
            }
        }
        message
    }

    /// The functions of the message's tool calls.
    pub(crate) fn calls(&mut self) -> impl Iterator<Item = &mut Map<String, Value>> {
        let calls = self
            .fields
            .get_mut("tool_calls")
            .and_then(Value::as_array_mut);
        let calls = calls.into_iter().flatten().filter_map(Value::as_object_mut);
        calls.filter_map(|call| match call.contains_key("function") {
            true => call.get_mut("function")?.as_object_mut(),
            false => Some(call),
        })
    }
}

/// Reads a message as clients send it. Arguments of calls become mappings if they spell one, or nothing.
impl TryFrom<Map<String, Value>> for Message {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, String> {
        let role = match fields.shift_remove("role") {
            Some(Value::String(name)) => Role::from(name),
            Some(other) => return Err(format!("role: found {other}, expected a string")),
            None => return Err("role: it is missing".into()),
        };
        let mut given = None;
        let content = match fields.shift_remove("content") {
            Some(Value::String(text)) => text,
            json => {
                let json = json.map(as_parts);
                let text = match &json {
                    None | Some(Value::Null) => String::new(),
                    Some(json) => match (text_of(json), &role) {
                        (Ok(text), _) => text,
                        (Err(_), Role::Other(_)) => json.to_string(),
                        (Err(reason), _) => return Err(reason),
                    },
                };
                given = Some(Given {
                    json,
                    text: text.clone(),
                });
                text
            }
        };
        let mut message = Message {
            role,
            content,
            fields,
            given,
        };
        for call in message.calls() {
            let Some(arguments) = call.get_mut("arguments") else {
                continue;
            };
            let parsed = match arguments {
                Value::Null => Some(json!({})),
                Value::String(text) if text.trim().is_empty() => Some(json!({})),
                Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
                _ => None,
            };
            *arguments = parsed.unwrap_or_else(|| arguments.take());
        }
        Ok(message)
    }
}

impl From<Message> for Map<String, Value> {
    fn from(message: Message) -> Self {
        let content = message.content();
        let mut map = Map::new();
        map.insert("role".into(), message.role.name().into());
        content.map(|content| map.insert("content".into(), content));
        map.extend(message.fields);
        map
    }
}

/// Makes a list of parts of a single part, and parts of strings in a list.
fn as_parts(json: Value) -> Value {
    match json {
        Value::Object(part) if part.contains_key("type") && part.contains_key("text") => {
            json!([part])
        }
        Value::Array(items) => {
            let part = |item| match item {
                Value::String(text) => json!({"type": "text", "text": text}),
                other => other,
            };
            Value::Array(items.into_iter().map(part).collect())
        }
        other => other,
    }
}

/// The text of a content's parts.
fn text_of(json: &Value) -> Result<String, String> {
    let wrong = |found: &str| {
        format!("content: found {found}, expected a string or parts of type \"text\"")
    };
    let Some(parts) = json.as_array() else {
        return Err(wrong(&json.to_string()));
    };
    let text = |part: &Value| {
        let kind = part["type"].as_str();
        let text = part["text"].as_str().or(part["refusal"].as_str());
        match (kind, text) {
            (Some("text" | "refusal" | "input_text" | "output_text") | None, Some(text)) => {
                Ok(text.to_string())
            }
            // A thought is for templates that know such parts.
            (Some("thinking" | "reasoning"), _) => Ok(String::new()),
            (kind, _) => Err(wrong(&format!(
                "a part of type {:?}",
                kind.unwrap_or("none")
            ))),
        }
    };
    parts.iter().map(text).collect()
}
