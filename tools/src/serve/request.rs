//! The request that all interfaces share: its settings, and the conversation that it continues.

use std::sync::Arc;

use hyper::Response;
use serde_json::Value;
use waterline::{
    AnswerSyntax, GenerateOptions, Grammar, GrammarSettings, Message, Model, NeededCalls, Role,
    SamplerParams, Start, StateFile, TemplateOptions, ThoughtOptions, Tools,
};

use super::answer::Reply;
use super::answers::Form;
use super::completions::decode;
use super::constrain::Wanted;
use super::cost::{check_answers, check_stops};
use super::exchange::Exchange;
use super::fields::Fields;
use super::http::Body;
use super::lanes::Task;
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::{App, Limits};
use crate::session::Budget;
use crate::sha256::of_bytes;

/// Maximum JSON values in a body: the values of a conversation take up to a hundred bytes each, token ids take fewer.
pub const MOST_VALUES: usize = 1 << 18;
pub const MOST_IDS: usize = 1 << 20;

/// Returns the sampler's parameters. Parameters that the request omits keep their values in `params`, the server's.
fn sampler(
    fields: &Fields,
    mut params: SamplerParams,
    model: &Model,
) -> Result<SamplerParams, Refusal> {
    let set = |name: &str, to: &mut f32| *to = fields.number(name).unwrap_or(*to);
    set("temperature", &mut params.temperature);
    set("top_p", &mut params.top_p);
    set("min_p", &mut params.min_p);
    set("presence_penalty", &mut params.presence_penalty);
    set("frequency_penalty", &mut params.frequency_penalty);
    set("repetition_penalty", &mut params.repetition_penalty);
    // Zero keeps only the most probable token.
    params.top_p = params.top_p.max(f32::MIN_POSITIVE);
    if let Some(k) = fields.whole("top_k") {
        params.top_k = usize::try_from(k).unwrap_or(0);
    }
    if let Some(window) = fields.whole("repeat_last_n") {
        params.penalty_window = usize::try_from(window).unwrap_or(LONGEST_WINDOW);
    }
    // -1 asks for a new seed, as none does.
    match fields.whole("seed") {
        None => {}
        Some(-1) => params.seed = SamplerParams::default().seed,
        Some(seed) => params.seed = seed as u64,
    }
    let biases = biases(fields.get("logit_bias"))?;
    for (token, _) in &biases {
        model.check_token_ids(&[*token])?;
    }
    params.logit_bias.extend(biases);
    params.logit_bias.sort_by_key(|(token, _)| *token);
    params.validate()?;
    Ok(params)
}

/// Reads `logit_bias`: OpenAI's object, or llama.cpp's list of pairs, where `false` forbids a token.
fn biases(field: &Value) -> Result<Vec<(u32, f32)>, Refusal> {
    let pairs: Vec<(Value, &Value)> = match field {
        Value::Null => Vec::new(),
        Value::Object(map) => map
            .iter()
            .map(|(token, bias)| (token.as_str().into(), bias))
            .collect(),
        Value::Array(list) => list.iter().map(|p| (p[0].clone(), &p[1])).collect(),
        _ => return Err(Refusal::bad("logit_bias: expected an object")),
    };
    let read = |(token, bias): (Value, &Value)| {
        let id = match &token {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64().and_then(|id| u32::try_from(id).ok()),
        };
        let id =
            id.ok_or_else(|| Refusal::bad(format!("logit_bias: {token} is not a token id")))?;
        let forbids = (bias == false).then_some(FORBIDDEN);
        let bias = bias.as_f64().map(|bias| bias as f32).or(forbids);
        let bias = bias
            .ok_or_else(|| Refusal::bad(format!("logit_bias: expected a number for token {id}")))?;
        Ok((id, bias))
    };
    pairs.into_iter().map(read).collect()
}

/// The longest window of penalties.
const LONGEST_WINDOW: usize = 1 << 16;
/// The bias that forbids a token.
const FORBIDDEN: f32 = -1e9;

/// The settings with which answers are generated.
pub struct Settings {
    pub sampler: SamplerParams,
    pub generate: GenerateOptions,
    /// The most tokens of a thought.
    pub thought_tokens: Budget,
    pub stream: bool,
    /// Answers per prompt.
    pub n: usize,
    /// Whose checkpoints the answers may use; 0 if all clients share them.
    pub owner: u64,
    /// The state whose text comes before the prompts.
    pub state: Option<Arc<StateFile>>,
    /// Whether each answer has a receipt.
    pub receipt: bool,
    pub logprobs: Option<usize>,
    pub echo: bool,
    /// The grammar of the answers.
    pub form: Option<Wanted>,
    /// Remarks on what the answers leave out, for a header of the response.
    pub notes: Vec<String>,
}

/// The owner of a user's checkpoints: never 0.
fn owner(user: &str) -> u64 {
    let digits = of_bytes(user.as_bytes());
    u64::from_str_radix(&digits[..16], 16).unwrap_or_default() | 1
}

/// Converts messages for the template: the developer's role becomes the system's.
pub fn messages(values: Vec<Value>, limits: &Limits) -> Result<Vec<Message>, Refusal> {
    if values.is_empty() || values.len() > limits.messages {
        let most = limits.messages;
        return Err(Refusal::bad(format!(
            "messages: expected 1 to {most} of them"
        )));
    }
    values.into_iter().enumerate().map(message).collect()
}

fn message((index, mut value): (usize, Value)) -> Result<Message, Refusal> {
    if value["role"] == "developer" {
        value["role"] = "system".into();
    }
    serde_json::from_value(value)
        .map_err(|error| Refusal::bad(format!("messages[{index}]: {error}")))
}

/// The template's options with the thinking switch.
pub fn think(thinking: Option<bool>) -> TemplateOptions {
    let mut template = TemplateOptions::default();
    template.thinking = thinking;
    template
}

/// Tokens of a prompt's end that may close a thought.
const PROMPT_END: usize = 32;

/// The tools that an answer may or must call.
#[derive(PartialEq)]
pub enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

/// The schema of arguments without arguments that it does not name: a forced call would invent some.
fn closed(mut schema: Value) -> Value {
    const OPENS: [&str; 6] = [
        "additionalProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "patternProperties",
        "$ref",
    ];
    if let Some(keys) = schema.as_object_mut()
        && keys.contains_key("properties")
        && !OPENS.iter().any(|key| keys.contains_key(*key))
    {
        keys.insert("additionalProperties".into(), false.into());
    }
    schema
}

/// The conversation that an answer continues.
pub struct Conversation {
    pub messages: Vec<Message>,
    /// JSON schemas of functions.
    pub tools: Vec<Value>,
    pub choice: ToolChoice,
    /// Whether an answer may call more than one tool.
    pub parallel: bool,
    /// The template's options except the tools.
    pub template: TemplateOptions,
    /// Whether the oldest messages are left out if the context is too small for all.
    pub truncates: bool,
}

impl Conversation {
    /// The template's options, with the tools that the model sees.
    pub fn options(&self) -> TemplateOptions {
        let mut options = self.template.clone();
        if self.choice != ToolChoice::None {
            options.tools.clone_from(&self.tools);
        }
        options
    }

    /// The grammar for tool calls, with remarks on what it leaves to the model; `None` if the answer is unrestricted.
    fn calls(&self, app: &App) -> Result<Option<(Wanted, Vec<String>)>, Refusal> {
        let mut tools: Vec<Value> = self.tools.clone();
        let is_strict = |tool: &Value| tool["function"]["strict"] == true;
        let needed = match &self.choice {
            ToolChoice::Required if self.parallel => NeededCalls::Some,
            ToolChoice::Required => NeededCalls::One,
            ToolChoice::Named(name) => {
                tools.retain(|tool| tool["function"]["name"] == **name);
                NeededCalls::One
            }
            ToolChoice::Auto if tools.iter().any(is_strict) => NeededCalls::Any,
            _ => return Ok(None),
        };
        if tools.is_empty() {
            return Err(Refusal::bad("tool_choice: there is no such tool"));
        }
        let (constraints, mut notes) = (app.prompter.model().constraints()?, Vec::new());
        for tool in tools.iter_mut().filter(|tool| !is_strict(tool)) {
            if let Some(schema) = tool.pointer_mut("/function/parameters") {
                let (relaxed, more) = constraints.relax(schema);
                *schema = closed(relaxed);
                notes.extend(more);
            }
        }
        let tokenizer = &app.prompter.tokenizer;
        let control = |mark: &str| {
            tokenizer
                .token_id(mark)
                .filter(|&id| tokenizer.is_special(id))
        };
        let tools: Vec<&Value> = tools.iter().collect();
        let settings = GrammarSettings {
            control: &control,
            spaced: &Grammar::spaced,
        };
        let grammar = app.format.grammar(&tools, needed, &settings);
        let grammar = Grammar::Lark(grammar.map_err(Refusal::bad)?);
        Ok(Some((Wanted::strict(grammar), notes)))
    }
}

impl App {
    /// Whose checkpoints a request may use: those of the user that it names, or nobody's.
    fn owner(&self, fields: &Fields) -> u64 {
        let named = fields.text("prompt_cache_key").or(fields.text("user"));
        let user = named.or(fields.get("metadata")["user_id"].as_str());
        match (self.common.args.store.private_cache, user) {
            (false, _) => 0,
            (true, Some(user)) => owner(user),
            // Nothing was read for this request before.
            (true, None) => owner(&self.id("request")),
        }
    }

    /// Returns the settings of a request.
    pub fn settings(&self, fields: &Fields) -> Result<Settings, Refusal> {
        let mut generate = GenerateOptions::default();
        // -1 is no limit of the client's.
        let most = |n: i128| usize::try_from(n).unwrap_or(usize::MAX);
        let asked = fields.whole("max_tokens").map_or(usize::MAX, most);
        generate.max_tokens = asked.min(self.limits.tokens);
        generate.min_tokens = fields.whole("min_tokens").map_or(0, most);
        generate.stop_at_eos = !fields.flag("ignore_eos");
        generate.stop = fields.texts("stop");
        generate.stop.retain(|stop| !stop.is_empty());
        check_stops(&generate.stop)?;
        // Below 0 asks for the server's budget.
        let budget = fields.whole("thinking_budget_tokens");
        let budget = budget.and_then(|n| usize::try_from(n).ok());
        let thought_tokens = budget.or(self.limits.reasoning_budget.flatten());
        let top = fields.whole("top_logprobs").unwrap_or(0);
        let logprobs = match fields.get("logprobs") {
            Value::Bool(true) => Some(top),
            _ => fields.whole("logprobs"),
        };
        Ok(Settings {
            thought_tokens,
            generate,
            n: fields.whole("n").map_or(1, most),
            owner: self.owner(fields),
            state: fields
                .text("state")
                .map(|name| self.states.find(name))
                .transpose()?,
            stream: fields.flag("stream"),
            receipt: fields.flag("receipt"),
            logprobs: logprobs.map(most),
            echo: false,
            form: Wanted::read(fields)?,
            sampler: sampler(
                fields,
                self.sampling.params(self.prompter.model()),
                self.prompter.model(),
            )?,
            notes: Vec::new(),
        })
    }

    /// Answers the last message of a conversation.
    pub async fn converse(
        self: &Arc<Self>,
        conversation: Conversation,
        mut settings: Settings,
        form: impl Form,
        exchange: &Arc<Exchange>,
    ) -> Result<Response<Body>, Refusal> {
        match (conversation.calls(self)?, &settings.form) {
            (Some(_), Some(_)) if conversation.choice != ToolChoice::Auto => {
                let reason = "tool_choice: cannot be combined with response_format";
                return Err(Refusal::bad(reason));
            }
            (Some((calls, notes)), None) => {
                settings.form = Some(calls);
                settings.notes.extend(notes);
            }
            _ => {}
        }
        let options = conversation.options();
        let tools = Tools(options.tools.clone());
        let messages = conversation.messages;
        let before = settings.state.as_ref().map_or(0, |it| it.tokens().len());
        let room = self.context.filter(|_| conversation.truncates);
        let room = room.map(|context| context.saturating_sub(before));
        let prompt = self.make(move |app| app.read(messages, options, room));
        let prompt = prompt.await?;
        let Some(template) = &prompt.template else {
            return Err(Refusal::bad("messages: no template"));
        };
        let generate = &mut settings.generate;
        if generate.stop_at_eos {
            generate.stop_tokens.extend(template.turns.end_token());
        }
        let tokenizer = &self.prompter.tokenizer;
        let is_token = |text: &str| tokenizer.token_id(text).is_some();
        let source = self.prompter.template.source();
        let mut syntax = AnswerSyntax::of_model(source, is_token, tools);
        let marks = syntax.marks().into_iter();
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark));
        generate.shown_tokens.extend(marks);
        let opens = template.opens_thought;
        let mut thought = ThoughtOptions::new(template.turns.thought_tags(), opens);
        thought.budget = settings.thought_tokens;
        generate.thought = Some(thought);
        let last = prompt.tokens.len().saturating_sub(PROMPT_END);
        let start = syntax.start_after(&decode(self, &prompt.tokens[last..]));
        syntax.start = match (opens, start) {
            (true, _) => Start::Thought,
            // An opening tag in the last message opens nothing.
            (false, Start::Thought) => Start::Answer,
            _ => start,
        };
        check_answers(std::slice::from_ref(&prompt), false, &settings, |_| 0)?;
        let reply = || Reply::new(syntax.clone());
        let replies = std::iter::repeat_with(reply).take(settings.n).collect();
        self.respond((vec![prompt], replies), settings, form, exchange)
            .await
    }

    /// The tokens of a conversation. With a `room`, the oldest messages that are not the system's are left out until the rest has at most
    /// this many tokens, always before a user's message.
    fn read(
        &self,
        mut messages: Vec<Message>,
        options: TemplateOptions,
        room: Option<usize>,
    ) -> waterline::Result<Prompt> {
        let mut dropped = 1;
        loop {
            let prompt = self.prompter.chat(&messages, options.clone())?;
            let first = messages
                .iter()
                .position(|message| message.role != Role::System);
            let users = messages
                .iter()
                .enumerate()
                .skip(first.unwrap_or(0) + dropped);
            let next = users
                .into_iter()
                .find(|(_, message)| message.role == Role::User);
            match (first, next, room) {
                (Some(first), Some((next, _)), Some(room)) if prompt.tokens.len() > room => {
                    messages.drain(first..next);
                    dropped *= 2;
                }
                _ => return Ok(prompt),
            }
        }
    }

    /// Runs slow work on a separate thread, so that it does not block the connections.
    pub async fn make<T: Send + 'static>(
        self: &Arc<Self>,
        make: impl FnOnce(&App) -> waterline::Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let app = Arc::clone(self);
        let made = Task::new(tokio::task::spawn_blocking(move || make(&app)));
        Ok(made.await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_that_are_no_objects_are_passed_on_or_refused() {
        for call in [
            json!(true),
            json!(-1),
            json!([[]]),
            json!({"function": 3}),
            json!({}),
        ] {
            let _ = message((0, json!({"role": "assistant", "tool_calls": [call]})));
        }
        let call = json!({"function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let read = message((0, json!({"role": "assistant", "tool_calls": [call]})));
        let read = serde_json::to_value(read.expect("a message")).expect("JSON");
        assert_eq!(read["tool_calls"][0]["function"]["arguments"]["a"], 1);
    }
}
