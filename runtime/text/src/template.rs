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
    /// More fields for the template, such as `name` or `tool_calls`.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// Creates a message without further fields.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            fields: Map::new(),
        }
    }
}

/// Reads a message's content from JSON: a string, null, or a list of text parts.
fn content<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    let wrong = |found: &str| {
        serde::de::Error::custom(format!(
            "content: {found}, expected a string or parts of type \"text\""
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

/// Template variables other than the messages.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TemplateOptions {
    /// Whether the model should think before it answers; `None` leaves the choice to the template.
    pub thinking: Option<bool>,
    /// Functions that the model may call, as JSON schemas.
    pub tools: Vec<Value>,
}

/// A model's chat template: Jinja with the settings, globals and Python methods of transformers. Templates are untrusted: their work and
/// time are bounded.
pub struct ChatTemplate {
    template: Template,
    /// The template's source, or that of `tool_use` if present.
    source: String,
    /// The template for conversations with tools, if it is a separate one.
    tool_use: Option<Template>,
    /// The texts of `bos_token`, `eos_token` and `pad_token`.
    names: [String; 3],
}

/// ChatML, the format of most models, for files without a template.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl ChatTemplate {
    /// ChatML, for models whose file has no template.
    #[doc(hidden)]
    pub fn chatml() -> Result<Self> {
        Self::new(CHATML, "", "")
    }

    /// Parses `source`; `bos` and `eos` become its variables `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the line of a syntax error.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        Self::with_names(source, [bos.into(), eos.into(), String::new()])
    }

    /// Like [`new`](Self::new), with the variables `bos_token`, `eos_token` and `pad_token`.
    #[doc(hidden)]
    pub fn with_names(source: &str, names: [String; 3]) -> Result<Self> {
        Ok(Self {
            template: Template::new(source).map_err(error)?,
            source: source.into(),
            tool_use: None,
            names,
        })
    }

    /// Adds a separate template for conversations with tools.
    #[doc(hidden)]
    pub fn with_tool_use(self, source: &str) -> Result<Self> {
        Ok(Self {
            tool_use: Some(Template::new(source).map_err(error)?),
            source: source.into(),
            ..self
        })
    }

    /// The source of the template that renders conversations with tools.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation in the form that the model was trained on. `add_generation_prompt` appends the beginning of the next answer.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the conversation (many require user and assistant to alternate, some have no system
    /// message), fails, or exceeds the work limit.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let (options, canceller) = (TemplateOptions::default(), Canceller::default());
        self.render_with(messages, add_generation_prompt, &options, &canceller)
    }

    /// Like [`render`](Self::render), with tools, a thinking switch and cancellation.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render), and [`Error::Cancelled`].
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
            // Like transformers, defines the variable, with the value none.
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
