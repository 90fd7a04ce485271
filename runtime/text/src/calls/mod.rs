//! Reads a model's answer: thoughts, content and tool calls. A row of a table describes each format of calls; the parser is tolerant.

mod formats;
mod grammar;
mod head;
mod json;
mod marks;
mod object;
mod parser;
#[cfg(test)]
mod pieces_tests;
#[cfg(test)]
mod rows_tests;
mod tags;
#[cfg(test)]
mod tests;
mod thoughts;
mod tools;
#[cfg(test)]
mod written_tests;

pub use formats::CallFormat;
pub use grammar::{GrammarSettings, NeededCalls};
pub use parser::AnswerParser;
pub use thoughts::ThoughtTags;
pub use tools::Tools;

/// A part of an answer, as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerPart {
    /// More of the model's thoughts.
    Reasoning(String),
    /// More of the text.
    Content(String),
    /// A tool call begins.
    CallBegins {
        /// The function's name.
        name: String,
        /// The call's id, if the model wrote one.
        id: Option<String>,
    },
    /// The last call's id, if the model writes it after the name.
    CallId(String),
    /// More of the last call's arguments: JSON, which is complete unless a limit cuts the answer.
    CallArguments(String),
    /// The content so far was a thought that no tag opened. A stream cannot take it back.
    ContentWasReasoning,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// The call's id, if the model wrote one.
    pub id: Option<String>,
    /// The arguments: a JSON object, incomplete if a limit cut the answer.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as a value. What a limit cut off is left out.
    pub fn value(&self) -> serde_json::Value {
        let whole = serde_json::from_str(&self.arguments).ok();
        let guessed = || json::Literal::guess(&self.arguments).0;
        whole
            .or_else(guessed)
            .unwrap_or_else(|| serde_json::json!({}))
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The model's thoughts.
    pub reasoning: String,
    /// The text.
    pub content: String,
    /// The tool calls.
    pub calls: Vec<ToolCall>,
}

impl Answer {
    /// Adds a part.
    pub fn add(&mut self, part: &AnswerPart) {
        match part {
            AnswerPart::Reasoning(text) => self.reasoning += text,
            AnswerPart::Content(text) => self.content += text,
            AnswerPart::CallBegins { name, id } => self.calls.push(ToolCall {
                name: name.clone(),
                id: id.clone(),
                arguments: String::new(),
            }),
            AnswerPart::CallId(id) => {
                if let Some(call) = self.calls.last_mut() {
                    call.id = Some(id.clone());
                }
            }
            AnswerPart::CallArguments(json) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += json;
                }
            }
            AnswerPart::ContentWasReasoning => {
                self.reasoning += std::mem::take(&mut self.content).trim()
            }
        }
    }
}

/// Where an answer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At its beginning: a thought may follow.
    #[default]
    Answer,
    /// Inside a thought that the prompt opened.
    Thought,
    /// Inside the content: the prompt closed the thought, or begins the content.
    Content,
}

/// How a model writes its answer.
#[derive(Clone, Debug)]
pub struct AnswerSyntax {
    /// The format of calls; `None` if the answer has no calls.
    pub format: Option<&'static CallFormat>,
    /// The functions that may be called.
    pub tools: Tools,
    /// The tags around thoughts.
    pub tags: ThoughtTags,
    /// Whether the template knows thoughts, so that a closing tag without an opening one ends a thought.
    pub has_thoughts: bool,
    /// Where the answer begins.
    pub start: Start,
    /// Whether thoughts stay in the content, with their tags.
    pub keeps_thoughts: bool,
}

impl AnswerSyntax {
    /// The syntax of a model with this template, whose vocabulary says which texts are tokens. `tools` are the functions that the
    /// prompt lists; without tools the answer has no calls.
    pub fn of_model(template: &str, is_token: impl Fn(&str) -> bool, tools: Tools) -> Self {
        let tags = ThoughtTags::of_template(template);
        let format = match tools.0.is_empty() {
            true => CallFormat::of_model(template, is_token),
            false => Some(CallFormat::for_tools(template, is_token)),
        };
        // Channels separate thoughts from content, with and without tools.
        let is_needed = |format: &&CallFormat| {
            !tools.0.is_empty() || format.channels.is_some() || !format.wrappers.is_empty()
        };
        AnswerSyntax {
            format: format.filter(is_needed),
            tools,
            tags: tags.unwrap_or(ThoughtTags::THINK),
            has_thoughts: tags.is_some(),
            start: Start::Answer,
            keeps_thoughts: false,
        }
    }

    /// Where the answer to `prompt` begins.
    pub fn start_after(&self, prompt: &str) -> Start {
        if self.tags.are_open(prompt) {
            Start::Thought
        } else if self.has_thoughts && prompt.trim_end().ends_with(self.tags.close) {
            Start::Content
        } else {
            Start::Answer
        }
    }

    /// Texts that may be control tokens of the vocabulary, which the answer must show.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.format.map(CallFormat::marks).unwrap_or_default();
        marks.extend([self.tags.open.trim(), self.tags.close]);
        marks
    }
}
