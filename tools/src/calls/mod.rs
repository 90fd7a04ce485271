//! Calls of tools in a model's answer. Models write them in the format that their chat template shows them; a format is one row of a
//! table: what comes before a call, what comes after it, and how the text between is read.

// The server alone restricts calls.
#[cfg_attr(not(feature = "serve"), allow(dead_code))]
mod grammar;
mod json;
mod python;
mod tags;
#[cfg(test)]
mod tests;

#[cfg(feature = "serve")]
pub use grammar::Needed;
use serde_json::Value;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: Value,
}

/// A part of an answer outside of thoughts.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Text(String),
    Call(Call),
}

/// A format of calls.
// Its name and its grammar are for the server.
#[cfg_attr(not(feature = "serve"), allow(dead_code))]
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// A text of which the template holds one, in all of these.
    shown: &'static [&'static str],
    /// The text before calls.
    pub open: &'static str,
    /// The text after them; the end of the answer if empty.
    pub close: &'static str,
    /// Calls open an answer or are not there.
    only_first: bool,
    /// Reads the text between; none if it is no call.
    read: fn(&str, &Tools) -> Option<Vec<Call>>,
    /// The texts before the first call, between two, and after the last one; nothing is between calls that have marks of their own.
    around: [&'static str; 3],
    /// Writes a grammar of the calls of a function: its name, the schema of its arguments, and its number.
    write: fn(&str, &Value, usize) -> String,
}

/// The formats, those with the most particular texts first.
static FORMATS: [Format; 8] = [
    Format {
        name: "qwen3_coder",
        shown: &["<function=", "<parameter="],
        open: "<tool_call>",
        close: "</tool_call>",
        only_first: false,
        read: tags::functions,
        around: ["\n", "", "\n"],
        write: grammar::functions,
    },
    Format {
        name: "bailing",
        shown: &["<arg_key>"],
        open: "<tool_call>",
        close: "</tool_call>",
        only_first: false,
        read: tags::pairs,
        around: ["", "", "\n"],
        write: grammar::pairs,
    },
    Format {
        name: "lfm2",
        shown: &["<|tool_call_start|>"],
        open: "<|tool_call_start|>",
        close: "<|tool_call_end|>",
        only_first: false,
        read: python::calls,
        around: ["[", ", ", "]"],
        write: grammar::python,
    },
    Format {
        name: "nemotron",
        shown: &["<TOOLCALL>"],
        open: "<TOOLCALL>",
        close: "</TOOLCALL>",
        only_first: false,
        read: json::calls,
        around: ["[", ", ", "]"],
        write: grammar::arguments,
    },
    Format {
        name: "granite",
        shown: &["<|tool_call|>"],
        open: "<|tool_call|>",
        close: "",
        only_first: false,
        read: json::calls,
        around: ["[", ", ", "]"],
        write: grammar::arguments,
    },
    Format {
        name: "minimax",
        shown: &["<tool_calls>"],
        open: "<tool_calls>",
        close: "</tool_calls>",
        only_first: false,
        read: json::calls,
        around: ["\n", "\n", "\n"],
        write: grammar::arguments,
    },
    Format {
        name: "hermes",
        shown: &["<tool_call>"],
        open: "<tool_call>",
        close: "</tool_call>",
        only_first: false,
        read: json::calls,
        around: ["\n", "", "\n"],
        write: grammar::arguments,
    },
    Format {
        name: "llama3",
        shown: &["\"parameters\": "],
        open: "{",
        close: "",
        only_first: true,
        read: json::calls,
        around: ["", "", ""],
        write: grammar::parameters,
    },
];

impl Format {
    /// The format that a chat template shows its model; none if it has no calls.
    pub fn of_template(source: &str) -> Option<&'static Format> {
        let shows = |format: &&Format| format.shown.iter().all(|text| source.contains(text));
        FORMATS.iter().find(shows)
    }

    /// The control tokens that calls are made of, by their names.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        [self.open, self.close, PYTHON_TAG]
            .into_iter()
            .filter(|mark| !mark.is_empty())
    }
}

/// A control token before a call of Llama 3, which says no more than that it is one.
const PYTHON_TAG: &str = "<|python_tag|>";

/// The tools that may be called, as JSON schemas of functions.
#[derive(Debug, Clone, Default)]
pub struct Tools(pub Vec<Value>);

impl Tools {
    /// The value of an argument that a model wrote without quotes, by the type that the function's schema gives it.
    fn value(&self, function: &str, key: &str, text: &str) -> Value {
        let functions = self
            .0
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool));
        let kind = functions
            .filter(|tool| tool["name"] == function)
            .map(|tool| &tool["parameters"]["properties"][key]["type"])
            .next();
        if kind.is_some_and(|kind| kind == "string") {
            return text.into();
        }
        let plain = match text.trim() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        serde_json::from_str(plain).unwrap_or_else(|_| text.into())
    }
}

/// Finds calls in an answer that comes in pieces.
pub struct Calls {
    format: &'static Format,
    tools: Tools,
    /// Text that is not known to be one thing or the other.
    held: String,
    inside: bool,
    /// Something was said or called before.
    begun: bool,
    called: bool,
}

impl Calls {
    /// An answer in a format, of a model that may call `tools`.
    pub fn new(format: &'static Format, tools: Tools) -> Self {
        Calls {
            format,
            tools,
            held: String::new(),
            inside: false,
            begun: false,
            called: false,
        }
    }

    /// Takes a piece of text.
    pub fn push(&mut self, piece: &str) -> Vec<Said> {
        self.held.push_str(piece);
        let mut found = Vec::new();
        while self.advance(&mut found) {}
        found
    }

    /// The rest of the answer, at its end. A call that is not whole is text.
    pub fn finish(&mut self) -> Vec<Said> {
        let mut found = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self
            .inside
            .then(|| (self.format.read)(body(&rest), &self.tools))
        {
            Some(Some(calls)) => found.extend(calls.into_iter().map(Said::Call)),
            Some(None) => self.say(&format!("{}{rest}", self.opening()), &mut found),
            None => self.say(&rest, &mut found),
        }
        self.inside = false;
        found
    }

    /// The text before a call that is not a part of it.
    fn opening(&self) -> &'static str {
        if self.format.only_first {
            ""
        } else {
            self.format.open
        }
    }

    /// One call or text; false if more has to come.
    fn advance(&mut self, found: &mut Vec<Said>) -> bool {
        if self.inside {
            return self.close(found);
        }
        if self.format.only_first {
            let text = self.held.trim_start();
            let is_call = text.starts_with(self.format.open) || text.starts_with(PYTHON_TAG);
            if !self.begun && is_call {
                self.inside = true;
                return false;
            }
            if !self.begun && (PYTHON_TAG.starts_with(text)) {
                return false;
            }
            let text = std::mem::take(&mut self.held);
            self.say(&text, found);
            return false;
        }
        let open = self.format.open;
        if let Some(at) = self.held.find(open) {
            let rest = self.held.split_off(at + open.len());
            let text = std::mem::replace(&mut self.held, rest);
            self.say(&text[..at], found);
            self.inside = true;
            return true;
        }
        let held = (1..open.len())
            .rev()
            .find(|&length| self.held.ends_with(&open[..length]));
        let rest = self.held.split_off(self.held.len() - held.unwrap_or(0));
        let text = std::mem::replace(&mut self.held, rest);
        self.say(&text, found);
        false
    }

    /// The calls before a closing text. One inside of an argument closes nothing: what is before it cannot be read.
    fn close(&mut self, found: &mut Vec<Said>) -> bool {
        let close = self.format.close;
        if close.is_empty() {
            return false;
        }
        let ends = self.held.match_indices(close).map(|(at, _)| at);
        let calls = ends
            .filter_map(|at| Some((at, (self.format.read)(&self.held[..at], &self.tools)?)))
            .next();
        let Some((at, calls)) = calls else {
            return false;
        };
        self.held.drain(..at + close.len());
        self.inside = false;
        self.called = true;
        found.extend(calls.into_iter().map(Said::Call));
        true
    }

    fn say(&mut self, text: &str, found: &mut Vec<Said>) {
        // White space between calls is no text.
        if text.is_empty() || (self.called && text.trim().is_empty()) {
            return;
        }
        self.begun = true;
        found.push(Said::Text(text.into()));
    }
}

/// The text of a call without the control token before it.
fn body(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix(PYTHON_TAG).unwrap_or(text)
}
