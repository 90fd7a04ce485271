use crate::error::{Error, Result};
use minijinja::{Environment, ErrorKind, Value, context, syntax::SyntaxConfig};
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions ahead of the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// A model's chat template: Jinja with the settings, globals and Python methods that transformers
/// gives it.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are what it calls `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// [`Error::Template`] with the place of a syntax error.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(error)?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| super::date::now(&format));
        environment
            .add_template_owned(NAME, source.to_string())
            .map_err(error)?;
        Ok(Self {
            environment,
            bos: bos.into(),
            eos: eos.into(),
        })
    }

    /// The conversation as the model was trained to read it. `add_generation_prompt` appends the
    /// beginning of the answer that is to come.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the conversation (many want user and assistant
    /// to alternate, some know no system message) or fails.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let messages = messages.iter().map(|message| {
            Value::from_pairs([
                ("role", Value::from(message.role.name())),
                ("content", Value::from(&message.content)),
            ])
        });
        let template = self.environment.get_template(NAME).map_err(error)?;
        let context = context! {
            messages => messages.collect::<Vec<Value>>(),
            add_generation_prompt,
            bos_token => &self.bos,
            eos_token => &self.eos,
            // As transformers passes them: defined, and none.
            tools => (),
            documents => (),
        };
        template.render(context).map_err(error)
    }
}

/// How a template refuses a conversation.
fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

fn error(error: minijinja::Error) -> Error {
    Error::Template {
        reason: error.to_string(),
    }
}
