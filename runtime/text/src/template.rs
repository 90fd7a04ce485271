use super::jinja::{Failure, Template};
use crate::cancel::Canceller;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The speaker. A template decides which roles it accepts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Role {
    /// Instructions.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// Another, such as `tool` or `developer`.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The speaker.
    pub role: Role,
    /// The text.
    #[serde(default, deserialize_with = "content")]
    pub content: String,
    /// Further fields for the template, such as `name` or `tool_calls`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            fields: Map::new(),
        }
    }
}

/// The content of a message in JSON: a text, none, or parts that are texts.
fn content<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    let wrong = |found: &str| {
        serde::de::Error::custom(format!(
            "content: {found}, expected a text or parts of type \"text\""
        ))
    };
    match Value::deserialize(from)? {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let text = |part: &Value| match part {
                Value::String(text) => Ok(text.clone()),
                part => match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text") | None, Some(text)) => Ok(text.to_string()),
                    (kind, _) => Err(wrong(&format!(
                        "found a part of type {:?}",
                        kind.unwrap_or("none")
                    ))),
                },
            };
            parts.iter().map(text).collect()
        }
        other => Err(wrong(&format!("found {other}"))),
    }
}

/// Variables of a rendering other than the messages.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TemplateOptions {
    /// Whether the model is to think before it answers; none leaves it to the template.
    pub thinking: Option<bool>,
    /// Functions that the model may call, as JSON schemas.
    pub tools: Vec<Value>,
}

/// A model's chat template: Jinja with the settings, globals and Python methods that transformers
/// gives it. It is not trusted: its work and its time are bounded.
pub struct ChatTemplate {
    template: Template,
    /// Its text, or that of the template for conversations with tools.
    source: String,
    /// The template of conversations with tools, if it is another one.
    tool_use: Option<Template>,
    /// The texts of `bos_token`, `eos_token` and `pad_token`.
    names: [String; 3],
}

/// ChatML, with which most models are trained, for files without a template.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl ChatTemplate {
    /// The template of models whose file has none.
    #[doc(hidden)]
    pub fn chatml() -> Result<Self> {
        Self::new(CHATML, "", "")
    }

    /// Parses `source`; `bos` and `eos` are its variables `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the place of a syntax error.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        Self::with_names(source, [bos.into(), eos.into(), String::new()])
    }

    /// As [`new`](Self::new), with its variables `bos_token`, `eos_token` and `pad_token`.
    #[doc(hidden)]
    pub fn with_names(source: &str, names: [String; 3]) -> Result<Self> {
        Ok(Self {
            template: Template::new(source).map_err(error)?,
            source: source.into(),
            tool_use: None,
            names,
        })
    }

    /// The template with another one for conversations with tools.
    #[doc(hidden)]
    pub fn with_tool_use(self, source: &str) -> Result<Self> {
        Ok(Self {
            tool_use: Some(Template::new(source).map_err(error)?),
            source: source.into(),
            ..self
        })
    }

    /// The text of the template that renders conversations with tools.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as the model was trained to read it. `add_generation_prompt` appends the
    /// beginning of the answer that is to come.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the conversation (many require user and assistant
    /// to alternate, some have no system message), fails, or does more than a template may.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let (options, canceller) = (TemplateOptions::default(), Canceller::default());
        self.render_with(messages, add_generation_prompt, &options, &canceller)
    }

    /// As [`render`](Self::render), with tools and a thinking switch, until it is cancelled.
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`Error::Cancelled`].
    pub(crate) fn render_with(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        options: &TemplateOptions,
        canceller: &Canceller,
    ) -> Result<String> {
        let message = |message: &Message| {
            let mut fields = message.fields.clone();
            fields.insert("role".into(), message.role.name().into());
            fields.insert("content".into(), message.content.as_str().into());
            Value::Object(fields)
        };
        let tools = if options.tools.is_empty() {
            // As transformers passes it: defined, and none.
            Value::Null
        } else {
            Value::Array(options.tools.clone())
        };
        let [bos, eos, pad] = &self.names;
        let mut variables = vec![
            (
                "messages",
                Value::Array(messages.iter().map(message).collect()),
            ),
            ("add_generation_prompt", json!(add_generation_prompt)),
            ("bos_token", json!(bos)),
            ("eos_token", json!(eos)),
            ("pad_token", json!(pad)),
            ("tools", tools),
            ("documents", Value::Null),
        ];
        if let Some(thinking) = options.thinking {
            variables.push(("enable_thinking", json!(thinking)));
            variables.push(("thinking", json!(thinking)));
        }
        let for_tools = self.tool_use.as_ref().filter(|_| !options.tools.is_empty());
        let template = for_tools.unwrap_or(&self.template);
        let rendered = template.render(&variables, canceller);
        rendered.map_err(|failure| {
            if canceller.take() {
                Error::Cancelled { fed: 0 }
            } else {
                error(failure)
            }
        })
    }
}

fn error(failure: Failure) -> Error {
    Error::Template {
        reason: failure.to_string(),
    }
}
