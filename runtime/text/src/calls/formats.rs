//! Formats of tool calls, one row each: the strict grammar, the tolerant parser and the stream are made from it.

use super::Tools;

/// A format of calls.
#[derive(Debug)]
pub struct CallFormat {
    /// A name for messages.
    pub name: &'static str,
    /// Texts that a template of this format contains, all of them.
    pub(super) shown: &'static [&'static str],
    /// A token that only vocabularies of this format have; empty if there is none.
    pub(super) token: &'static str,
    /// The texts before and after all calls.
    pub(super) section: [&'static str; 2],
    /// The texts before and after each call.
    pub(super) call: [&'static str; 2],
    /// The text between two calls, as the grammar writes it.
    pub(super) between: &'static str,
    pub(super) body: Body,
    /// Texts around an answer's content, which are not part of it.
    pub(super) wrappers: &'static [&'static str],
    pub(super) channels: Option<Channels>,
}

/// The name and the arguments of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    /// An object with the keys `name` and `arguments`; calls are the items of a list if `is_list`.
    Object {
        name: &'static str,
        arguments: &'static str,
        is_list: bool,
    },
    /// An object whose key is the name and whose value is the arguments, in a list.
    NameAsKey,
    /// `[NAME, AFTER, ARGUMENTS, END]`: texts before the name, after the name, and after the arguments.
    NameThenObject {
        before: &'static str,
        after: &'static str,
        end: &'static str,
    },
    /// A tag for each argument.
    Tags(Tags),
    /// Calls with keyword arguments, in a list.
    Python,
}

/// The texts around names, keys and values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tags {
    pub name: [&'static str; 2],
    pub key: [&'static str; 2],
    pub value: [&'static str; 2],
    /// The text after the arguments.
    pub end: &'static str,
    /// The end of a tag whose name or key is an attribute; empty if tags have no attributes.
    pub tag_end: &'static str,
    /// White space that the grammar writes: after the name, around a value, after an argument.
    pub space: [&'static str; 3],
}

/// Messages with headers, in place of tags.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels {
    /// The texts before a header. An answer begins inside a header.
    pub open: &'static [&'static str],
    /// The text after a header.
    pub message: &'static str,
    /// The texts that end a message.
    pub ends: &'static [&'static str],
    /// Precedes the name of a function in a header.
    pub function: &'static str,
    /// Words of headers whose messages are thoughts, and are content.
    pub thought: &'static str,
    pub content: &'static [&'static str],
}

const OBJECT: Body = Body::Object {
    name: "name",
    arguments: "arguments",
    is_list: false,
};
const OBJECTS: Body = Body::Object {
    name: "name",
    arguments: "arguments",
    is_list: true,
};
const COMMAND: Body = Body::Object {
    name: "tool_name",
    arguments: "parameters",
    is_list: true,
};

const PLAIN: CallFormat = CallFormat {
    name: "",
    shown: &[],
    token: "",
    section: ["", ""],
    call: ["", ""],
    between: "",
    body: OBJECT,
    wrappers: &[],
    channels: None,
};

/// Tags `<function=NAME>` and `<parameter=KEY>`.
const FUNCTION: Tags = Tags {
    name: ["<function=", ">"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    end: "</function>",
    tag_end: "",
    space: ["\n", "\n", "\n"],
};

/// DeepSeek's markup.
const DSML: Tags = Tags {
    name: ["<｜DSML｜invoke name=\"", "\""],
    key: ["<｜DSML｜parameter name=\"", "\""],
    value: ["", "</｜DSML｜parameter>"],
    end: "</｜DSML｜invoke>",
    tag_end: ">",
    space: ["\n", "", "\n"],
};

/// The formats; a template has the first one whose texts it shows.
pub(super) static FORMATS: [CallFormat; 28] = [
    CallFormat {
        name: "harmony",
        shown: &["<|channel|>", "<|message|>", "<|start|>"],
        call: [
            "<|start|>assistant<|channel|>commentary to=functions.",
            "<|call|>",
        ],
        body: Body::NameThenObject {
            before: "",
            after: " <|constrain|>json<|message|>",
            end: "",
        },
        wrappers: &["<|return|>"],
        channels: Some(Channels {
            open: &["<|start|>assistant", "<|channel|>"],
            message: "<|message|>",
            ends: &["<|end|>", "<|call|>", "<|return|>", "<|start|>"],
            function: "to=functions.",
            thought: "analysis",
            content: &["final", "commentary"],
        }),
        ..PLAIN
    },
    CallFormat {
        name: "functionary-3.2",
        shown: &[">>>", "all\\n"],
        call: [">>>", ""],
        body: Body::NameThenObject {
            before: "",
            after: "\n",
            end: "",
        },
        channels: Some(Channels {
            open: &[">>>"],
            message: "\n",
            ends: &[">>>"],
            function: "",
            thought: "\0",
            content: &["all"],
        }),
        ..PLAIN
    },
    CallFormat {
        name: "kimi-k3",
        shown: &["<|open|>", "<|sep|>"],
        section: ["<|open|>tools<|sep|>", "<|close|>tools<|sep|>"],
        body: Body::Tags(Tags {
            name: ["<|open|>call tool=\"", "\""],
            key: ["<|open|>argument key=\"", "\""],
            value: ["", "<|close|>argument<|sep|>"],
            end: "<|close|>call<|sep|>",
            tag_end: "<|sep|>",
            space: ["", "", ""],
        }),
        wrappers: &[
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
        ],
        ..PLAIN
    },
    CallFormat {
        name: "kimi-k2",
        shown: &["<|tool_calls_section_begin|>"],
        token: "<|tool_calls_section_begin|>",
        section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        call: ["<|tool_call_begin|>", "<|tool_call_end|>"],
        body: Body::NameThenObject {
            before: "functions.",
            after: ":0<|tool_call_argument_begin|>",
            end: "",
        },
        ..PLAIN
    },
    CallFormat {
        name: "deepseek-r1",
        shown: &["<｜tool▁calls▁begin｜>", "```json"],
        section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
        between: "\n",
        body: Body::NameThenObject {
            before: "function<｜tool▁sep｜>",
            after: "\n```json\n",
            end: "\n```",
        },
        ..PLAIN
    },
    CallFormat {
        name: "deepseek-v3.1",
        shown: &["<｜tool▁calls▁begin｜>"],
        token: "<｜tool▁calls▁begin｜>",
        section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
        body: Body::NameThenObject {
            before: "",
            after: "<｜tool▁sep｜>",
            end: "",
        },
        ..PLAIN
    },
    CallFormat {
        name: "deepseek-v3.2",
        shown: &["DSML", "function_calls>"],
        section: ["<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"],
        body: Body::Tags(DSML),
        between: "\n",
        ..PLAIN
    },
    CallFormat {
        name: "deepseek-v4",
        shown: &["DSML"],
        section: ["<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"],
        body: Body::Tags(DSML),
        between: "\n",
        ..PLAIN
    },
    CallFormat {
        name: "mistral-args",
        shown: &["[TOOL_CALLS]", "[ARGS]"],
        token: "[ARGS]",
        call: ["[TOOL_CALLS]", ""],
        body: Body::NameThenObject {
            before: "",
            after: "[ARGS]",
            end: "",
        },
        ..PLAIN
    },
    CallFormat {
        name: "mistral",
        shown: &["[TOOL_CALLS]"],
        token: "[TOOL_CALLS]",
        section: ["[TOOL_CALLS]", ""],
        between: ", ",
        body: OBJECTS,
        ..PLAIN
    },
    CallFormat {
        name: "command-r7b",
        shown: &["<|START_ACTION|>"],
        token: "<|START_ACTION|>",
        section: ["<|START_ACTION|>", "<|END_ACTION|>"],
        between: ", ",
        body: COMMAND,
        wrappers: &[
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ],
        ..PLAIN
    },
    CallFormat {
        name: "command-r",
        shown: &["Action:", "tool_name"],
        section: ["Action:\n```json\n", "\n```"],
        between: ", ",
        body: COMMAND,
        wrappers: &["<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"],
        ..PLAIN
    },
    CallFormat {
        name: "seed-oss",
        shown: &["<seed:tool_call>"],
        token: "<seed:tool_call>",
        call: ["<seed:tool_call>\n", "\n</seed:tool_call>"],
        between: "\n",
        body: Body::Tags(Tags {
            space: ["\n", "", "\n"],
            ..FUNCTION
        }),
        ..PLAIN
    },
    CallFormat {
        name: "minimax-m2",
        shown: &["<minimax:tool_call>"],
        token: "<minimax:tool_call>",
        section: ["<minimax:tool_call>\n", "</minimax:tool_call>"],
        body: Body::Tags(Tags {
            name: ["<invoke name=\"", "\""],
            key: ["<parameter name=\"", "\""],
            value: ["", "</parameter>"],
            end: "</invoke>\n",
            tag_end: ">",
            space: ["\n", "", "\n"],
        }),
        ..PLAIN
    },
    CallFormat {
        name: "qwen3_coder",
        shown: &["<function=", "<parameter="],
        call: ["<tool_call>\n", "\n</tool_call>"],
        between: "\n",
        body: Body::Tags(FUNCTION),
        ..PLAIN
    },
    CallFormat {
        name: "functionary-3.1",
        shown: &["<function="],
        body: Body::NameThenObject {
            before: "<function=",
            after: ">",
            end: "</function>",
        },
        ..PLAIN
    },
    CallFormat {
        name: "minicpm",
        shown: &["<function name="],
        between: "\n",
        body: Body::Tags(Tags {
            name: ["<function name=\"", "\""],
            key: ["<param name=\"", "\""],
            value: ["", "</param>"],
            end: "</function>",
            tag_end: ">",
            space: ["", "", ""],
        }),
        ..PLAIN
    },
    CallFormat {
        name: "glm",
        shown: &["<arg_key>"],
        token: "<arg_key>",
        call: ["<tool_call>", "</tool_call>"],
        between: "\n",
        body: Body::Tags(Tags {
            name: ["", "\n"],
            key: ["<arg_key>", "</arg_key>"],
            value: ["<arg_value>", "</arg_value>"],
            end: "",
            tag_end: "",
            space: ["", "", "\n"],
        }),
        wrappers: &["<|role_end|>"],
        ..PLAIN
    },
    CallFormat {
        name: "lfm2",
        shown: &["<|tool_call_start|>"],
        token: "<|tool_call_start|>",
        section: ["<|tool_call_start|>", "<|tool_call_end|>"],
        between: ", ",
        body: Body::Python,
        ..PLAIN
    },
    CallFormat {
        name: "nemotron",
        shown: &["<TOOLCALL>"],
        section: ["<TOOLCALL>", "</TOOLCALL>"],
        between: ", ",
        body: OBJECTS,
        ..PLAIN
    },
    CallFormat {
        name: "phi-4",
        shown: &["<|tool_call|>", "<|/tool_call|>"],
        token: "<|/tool_call|>",
        section: ["<|tool_call|>", "<|/tool_call|>"],
        between: ", ",
        body: OBJECTS,
        ..PLAIN
    },
    CallFormat {
        name: "granite",
        shown: &["<|tool_call|>"],
        section: ["<|tool_call|>", ""],
        between: ", ",
        body: OBJECTS,
        wrappers: &["<response>", "</response>"],
        ..PLAIN
    },
    CallFormat {
        name: "minimax",
        shown: &["<tool_calls>"],
        section: ["<tool_calls>", "</tool_calls>"],
        between: "\n",
        body: OBJECT,
        ..PLAIN
    },
    CallFormat {
        name: "apertus",
        shown: &["<|tools_prefix|>"],
        token: "<|tools_prefix|>",
        section: ["<|tools_prefix|>", "<|tools_suffix|>"],
        between: ", ",
        body: Body::NameAsKey,
        ..PLAIN
    },
    CallFormat {
        name: "firefunction",
        shown: &["functools"],
        section: ["functools", ""],
        between: ", ",
        body: OBJECTS,
        ..PLAIN
    },
    CallFormat {
        name: "gigachat",
        shown: &["<|function_call|>"],
        call: ["<|function_call|>", ""],
        body: OBJECT,
        ..PLAIN
    },
    CallFormat {
        name: "hermes",
        shown: &["<tool_call>"],
        token: "<tool_call>",
        call: ["<tool_call>\n", "\n</tool_call>"],
        between: "\n",
        body: OBJECT,
        ..PLAIN
    },
    CallFormat {
        name: "llama3",
        shown: &["\"parameters\": "],
        body: Body::Object {
            name: "name",
            arguments: "parameters",
            is_list: false,
        },
        wrappers: &["<|python_tag|>"],
        ..PLAIN
    },
];

impl CallFormat {
    /// All formats.
    pub fn all() -> &'static [CallFormat] {
        &FORMATS
    }

    /// The format in which a model is to call tools: its own, or the generic one if it has none.
    pub fn for_tools(template: &str, is_token: impl Fn(&str) -> bool) -> &'static CallFormat {
        CallFormat::of_model(template, is_token).unwrap_or_else(CallFormat::generic)
    }

    /// Hermes' format, for models whose template has none: [`instructions`](super::Tools::instructions) describe it in the prompt.
    pub fn generic() -> &'static CallFormat {
        let hermes = FORMATS.iter().find(|format| format.name == "hermes");
        hermes.unwrap_or(&FORMATS[0])
    }

    /// The format of a model: its template shows it, or its template lists tools and its vocabulary has the token of a format.
    pub fn of_model(
        template: &str,
        is_token: impl Fn(&str) -> bool,
    ) -> Option<&'static CallFormat> {
        let shows = |format: &&CallFormat| {
            format.shown.iter().all(|text| template.contains(text))
                && (format.shown != ["<tool_call>"] || !template.contains("<|tool_call_start|>"))
        };
        let has_token = |format: &&CallFormat| !format.token.is_empty() && is_token(format.token);
        let lists_tools = Tools::are_listed(template);
        FORMATS
            .iter()
            .find(shows)
            .or_else(|| FORMATS.iter().filter(|_| lists_tools).find(has_token))
    }

    /// Texts of the format that may be control tokens of the vocabulary, which an answer must show.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut texts: Vec<&'static str> = [self.section, self.call].concat();
        texts.extend(self.wrappers);
        match self.body {
            Body::NameThenObject { before, after, end } => texts.extend([before, after, end]),
            Body::Tags(tags) => {
                texts.extend([tags.name, tags.key, tags.value].concat());
                texts.extend([tags.end, tags.tag_end]);
            }
            _ => {}
        }
        if let Some(channels) = self.channels {
            texts.extend(channels.open.iter().chain(channels.ends));
            texts.push(channels.message);
        }
        let mut marks = Vec::new();
        for text in texts {
            marks.push(text.trim());
            for (at, open) in text.char_indices().filter(|(_, c)| "<[".contains(*c)) {
                let close = if open == '<' { '>' } else { ']' };
                marks.extend(text[at..].find(close).map(|end| &text[at..at + end + 1]));
            }
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }

    /// The text with which calls begin; empty if they have none of their own.
    pub(super) fn opening(&self) -> &'static str {
        let opening = if self.section[0].is_empty() {
            self.call[0]
        } else {
            self.section[0]
        };
        match self.body {
            Body::Tags(tags) if opening.is_empty() => tags.name[0],
            Body::NameThenObject { before, .. } if opening.is_empty() => before,
            _ => opening,
        }
        .trim()
    }
}
