//! The parts of a call as it arrives: what is before its arguments, its object, what follows it.

use super::super::AnswerPart;
use super::super::formats::Body;
use super::super::head::{self, Arguments, Head};
use super::super::json::Literal;
use super::super::marks::{Begins, LONGEST_HEAD, begins_any, clipped, closings, stop_of};
use super::super::object::ObjectCall;
use super::super::tags::TagCall;
use super::{AnswerParser, Place};

impl AnswerParser {
    /// Reads the text before a call's arguments.
    pub(super) fn head(&mut self, is_last: bool) -> bool {
        let Some(format) = self.syntax.format else {
            self.restore();
            return true;
        };
        // A section may hold calls with marks; a fence may surround JSON.
        let marks = [
            format.call[0].trim(),
            format.section[0].trim(),
            "<|python_tag|>",
            "```json",
            "```",
        ];
        let mut blank = 0;
        let rest = loop {
            let rest = &self.held[blank..];
            match begins_any(rest, &marks, is_last) {
                (Begins::Yes, length) if self.raw.len() < LONGEST_HEAD => {
                    let text = self.take(blank + length);
                    self.raw += &text;
                    return true;
                }
                (Begins::Unknown, _) => return false,
                _ => {}
            }
            match rest.chars().next() {
                Some(c) if c.is_whitespace() || "[,;".contains(c) => blank += c.len_utf8(),
                _ => break rest,
            }
        };
        let is_whole = is_last || rest.len() > LONGEST_HEAD;
        let head = head::read(clipped(rest), format, &self.syntax.tools, is_whole);
        match head {
            Head::Unknown if !is_whole => false,
            Head::Unknown | Head::None => {
                self.restore();
                true
            }
            Head::Object => {
                let text = self.take(blank);
                self.raw += &text;
                let by_key = matches!(format.body, Body::NameAsKey);
                self.place = Place::Object(ObjectCall::new(by_key));
                true
            }
            Head::Call {
                length,
                name,
                id,
                body,
            } => {
                self.take(blank + length);
                self.begin(&name, id);
                self.place = match body {
                    Arguments::Literal => Place::Arguments(Literal::default()),
                    Arguments::Python => {
                        let positions = self.syntax.tools.arguments(&name);
                        Place::Arguments(Literal::arguments(positions.unwrap_or_default()))
                    }
                    Arguments::Tags(tags) => {
                        let call = TagCall::new(tags, format, &name, &self.syntax.tools);
                        Place::Tags(Box::new(call))
                    }
                    Arguments::None => {
                        self.arguments("{}".into());
                        Place::After
                    }
                };
                true
            }
        }
    }

    pub(super) fn object(&mut self, is_last: bool) -> bool {
        let stop = stop_of(self.syntax.format);
        let Place::Object(call) = &mut self.place else {
            return false;
        };
        let step = call.step(&self.held, is_last, stop, &self.syntax.tools);
        let text = self.take(step.read);
        if let Some((name, id)) = step.begins {
            self.begin(&name, id);
        } else if let Place::Object(call) = &self.place
            && !call.has_begun()
        {
            self.raw += &text;
        }
        self.arguments(step.json);
        if let Some(id) = step.id {
            self.emit(AnswerPart::CallId(id));
        }
        if step.is_done {
            match &self.place {
                Place::Object(call) if call.has_begun() => self.place = Place::After,
                _ => self.restore(),
            }
        }
        step.read > 0 || step.is_done || step.begins_value
    }

    /// Reads what follows a call.
    pub(super) fn after(&mut self, is_last: bool) -> bool {
        let Some(format) = self.syntax.format else {
            return false;
        };
        let blank = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[blank..];
        if rest.is_empty() {
            if is_last {
                self.take(blank);
            }
            return false;
        }
        let closings = closings(format);
        let section = format.section[1].trim();
        match begins_any(rest, &[section], is_last) {
            (Begins::Yes, length) => {
                self.take(blank + length);
                self.leave();
                return true;
            }
            (Begins::Unknown, _) => return false,
            _ => {}
        }
        match begins_any(rest, &closings, is_last) {
            (Begins::Yes, length) => {
                self.take(blank + length);
                return true;
            }
            (Begins::Unknown, _) => return false,
            _ => {}
        }
        if let Some(channels) = format.channels {
            match begins_any(rest, channels.ends, is_last) {
                (Begins::Yes, _) => self.take(blank),
                (Begins::Unknown, _) => return false,
                _ => String::new(),
            };
            self.leave();
            return true;
        }
        // Brackets that the model wrote once too often.
        let strays: &[&str] = if self.in_section {
            &["}", "]", ")", "```", ",", ";"]
        } else {
            &["}", "]", ")", "```", ";"]
        };
        match begins_any(rest, strays, is_last) {
            (Begins::Yes, length) => {
                self.take(blank + length);
                return true;
            }
            (Begins::Unknown, _) => return false,
            _ => {}
        }
        if self.in_section || !format.call[0].is_empty() {
            match begins_any(rest, &[format.call[0].trim()], is_last) {
                (Begins::Yes, length) => {
                    self.take(blank);
                    self.raw = self.take(length);
                    self.place = Place::Head;
                    return true;
                }
                (Begins::Unknown, _) => return false,
                _ => {}
            }
        }
        if self.in_section {
            let is_whole = is_last || rest.len() > LONGEST_HEAD;
            match head::begins_call(clipped(rest), format, &self.syntax.tools, is_whole) {
                Begins::Yes => {
                    self.take(blank);
                    self.place = Place::Head;
                    return true;
                }
                Begins::Unknown => return false,
                _ => {}
            }
        }
        self.leave();
        true
    }

    /// Returns from calls to text.
    pub(super) fn leave(&mut self) {
        self.in_section = false;
        self.place = Place::Text;
        self.drops_space = true;
        self.at_line_start = true;
    }
}
