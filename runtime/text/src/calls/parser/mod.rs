//! Splits an answer that arrives in pieces into thoughts, content and calls. How the answer is cut into pieces changes nothing.

mod body;
mod header;
mod text;

use super::json::Literal;
use super::marks::{LONGEST_HEAD, closings, stop_of};
use super::object::ObjectCall;
use super::tags::TagCall;
use super::{AnswerPart, AnswerSyntax, Start};

/// Most steps that read nothing.
const MOST_IDLE: usize = 8;

/// The part of an answer to which the next characters belong.
enum Place {
    /// Content or a thought.
    Text,
    /// A header of a message with channels.
    Header,
    /// The beginning of a call's body.
    Head,
    Object(ObjectCall),
    Arguments(Literal),
    Tags(Box<TagCall>),
    /// After the arguments of a call.
    After,
}

/// A call inside a thought: a call only if the thought does not go on after it.
#[derive(Default)]
struct Pending {
    raw: String,
    parts: Vec<AnswerPart>,
    /// Whether the thought has ended.
    is_closed: bool,
    /// Calls before it.
    calls: usize,
}

/// Splits an answer that arrives in pieces.
pub struct AnswerParser {
    syntax: AnswerSyntax,
    /// Text that is not decided yet.
    held: String,
    place: Place,
    in_thought: bool,
    /// Whether a thought, content or a call has begun.
    has_begun: bool,
    /// Whether there was a thought, or the prompt decided that there is none.
    had_thought: bool,
    /// The content so far, up to a length at which no thought without an opening tag is expected.
    content: String,
    /// White space that may belong to nothing.
    space: String,
    drops_space: bool,
    at_line_start: bool,
    /// Whether calls are inside a section or list.
    in_section: bool,
    /// Text since the opening of a call that is not a call yet.
    raw: String,
    calls: usize,
    pending: Option<Pending>,
    parts: Vec<AnswerPart>,
}

impl AnswerParser {
    /// Starts an answer.
    pub fn new(syntax: AnswerSyntax) -> Self {
        let channels = syntax.format.and_then(|format| format.channels);
        let in_thought = syntax.start == Start::Thought;
        AnswerParser {
            place: if channels.is_some() && syntax.start == Start::Answer {
                Place::Header
            } else {
                Place::Text
            },
            has_begun: syntax.start != Start::Answer,
            had_thought: in_thought || syntax.start == Start::Content,
            in_thought,
            drops_space: in_thought,
            syntax,
            held: String::new(),
            content: String::new(),
            space: String::new(),
            at_line_start: true,
            in_section: false,
            raw: String::new(),
            calls: 0,
            pending: None,
            parts: Vec::new(),
        }
    }

    /// Adds a piece of the answer and returns the parts that it completes.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        self.held.push_str(piece);
        self.run(false);
        std::mem::take(&mut self.parts)
    }

    /// Whether the answer so far ends inside a thought.
    pub fn is_thinking(&self) -> bool {
        self.in_thought
    }

    /// Ends the answer and returns the remaining parts. `is_cut`: a limit ended it, so that an open call stays incomplete.
    pub fn finish(&mut self, is_cut: bool) -> Vec<AnswerPart> {
        if is_cut && self.ends_in_closing() {
            self.held.clear();
        }
        self.run(true);
        match std::mem::replace(&mut self.place, Place::Text) {
            Place::Text | Place::Header | Place::After => {}
            Place::Head => self.restore(),
            Place::Object(call) if !call.has_begun() => {
                let cut = call.named(&self.syntax.tools).filter(|_| is_cut);
                match cut {
                    Some((name, id)) => {
                        self.held.clear();
                        self.begin(&name, id);
                    }
                    None => self.restore(),
                }
            }
            Place::Object(call) => {
                let json = call.rest(is_cut, &self.syntax.tools);
                // If no limit cut the answer, the remaining text is content.
                if is_cut {
                    self.held.clear();
                }
                self.arguments(json);
            }
            Place::Arguments(mut literal) => {
                if !is_cut {
                    literal.finish();
                }
                self.arguments(literal.json);
            }
            Place::Tags(call) => {
                let reads_held = is_cut || call.is_in_value();
                let json = call.rest(is_cut, &self.held);
                if reads_held {
                    self.held.clear();
                }
                self.arguments(json);
            }
        }
        let held = std::mem::take(&mut self.held);
        self.say(&held);
        if let Some(pending) = self.pending.take() {
            // The call ended the thought.
            let mut is_after = false;
            for part in pending.parts {
                is_after |= matches!(part, AnswerPart::CallBegins { .. });
                self.parts.push(match part {
                    AnswerPart::Reasoning(text) if is_after => AnswerPart::Content(text),
                    part => part,
                });
            }
        }
        if !self.in_thought && !self.drops_space {
            let space = std::mem::take(&mut self.space);
            if !space.is_empty() {
                self.parts.push(AnswerPart::Content(space));
            }
        }
        std::mem::take(&mut self.parts)
    }

    /// Whether the text so far ends inside the text that closes a call.
    fn ends_in_closing(&self) -> bool {
        let (Place::After, Some(format)) = (&self.place, self.syntax.format) else {
            return false;
        };
        let marks = [&closings(format)[..], &[format.section[1].trim()]].concat();
        marks.iter().any(|mark| mark.starts_with(self.held.trim()))
    }

    fn run(&mut self, is_last: bool) {
        // Each step reads text or changes the place; a place cannot change more often than this without text.
        let mut idle = 0;
        while idle < MOST_IDLE {
            let before = self.held.len();
            if !self.step(is_last) {
                return;
            }
            idle = if self.held.len() < before {
                0
            } else {
                idle + 1
            };
        }
        debug_assert!(false, "no progress at {:?}", self.held);
        let held = std::mem::take(&mut self.held);
        self.say(&held);
    }

    fn step(&mut self, is_last: bool) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match &mut self.place {
            Place::Text => self.text(is_last),
            Place::Header => self.header(is_last),
            Place::Head => self.head(is_last),
            Place::After => self.after(is_last),
            Place::Arguments(literal) => {
                let stop = stop_of(self.syntax.format);
                let read = literal.push(&self.held, is_last, stop);
                let json = std::mem::take(&mut literal.json);
                let is_done = literal.is_done;
                self.take(read);
                self.arguments(json);
                if is_done {
                    self.place = Place::After;
                }
                read > 0 || is_done
            }
            Place::Object(_) => self.object(is_last),
            Place::Tags(call) => {
                let (read, json, is_done) = call.step(&self.held, is_last);
                self.take(read);
                self.arguments(json);
                if is_done {
                    self.place = Place::After;
                }
                read > 0 || is_done
            }
        }
    }

    /// Removes text from the beginning of what is held.
    fn take(&mut self, length: usize) -> String {
        let rest = self.held.split_off(length);
        let text = std::mem::replace(&mut self.held, rest);
        if let Some(pending) = self.pending.as_mut().filter(|pending| !pending.is_closed) {
            pending.raw.push_str(&text);
        }
        text
    }

    /// Whether the answer so far ends inside the arguments of a call.
    pub fn is_in_call(&self) -> bool {
        match &self.place {
            Place::Arguments(_) | Place::Tags(_) => true,
            Place::Object(call) => call.has_begun(),
            _ => false,
        }
    }

    fn emit(&mut self, part: AnswerPart) {
        match &mut self.pending {
            Some(pending) => pending.parts.push(part),
            None => self.parts.push(part),
        }
    }

    fn arguments(&mut self, json: String) {
        if !json.is_empty() {
            self.emit(AnswerPart::CallArguments(json));
        }
    }

    fn begin(&mut self, name: &str, id: Option<String>) {
        self.release_closed();
        self.raw.clear();
        self.calls += 1;
        self.has_begun = true;
        self.drops_space = true;
        self.space.clear();
        self.emit(AnswerPart::CallBegins {
            name: name.into(),
            id,
        });
    }

    /// Content follows the end of a thought with calls: they were part of the thought.
    fn release_closed(&mut self) {
        if let Some(pending) = self.pending.take_if(|pending| pending.is_closed) {
            self.parts
                .push(AnswerPart::Reasoning(pending.raw.trim_end().into()));
            self.calls = pending.calls;
        }
    }

    /// Adds text outside calls.
    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.at_line_start = text.ends_with('\n') || (self.at_line_start && text.trim().is_empty());
        let mut text = std::mem::take(&mut self.space) + text;
        let starts = !self.has_begun || self.drops_space;
        if starts && text.trim().is_empty() {
            self.space = text;
            return;
        }
        if self.drops_space {
            text = text.trim_start().into();
        }
        (self.has_begun, self.drops_space) = (true, false);
        if self.in_thought && !self.syntax.keeps_thoughts {
            let end = text.trim_end().len();
            self.space = text.split_off(end);
            if !text.is_empty() {
                self.emit(AnswerPart::Reasoning(text));
            }
            return;
        }
        if self.content.len() < LONGEST_HEAD << 6 {
            self.content += &text;
        }
        self.release_closed();
        self.emit(AnswerPart::Content(text));
    }

    /// Makes text of a beginning that turned out to be no call.
    fn restore(&mut self) {
        if self.raw.is_empty() {
            // The opening text is part of the body; it must not open a call again.
            let first = self.held.chars().next().map_or(0, char::len_utf8);
            self.raw = self.take(first);
        }
        let raw = std::mem::take(&mut self.raw);
        self.place = Place::Text;
        self.in_section = false;
        self.say(&raw);
        let is_call = |part: &AnswerPart| matches!(part, AnswerPart::CallBegins { .. });
        let empty =
            |pending: &mut Pending| !pending.is_closed && !pending.parts.iter().any(is_call);
        if let Some(pending) = self.pending.take_if(empty) {
            self.parts.extend(pending.parts);
        }
    }

    /// A call inside a thought is kept until the thought ends or goes on.
    fn begin_pending(&mut self) {
        if self.in_thought && self.pending.is_none() && !self.syntax.keeps_thoughts {
            let raw = std::mem::take(&mut self.space);
            self.pending = Some(Pending {
                raw,
                calls: self.calls,
                ..Pending::default()
            });
        }
    }

    fn open_thought(&mut self) {
        (self.in_thought, self.had_thought, self.has_begun) = (true, true, true);
        self.drops_space = !self.syntax.keeps_thoughts;
        self.space.clear();
    }

    fn close_thought(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.is_closed = true;
        }
        self.in_thought = false;
        if !self.syntax.keeps_thoughts {
            self.drops_space = true;
            self.space.clear();
        }
        self.at_line_start = true;
    }
}
