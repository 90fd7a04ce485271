//! Tool calls in a model's answer. Models write them in the format that their chat template shows. Each format is a row
//! of a table: the text before a call, the text after it, and the parser of the text in between.

// Only the server restricts calls.
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

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub name: String,
    /// A JSON object.
    pub arguments: Value,
}

/// A part of an answer outside thoughts.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Text(String),
    Call(Call),
}

/// A format of calls.
// Only the server uses the name and the grammar.
#[cfg_attr(not(feature = "serve"), allow(dead_code))]
#[derive(Debug)]
pub struct Format {
    pub name: &'static str,
    /// Texts that a template of this format contains, all of them.
    shown: &'static [&'static str],
    /// The text before the calls.
    pub open: &'static str,
    /// The text after the calls; if empty, they extend to the end of the answer.
    pub close: &'static str,
    /// Whether calls can occur only at the start of an answer.
    only_first: bool,
    /// Parses the text between `open` and `close`; `None` if it is not a call.
    read: fn(&str, &Tools) -> Option<Vec<Call>>,
    /// The texts before the first call, between two calls, and after the last call. The text between is empty if each
    /// call has its marks.
    around: [&'static str; 3],
    /// Writes the grammar of the calls of a function, from its name, the schema of its arguments, and its number.
    write: fn(&str, &Value, usize) -> String,
}

/// The formats, those with the most specific texts first.
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
    /// The format that a chat template shows to its model; `None` if the template has no calls.
    pub fn of_template(source: &str) -> Option<&'static Format> {
        let shows = |format: &&Format| format.shown.iter().all(|text| source.contains(text));
        FORMATS.iter().find(shows)
    }

    /// Names of the control tokens that calls contain.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        [self.open, self.close, PYTHON_TAG]
            .into_iter()
            .filter(|mark| !mark.is_empty())
    }
}

/// A control token that marks a call of Llama 3.
const PYTHON_TAG: &str = "<|python_tag|>";

/// JSON schemas of the functions that may be called.
#[derive(Debug, Clone, Default)]
pub struct Tools(pub Vec<Value>);

impl Tools {
    /// Parses an argument that a model wrote without quotes, as the type in the function's schema.
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

/// Finds calls in an answer that arrives in pieces.
pub struct Calls {
    format: &'static Format,
    tools: Tools,
    /// Text that cannot yet be classified as text or call.
    held: String,
    inside: bool,
    /// Whether any text preceded.
    begun: bool,
    called: bool,
}

impl Calls {
    /// Starts an answer in `format`, of a model that may call `tools`.
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

    /// Returns the rest at the end of the answer. An incomplete call is text.
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

    /// The text before a call that is not part of the call.
    fn opening(&self) -> &'static str {
        if self.format.only_first {
            ""
        } else {
            self.format.open
        }
    }

    /// Finds one call or text; returns false if more input is needed.
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

    /// Finds the calls before a closing text. A closing text inside an argument is skipped, since the text before it
    /// cannot be parsed.
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
        // White space between calls is not text.
        if text.is_empty() || (self.called && text.trim().is_empty()) {
            return;
        }
        self.begun = true;
        found.push(Said::Text(text.into()));
    }
}

/// Removes the control token before a call.
fn body(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix(PYTHON_TAG).unwrap_or(text)
}
