//! Fields shared by the requests of all interfaces, and the conversation that a request continues.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use waterline::{
    Constraint, GenerateOptions, Grammar, Message, Model, SamplerParams, TemplateOptions,
    ThoughtOptions,
};
use waterline_quant::values_at_most;

use super::answer::{Parts, Reply};
use super::answers::Form;
use super::cost::{check_answers, check_stops, check_tools};
use super::exchange::Exchange;
use super::http::{Body, Refusal};
use super::lanes::Task;
use super::{App, Limits};
use crate::calls::{Calls, Format, Needed, Tools};
use crate::session::Budget;
use crate::sha256::of_bytes;

/// Maximum answers to a request.
const MOST_ANSWERS: usize = 128;
/// Maximum stop texts.
const MOST_STOPS: usize = 64;
/// Maximum JSON values in a body: the values of a conversation take up to a hundred bytes each, token ids take fewer.
pub const MOST_VALUES: usize = 1 << 18;
pub const MOST_IDS: usize = 1 << 20;
/// Maximum alternatives that are reported for a token.
pub const MOST_LOGPROBS: usize = 20;

/// A single value or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

/// The length of the answer and the sampling parameters, under the names that clients use.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Common {
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    #[serde(alias = "max_completion_tokens")]
    pub max_tokens: Option<usize>,
    #[serde(alias = "stop_sequences")]
    stop: Option<OneOrMany<String>>,
    n: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    seed: Option<i64>,
    /// The most tokens of a thought, as llama.cpp (two names) and vLLM call it; below 0 for the server's.
    thinking_budget_tokens: Option<i64>,
    reasoning_budget_tokens: Option<i64>,
    thinking_token_budget: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f32>,
    logit_bias: Option<HashMap<String, f32>>,
    prompt_cache_key: Option<String>,
    user: Option<String>,
    metadata: Option<Metadata>,
}

/// Anthropic's name of a request's user.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    user_id: Option<String>,
}

#[derive(Deserialize, Clone, Copy)]
pub struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

impl Common {
    /// The most tokens of a thought; `default` is the server's.
    fn thought_tokens(&self, default: Budget) -> Budget {
        let stated = self.thinking_budget_tokens;
        let stated = stated.or(self.reasoning_budget_tokens);
        let stated = stated.or(self.thinking_token_budget);
        stated.and_then(|n| usize::try_from(n).ok()).or(default)
    }

    /// Returns the sampler's parameters. Parameters that the request omits keep their values in `params`, the server's.
    fn params(self, mut params: SamplerParams, model: &Model) -> Result<SamplerParams, Refusal> {
        let set = |value: Option<f32>, to: &mut f32| *to = value.unwrap_or(*to);
        // Zero keeps only the most probable token.
        let top_p = self.top_p.map(|p| p.max(f32::MIN_POSITIVE));
        set(self.temperature, &mut params.temperature);
        set(top_p, &mut params.top_p);
        set(self.min_p, &mut params.min_p);
        set(self.presence_penalty, &mut params.presence_penalty);
        set(self.frequency_penalty, &mut params.frequency_penalty);
        set(self.repetition_penalty, &mut params.repetition_penalty);
        if let Some(k) = self.top_k {
            params.top_k = usize::try_from(k).unwrap_or(0);
        }
        if let Some(seed) = self.seed {
            params.seed = seed as u64;
        }
        for (token, bias) in self.logit_bias.unwrap_or_default() {
            let token = token
                .parse()
                .map_err(|_| Refusal::bad(format!("logit_bias: {token:?} is not a token id")))?;
            model.check_token_ids(&[token])?;
            params.logit_bias.push((token, bias));
        }
        params.logit_bias.sort_by_key(|(token, _)| *token);
        params.validate()?;
        Ok(params)
    }
}

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
    pub logprobs: Option<usize>,
    pub echo: bool,
    /// The grammar of the answers.
    pub form: Option<Grammar>,
}

/// The owner of a user's checkpoints: never 0.
fn owner(user: &str) -> u64 {
    let digits = of_bytes(user.as_bytes());
    u64::from_str_radix(&digits[..16], 16).unwrap_or_default() | 1
}

/// Parses the JSON of a body with at most `most` values.
pub fn parse<T: DeserializeOwned>(body: &[u8], most: usize) -> Result<T, Refusal> {
    let values = values_at_most(body);
    if values > most {
        return Err(Refusal::bad(format!(
            "the body: {values} values, more than the {most} that are read"
        )));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("the body: {error}")))
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

/// The tools that an answer may or must call.
#[derive(PartialEq)]
pub enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
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

    /// The grammar for tool calls; `None` if the answer is unrestricted.
    fn calls(&self, app: &App) -> Result<Option<Grammar>, Refusal> {
        let mut tools: Vec<&Value> = self.tools.iter().collect();
        let is_strict = |tool: &&Value| tool["function"]["strict"] == true;
        let needed = match &self.choice {
            ToolChoice::Required if self.parallel => Needed::Some,
            ToolChoice::Required => Needed::One,
            ToolChoice::Named(name) => {
                tools.retain(|tool| tool["function"]["name"] == **name);
                Needed::One
            }
            ToolChoice::Auto if tools.iter().any(is_strict) => Needed::Any,
            _ => return Ok(None),
        };
        if tools.is_empty() {
            return Err(Refusal::bad("tool_choice: there is no such tool"));
        }
        let Some(format) = app.format else {
            let reason = "tool_choice: the model's template has no format for calls";
            return Err(Refusal::bad(reason));
        };
        check_tools(&tools)?;
        let tokenizer = &app.prompter.tokenizer;
        let control = |mark: &str| {
            tokenizer
                .token_id(mark)
                .filter(|&id| tokenizer.is_special(id))
        };
        let grammar = format.grammar(&tools, needed, control);
        Ok(Some(Grammar::Lark(grammar.map_err(Refusal::bad)?)))
    }
}

impl App {
    /// Checks the fields of a request and returns its settings.
    pub fn settings(&self, mut request: Common) -> Result<Settings, Refusal> {
        let n = request.n.unwrap_or(1);
        if !(1..=MOST_ANSWERS).contains(&n) {
            return Err(Refusal::bad(format!("n: expected 1 to {MOST_ANSWERS}")));
        }
        let mut stop = match request.stop.take() {
            None => Vec::new(),
            Some(OneOrMany::One(stop)) => vec![stop],
            Some(OneOrMany::Many(stops)) => stops,
        };
        stop.retain(|stop| !stop.is_empty());
        if stop.len() > MOST_STOPS {
            let reason = format!("stop: expected at most {MOST_STOPS} texts");
            return Err(Refusal::bad(reason));
        }
        check_stops(&stop)?;
        let user = request.prompt_cache_key.take().or(request.user.take());
        let user = user.or_else(|| request.metadata.take()?.user_id);
        let owner = match (self.private_cache, user) {
            (false, _) => 0,
            (true, Some(user)) => owner(&user),
            // Nothing was read for this request before.
            (true, None) => owner(&self.id("request")),
        };
        let most = self.limits.tokens;
        let mut generate = GenerateOptions::default();
        generate.max_tokens = request.max_tokens.map_or(most, |n| n.min(most));
        generate.stop = stop;
        Ok(Settings {
            thought_tokens: request.thought_tokens(self.limits.reasoning_budget.flatten()),
            generate,
            n,
            owner,
            stream: request.stream,
            logprobs: None,
            echo: false,
            form: None,
            sampler: request.params(
                self.sampling.params(self.prompter.model()),
                self.prompter.model(),
            )?,
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
            (calls, None) => settings.form = calls,
            _ => {}
        }
        let options = conversation.options();
        let tools = Tools(options.tools.clone());
        let messages = conversation.messages;
        let prompt = self.make(move |app| app.prompter.chat(&messages, options));
        let prompt = prompt.await?;
        let Some(template) = &prompt.template else {
            return Err(Refusal::bad("messages: no template"));
        };
        let generate = &mut settings.generate;
        generate.stop_tokens.extend(template.turns.end_token());
        let format = self.format.filter(|_| !tools.0.is_empty());
        let marks = format.into_iter().flat_map(Format::marks);
        let tokenizer = &self.prompter.tokenizer;
        let marks = marks.filter_map(|mark| tokenizer.token_id(mark));
        generate.shown_tokens.extend(marks);
        let opens = template.opens_thought;
        let mut thought = ThoughtOptions::new(template.turns.thought_tags(), opens);
        thought.budget = settings.thought_tokens;
        generate.thought = Some(thought);
        check_answers(std::slice::from_ref(&prompt), false, &settings, |_| 0)?;
        let reply = || {
            let calls = format.map(|format| Calls::new(format, tools.clone()));
            Reply::of_parts(Parts::new(opens, calls))
        };
        let replies = std::iter::repeat_with(reply).take(settings.n).collect();
        self.respond((vec![prompt], replies), settings, form, exchange)
            .await
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

    /// Compiles a grammar.
    pub async fn form(
        self: &Arc<Self>,
        grammar: Option<Grammar>,
    ) -> Result<Option<Constraint>, Refusal> {
        let Some(grammar) = grammar else {
            return Ok(None);
        };
        let _permit = self.grammars.acquire().await;
        let form = self.make(move |app| app.prompter.model().constraints()?.compile(&grammar));
        Ok(Some(form.await?))
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

    #[test]
    fn a_body_of_too_many_values_is_refused_before_it_is_read() {
        let body = format!("[{}0]", "0,".repeat(MOST_VALUES));
        let refused = parse::<Value>(body.as_bytes(), MOST_VALUES).expect_err("too many");
        assert!(refused.message.contains("more than the 262144"));
    }
}
