use std::borrow::Cow;

use super::jinja::marked::{Mark, Marked, Text};
use super::jinja::value::Value;
use super::jinja::work::{ELEMENT, Work};
use super::jinja::{Failure, Outcome, Template};
use super::told::Told;
use super::{CallFormat, Message, Role};
use crate::cancel::Canceller;
use crate::error::{Error, Result};
use serde_json::{Map, Value as Json};

/// Template variables other than the messages.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TemplateOptions {
    /// Whether the model should think before it answers; `None` leaves the choice to the template.
    pub thinking: Option<bool>,
    /// Functions that the model may call, as JSON schemas.
    pub tools: Vec<Json>,
    /// Further variables, such as `reasoning_effort`, which [`TemplateOptions::set`] checks.
    pub variables: Map<String, Json>,
}

/// Variables that the model and the conversation set.
const RESERVED: [&str; 6] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "pad_token",
];
/// Variables that templates compare with true and false.
const FLAGS: [&str; 5] = [
    "enable_thinking",
    "thinking",
    "preserve_thinking",
    "clear_thinking",
    "keep_past_thinking",
];

impl TemplateOptions {
    /// Sets a variable of the template. `enable_thinking` and `thinking` are one switch; null leaves a variable undefined.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a variable that cannot be set, or whose value has the wrong type.
    pub fn set(&mut self, name: &str, value: Json) -> Result<()> {
        let expected = match (name, &value) {
            (name, _) if RESERVED.contains(&name) => {
                return Err(Error::invalid(name, "the model and the messages set it"));
            }
            (_, Json::Null) => {
                self.variables.shift_remove(name);
                return Ok(());
            }
            ("enable_thinking" | "thinking", Json::Bool(thinking)) => {
                self.thinking = Some(*thinking);
                return Ok(());
            }
            (name, value) if FLAGS.contains(&name) && !value.is_boolean() => "true or false",
            ("reasoning_effort", value) if !value.is_string() => "a string",
            ("documents", value) if !value.is_array() => "a list",
            _ => {
                self.variables.insert(name.into(), value);
                return Ok(());
            }
        };
        let found: String = value.to_string().chars().take(80).collect();
        Err(Error::invalid(
            name,
            format!("found {found}, expected {expected}"),
        ))
    }
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
        let rendering = self.render_with(messages, add_generation_prompt, &options, &canceller)?;
        Ok(rendering.text.as_str().into())
    }

    /// Like [`render`](Self::render), with tools and variables. If the template does not list tools, the messages do, for calls in this
    /// format.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render), and [`Error::Template`] if the text would not show the tools.
    pub fn render_with_options(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        options: &TemplateOptions,
        format: &CallFormat,
    ) -> Result<String> {
        let told = Told::new(self, messages, options, format);
        let canceller = Canceller::default();
        let rendering =
            self.render_with(&told.messages, add_generation_prompt, options, &canceller)?;
        told.check(&rendering)?;
        Ok(rendering.text.as_str().into())
    }

    /// Like [`render`](Self::render), with tools, variables and cancellation. Messages that the template refuses are tried again in
    /// plainer forms: contents and fields as [`Message::simplified`] makes them, ids as short as Mistral's templates want them, all system
    /// messages as the first one, or as the beginning of the first user message.
    ///
    /// # Errors
    /// The errors of [`render`](Self::render), and [`Error::Cancelled`].
    pub(crate) fn render_with<'m>(
        &self,
        messages: &'m [Message],
        add_generation_prompt: bool,
        options: &TemplateOptions,
        canceller: &Canceller,
    ) -> Result<Rendering<'m>> {
        let for_tools = self.tool_use.as_ref().filter(|_| !options.tools.is_empty());
        let template = for_tools.unwrap_or(&self.template);
        let mut refusal = None;
        let mut tried: Vec<Vec<Message>> = Vec::new();
        for form in FORMS {
            let messages = form.apply(messages);
            if tried.iter().any(|other| **other == *messages) {
                continue;
            }
            let variables = |work: &mut Work| {
                self.variables(&messages, add_generation_prompt, options, form, work)
            };
            match template.render(variables, canceller) {
                Ok(text) if text.range_of(Mark::Structure).is_none() => {
                    return Ok(Rendering { text, messages });
                }
                Err(_) if canceller.take() => return Err(Error::Cancelled { fed: 0 }),
                Err(failure) if failure.is_limit() => return Err(error(failure)),
                Err(failure) => refusal = refusal.or(Some(failure)),
                Ok(_) => {}
            }
            tried.extend((form != Form::Given).then(|| messages.into_owned()));
        }
        let unknown = || Failure::new("it writes the parts of contents as they are");
        Err(error(refusal.unwrap_or_else(unknown)))
    }

    fn variables(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        options: &TemplateOptions,
        form: Form,
        work: &mut Work,
    ) -> Outcome<Vec<(String, Value)>> {
        let mut list = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            list.push(message_value(index, message, work)?);
        }
        let tools = match (options.tools.is_empty(), form) {
            // Like transformers, defines the variable, with the value none.
            (true, Form::Given) => Value::None,
            _ => Value::from_json(&Json::Array(options.tools.clone()), Mark::Data, work)?,
        };
        let [bos, eos, pad] = &self.names;
        let mut variables = vec![
            ("messages".to_string(), Value::list(list)?),
            ("tools".into(), tools),
            ("documents".into(), Value::None),
            (
                "add_generation_prompt".into(),
                Value::Bool(add_generation_prompt),
            ),
            ("bos_token".into(), Value::str(bos)),
            ("eos_token".into(), Value::str(eos)),
            ("pad_token".into(), Value::str(pad)),
        ];
        if let Some(thinking) = options.thinking {
            let names = ["enable_thinking", "thinking"];
            variables.extend(names.map(|name| (name.into(), Value::Bool(thinking))));
        }
        for (name, value) in &options.variables {
            variables.push((name.clone(), Value::from_json(value, Mark::Data, work)?));
        }
        Ok(variables)
    }
}

/// A rendering and the messages that it shows, which its marks count.
pub(crate) struct Rendering<'m> {
    pub text: Marked,
    pub messages: Cow<'m, [Message]>,
}

/// A form of messages.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// As clients send them.
    Given,
    /// As [`Message::simplified`] makes them.
    Simple {
        text_arguments: bool,
        system: System,
    },
}

/// Where system messages are.
#[derive(Clone, Copy, PartialEq)]
enum System {
    /// Where clients put them.
    Given,
    /// In the first message.
    First,
    /// At the beginning of the first user message.
    User,
}

/// The forms in which a template gets messages, until it accepts them.
const FORMS: [Form; 7] = [
    Form::Given,
    Form::simple(false, System::Given),
    Form::simple(true, System::Given),
    Form::simple(false, System::First),
    Form::simple(true, System::First),
    Form::simple(false, System::User),
    Form::simple(true, System::User),
];

impl Form {
    const fn simple(text_arguments: bool, system: System) -> Form {
        Form::Simple {
            text_arguments,
            system,
        }
    }

    fn apply(self, messages: &[Message]) -> Cow<'_, [Message]> {
        let Form::Simple {
            text_arguments,
            system,
        } = self
        else {
            return messages.into();
        };
        let simplified = messages.iter().map(|it| it.simplified(text_arguments));
        let mut messages: Vec<Message> = simplified.collect();
        short_ids(&mut messages);
        if system == System::Given {
            return messages.into();
        }
        let is_system = |message: &Message| message.role == Role::System;
        let (first, mut others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
        let texts: Vec<String> = first.into_iter().map(|message| message.content).collect();
        let text = texts.join("\n\n");
        let is_user = |message: &&mut Message| message.role == Role::User;
        match others.iter_mut().find(is_user) {
            Some(user) if system == System::User && !texts.is_empty() => user.prepend(&text),
            _ if texts.is_empty() => {}
            _ => others.insert(0, Message::new(Role::System, text)),
        }
        others.into()
    }
}

/// Numbers the ids of tool calls with nine digits.
fn short_ids(messages: &mut [Message]) {
    let mut ids: Vec<Json> = Vec::new();
    let mut shorten = |id: &mut Json| {
        let known = ids.iter().position(|known| known == id);
        let number = known.unwrap_or(ids.len());
        if known.is_none() {
            ids.push(id.clone());
        }
        *id = format!("{number:09}").into();
    };
    for message in messages {
        let calls = message.fields.get_mut("tool_calls");
        let calls = calls.and_then(Json::as_array_mut).into_iter().flatten();
        calls
            .filter_map(|call| call.get_mut("id"))
            .for_each(&mut shorten);
        message
            .fields
            .get_mut("tool_call_id")
            .into_iter()
            .for_each(&mut shorten);
    }
}

fn message_value(index: usize, message: &Message, work: &mut Work) -> Outcome<Value> {
    let key = |name: &str| Value::Str(Text::new(name, Mark::Data));
    let role = if message.role.is_known() {
        Mark::Template
    } else {
        Mark::Data
    };
    work.spend(4 * ELEMENT + message.role.name().len())?;
    let role = Value::Str(Text::new(message.role.name(), role));
    let mut entries = vec![(key("role"), role)];
    if let Some(content) = message.content() {
        let value = content_value(&content, Mark::Content(index), work)?;
        entries.push((key("content"), value));
    }
    for (name, value) in &message.fields {
        work.spend(name.len())?;
        let value = Value::from_json(value, Mark::Data, work)?;
        entries.push((key(name), value));
    }
    Value::dict(entries)
}

/// A content. The keys of its parts are marked as structure.
fn content_value(content: &Json, mark: Mark, work: &mut Work) -> Outcome<Value> {
    let parts = content.as_array();
    let is_part = |part: &Json| part.get("type").is_some_and(Json::is_string);
    let Some(parts) = parts.filter(|parts| parts.iter().all(is_part)) else {
        return Value::from_json(content, mark, work);
    };
    let mut list = Vec::new();
    for part in parts.iter().filter_map(Json::as_object) {
        let mut entries = Vec::new();
        for (name, value) in part {
            work.spend(2 * ELEMENT + name.len())?;
            let key = Value::Str(Text::new(name, Mark::Structure));
            let mark = if name == "type" {
                Mark::Structure
            } else {
                mark
            };
            entries.push((key, Value::from_json(value, mark, work)?));
        }
        list.push(Value::dict(entries)?);
    }
    Value::list(list)
}

fn error(failure: Failure) -> Error {
    Error::Template {
        reason: failure.to_string(),
    }
}
