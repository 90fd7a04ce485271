//! The fields of requests: one table with names, types, ranges and interfaces. Bodies are checked against it, and the table in
//! serve.md is made from it. A null is an absent field, equal duplicates are one field, and fields that the table lacks are ignored.

use serde_json::{Map, Value};
use waterline_quant::values_at_most;

use super::refusal::Refusal;

/// Maximum answers to a request.
pub const MOST_ANSWERS: i128 = 128;
/// Maximum stop texts.
pub const MOST_STOPS: usize = 64;
/// Maximum alternatives that are reported for a token.
const MOST_LOGPROBS: i128 = 20;
/// Largest count that all clients can write: the integers of JavaScript.
const MOST_COUNT: i128 = 1 << 53;

/// An interface.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Face {
    Chat,
    Completions,
    Responses,
    Anthropic,
    Ollama,
    Native,
    Embeddings,
}

impl Face {
    /// The letter of the interface in the table.
    fn letter(self) -> char {
        match self {
            Face::Chat => 'C',
            Face::Completions => 'T',
            Face::Responses => 'R',
            Face::Anthropic => 'A',
            Face::Ollama => 'O',
            Face::Native => 'L',
            Face::Embeddings => 'E',
        }
    }
}

/// The type and range of a field.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Flag,
    Whole(i128, i128),
    /// A flag, or a whole number.
    FlagOrWhole(i128, i128),
    Number(f64, f64),
    Text,
    /// A text, or a list of texts.
    Texts,
    List,
    Object,
    /// Checked where it is read.
    Any,
}

impl Kind {
    fn expected(self) -> String {
        match self {
            Kind::Flag => "true or false".into(),
            Kind::Whole(least, MOST_COUNT) => format!("whole number from {least}"),
            Kind::Whole(i128::MIN, _) => "whole number".into(),
            Kind::Whole(least, most) => format!("whole number, {least} to {most}"),
            Kind::FlagOrWhole(least, most) => {
                format!("true, false or whole number, {least} to {most}")
            }
            Kind::Number(least, most) => format!("number, {least} to {most}"),
            Kind::Text => "text".into(),
            Kind::Texts => format!("text, or list of at most {MOST_STOPS} texts"),
            Kind::List => "list".into(),
            Kind::Object => "object".into(),
            Kind::Any => "any".into(),
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Kind::Flag => value.is_boolean(),
            Kind::Whole(least, most) => {
                whole(value).is_some_and(|number| (least..=most).contains(&number))
            }
            Kind::FlagOrWhole(least, most) => {
                value.is_boolean() || Kind::Whole(least, most).fits(value)
            }
            Kind::Number(least, most) => value
                .as_f64()
                .is_some_and(|number| (least..=most).contains(&number)),
            Kind::Text => value.is_string(),
            Kind::Texts => match value {
                Value::Array(all) => all.len() <= MOST_STOPS && all.iter().all(Value::is_string),
                other => other.is_string(),
            },
            Kind::List => value.is_array(),
            Kind::Object => value.is_object(),
            Kind::Any => true,
        }
    }
}

/// A whole number, also one that is written with a point.
fn whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let exact = number.as_i64().map(i128::from);
    let exact = exact.or_else(|| number.as_u64().map(i128::from));
    exact.or_else(|| {
        let number = number.as_f64()?;
        let fits = number.fract() == 0.0 && number.abs() <= MOST_COUNT as f64;
        fits.then_some(number as i128)
    })
}

/// Whether two values are one; a whole number may be written with a point.
fn are_equal(one: &Value, other: &Value) -> bool {
    one == other || whole(one).is_some_and(|number| whole(other) == Some(number))
}

/// A field: its names, the first of which the server uses; its type; the letters of its interfaces.
struct Field(&'static [&'static str], Kind, &'static str);

const ALL: &str = "CTRAOL";
const LIMITS: &[&str] = &[
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n_predict",
    "num_predict",
];

/// The fields.
const FIELDS: &[Field] = &[
    Field(LIMITS, Kind::Whole(-2, MOST_COUNT), ALL),
    Field(&["min_tokens"], Kind::Whole(0, MOST_COUNT), ALL),
    Field(&["seed"], Kind::Whole(i128::MIN, i128::MAX), ALL),
    Field(&["top_k"], Kind::Whole(-1, MOST_COUNT), ALL),
    Field(&["repeat_last_n"], Kind::Whole(-1, 65_536), ALL),
    Field(&["temperature"], Kind::Number(0.0, 100.0), ALL),
    Field(&["top_p"], Kind::Number(0.0, 1.0), ALL),
    Field(&["min_p"], Kind::Number(0.0, 1.0), ALL),
    Field(&["presence_penalty"], Kind::Number(-1e6, 1e6), ALL),
    Field(&["frequency_penalty"], Kind::Number(-1e6, 1e6), ALL),
    Field(
        &["repetition_penalty", "repeat_penalty"],
        Kind::Number(0.001, 1000.0),
        ALL,
    ),
    Field(
        &[
            "thinking_budget_tokens",
            "reasoning_budget_tokens",
            "thinking_token_budget",
        ],
        Kind::Whole(-1, MOST_COUNT),
        ALL,
    ),
    Field(&["stream"], Kind::Flag, ALL),
    Field(&["ignore_eos"], Kind::Flag, ALL),
    Field(&["return_progress"], Kind::Flag, "CTL"),
    Field(&["stop", "stop_sequences"], Kind::Texts, ALL),
    Field(&["logit_bias"], Kind::Any, ALL),
    Field(&["grammar"], Kind::Text, ALL),
    Field(&["state"], Kind::Text, ALL),
    Field(&["receipt"], Kind::Flag, "CTL"),
    Field(&["json_schema"], Kind::Any, ALL),
    Field(&["response_format"], Kind::Object, ALL),
    Field(&["n"], Kind::Whole(1, MOST_ANSWERS), "CTL"),
    Field(&["stream_options"], Kind::Object, "CT"),
    Field(
        &["logprobs", "n_probs"],
        Kind::FlagOrWhole(0, MOST_LOGPROBS),
        "CTOL",
    ),
    Field(&["top_logprobs"], Kind::Whole(0, MOST_LOGPROBS), "CRO"),
    Field(&["messages"], Kind::List, "CAO"),
    Field(&["prompt"], Kind::Any, "TROL"),
    Field(&["tools"], Kind::List, "CRAO"),
    Field(&["tool_choice"], Kind::Any, "CRA"),
    Field(&["parallel_tool_calls"], Kind::Flag, "CR"),
    Field(&["chat_template_kwargs"], Kind::Object, "CRA"),
    Field(&["reasoning_effort"], Kind::Any, "CR"),
    Field(&["documents"], Kind::Any, "CR"),
    Field(&["input"], Kind::Any, "ROE"),
    Field(&["encoding_format"], Kind::Text, "E"),
    Field(&["dimensions"], Kind::Whole(1, MOST_COUNT), "OE"),
    Field(&["instructions"], Kind::Text, "R"),
    Field(&["previous_response_id"], Kind::Text, "R"),
    Field(&["truncation"], Kind::Text, "R"),
    Field(&["text"], Kind::Object, "R"),
    Field(&["reasoning"], Kind::Object, "R"),
    Field(&["store"], Kind::Flag, "R"),
    Field(&["include"], Kind::List, "R"),
    Field(&["echo"], Kind::Flag, "T"),
    Field(&["suffix"], Kind::Text, "TO"),
    Field(&["system"], Kind::Any, "AO"),
    Field(&["think"], Kind::Any, "O"),
    Field(&["raw"], Kind::Flag, "O"),
    Field(&["truncate"], Kind::Flag, "O"),
    Field(&["input_prefix"], Kind::Text, "L"),
    Field(&["input_suffix"], Kind::Text, "L"),
    Field(&["input_extra"], Kind::List, "L"),
    Field(&["thinking"], Kind::Object, "A"),
    Field(&["output_config"], Kind::Object, "A"),
];

/// The checked fields of a request, by their first names.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body of at most `most` JSON values and checks its fields.
    pub fn parse(body: &[u8], most: usize, face: Face) -> Result<Self, Refusal> {
        Fields::check(object(body, most)?, face)
    }

    /// Checks the fields of a request.
    pub fn check(mut body: Map<String, Value>, face: Face) -> Result<Self, Refusal> {
        body.retain(|_, value| !value.is_null());
        for Field(names, kind, faces) in FIELDS {
            if !faces.contains(face.letter()) {
                // Nobody may read what was not checked.
                names.iter().for_each(|name| drop(body.remove(*name)));
                continue;
            }
            let mut found: Option<(&str, Value)> = None;
            for name in *names {
                let Some(value) = body.remove(*name) else {
                    continue;
                };
                if !kind.fits(&value) {
                    let expected = kind.expected();
                    let shown: String = value.to_string().chars().take(40).collect();
                    return Err(Refusal::bad(format!(
                        "{name}: expected {expected}, found {shown}"
                    ))
                    .named("invalid_value", name));
                }
                match &found {
                    Some((first, other)) if !are_equal(other, &value) => {
                        return Err(Refusal::bad(format!("{first} and {name} differ")));
                    }
                    _ => found = Some((name, value)),
                }
            }
            if let Some((_, value)) = found {
                body.insert(names[0].into(), value);
            }
        }
        Ok(Fields(body))
    }

    /// A field, null if it is absent.
    pub fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    /// Moves a field out of the request.
    pub fn take(&mut self, name: &str) -> Value {
        self.0.remove(name).unwrap_or(Value::Null)
    }

    /// Moves a list out of the request.
    pub fn take_list(&mut self, name: &str) -> Vec<Value> {
        match self.take(name) {
            Value::Array(list) => list,
            _ => Vec::new(),
        }
    }

    /// Sets a field that the request lacks.
    pub fn default(&mut self, name: &str, value: impl Into<Value>) {
        self.0.entry(name).or_insert_with(|| value.into());
    }

    /// Whether a flag is set.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == true
    }

    pub fn whole(&self, name: &str) -> Option<i128> {
        whole(self.get(name))
    }

    pub fn number(&self, name: &str) -> Option<f32> {
        self.get(name).as_f64().map(|number| number as f32)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).as_str()
    }

    /// A text or a list of texts.
    pub fn texts(&self, name: &str) -> Vec<String> {
        let text = |value: &Value| value.as_str().map(String::from);
        match self.get(name) {
            Value::Array(all) => all.iter().filter_map(text).collect(),
            one => text(one).into_iter().collect(),
        }
    }
}

/// Parses the object of a body with at most `most` values.
pub fn object(body: &[u8], most: usize) -> Result<Map<String, Value>, Refusal> {
    let values = values_at_most(body);
    if values > most {
        return Err(Refusal::bad(format!(
            "the body: {values} values, more than the {most} that are read"
        )));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Refusal::bad("the body: expected an object")),
        Err(error) => Err(Refusal::bad(format!("the body: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fmt::Write;

    /// The table of the fields: a row for each type, range and choice of interfaces.
    fn table() -> String {
        let mut rows: Vec<(String, String, String)> = Vec::new();
        for Field(names, kind, faces) in FIELDS {
            let faces = if *faces == ALL { "" } else { faces };
            let mut shown = format!("`{}`", names[0]);
            if names.len() > 1 {
                let others: Vec<String> =
                    names[1..].iter().map(|name| format!("`{name}`")).collect();
                let _ = write!(shown, " ({})", others.join(", "));
            }
            let same =
                |row: &&mut (String, String, String)| row.0 == kind.expected() && row.1 == faces;
            match rows.iter_mut().find(same) {
                Some(row) => row.2 = format!("{}, {shown}", row.2),
                None => rows.push((kind.expected(), faces.into(), shown)),
            }
        }
        let mut table = String::from("| type | interfaces | fields |\n|---|---|---|\n");
        for (kind, faces, names) in rows {
            let _ = writeln!(table, "| {kind} | {faces} | {names} |");
        }
        table
    }

    #[test]
    fn the_document_has_the_table_of_the_fields() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/docs/serve.md");
        let page = std::fs::read_to_string(path).expect("serve.md");
        let table = table();
        assert!(page.contains(&table), "serve.md lacks this table:\n{table}");
    }

    fn check(body: &Value) -> Result<Fields, String> {
        let body = body.as_object().expect("an object").clone();
        Fields::check(body, Face::Chat).map_err(|refusal| refusal.message)
    }

    #[test]
    fn nulls_are_absent_and_equal_duplicates_are_one() {
        let read = check(&json!({"max_tokens": 2, "max_completion_tokens": 3}));
        let sentence = "max_tokens and max_completion_tokens differ";
        assert_eq!(read.err().as_deref(), Some(sentence));
        let read =
            check(&json!({"n": null, "max_tokens": 2, "max_completion_tokens": 2.0, "x": 1}));
        let read = read.expect("fields");
        assert_eq!((read.whole("n"), read.whole("max_tokens")), (None, Some(2)));
    }

    #[test]
    fn fields_of_other_interfaces_are_ignored() {
        let body = json!({"n": -1, "echo": "x", "max_tokens": 2});
        for face in [Face::Responses, Face::Anthropic, Face::Ollama] {
            let body = body.as_object().expect("an object").clone();
            let read = Fields::check(body, face).map_err(|refusal| refusal.message);
            let read = read.expect("fields");
            assert_eq!((read.whole("n"), read.whole("max_tokens")), (None, Some(2)));
            assert!(read.get("echo").is_null());
        }
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let refused = |body| check(&body).err().expect("a refusal");
        let sentence = "temperature: expected number, 0 to 100, found -1";
        assert_eq!(refused(json!({"temperature": -1})), sentence);
        let sentence = "n: expected whole number, 1 to 128, found 1.5";
        assert_eq!(refused(json!({"n": 1.5})), sentence);
        assert!(check(&json!({"n": 2.0, "seed": -1, "seed2": 1})).is_ok());
    }

    #[test]
    fn a_body_of_too_many_values_is_refused_before_it_is_read() {
        let body = format!("[{}0]", "0,".repeat(100));
        let refused = object(body.as_bytes(), 100).expect_err("too many");
        assert!(refused.message.contains("more than the 100"));
    }
}
