//! Splits an answer that arrives in pieces into thoughts, content and calls. How the answer is cut into pieces changes nothing.

use super::formats::{Body, CallFormat};
use super::head::{self, Arguments, Head};
use super::json::Literal;
use super::object::ObjectCall;
use super::tags::TagCall;
use super::{AnswerPart, AnswerSyntax, Start, ThoughtTags};

/// Longest text before the name of a call is known.
pub(super) const LONGEST_HEAD: usize = 512;

/// Most steps that read nothing.
const MOST_IDLE: usize = 8;

/// Whether a text begins with something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    Yes,
    No,
    /// The text is too short to say.
    Unknown,
}

/// Whether `text` begins with `start`.
pub(super) fn begins(text: &str, start: &str, is_last: bool) -> Begins {
    match (text.starts_with(start), !is_last && start.starts_with(text)) {
        _ if start.is_empty() => Begins::No,
        (true, _) => Begins::Yes,
        (_, true) => Begins::Unknown,
        _ => Begins::No,
    }
}

/// Whether `text` begins with one of `starts`; returns its length.
pub(super) fn begins_any(text: &str, starts: &[&str], is_last: bool) -> (Begins, usize) {
    let mut unknown = false;
    for start in starts {
        match begins(text, start, is_last) {
            Begins::Yes => return (Begins::Yes, start.len()),
            Begins::Unknown => unknown = true,
            Begins::No => {}
        }
    }
    (if unknown { Begins::Unknown } else { Begins::No }, 0)
}

/// What the next characters belong to.
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
            Place::Object(call) if !call.has_begun() => self.restore(),
            Place::Object(call) => {
                let json = call.rest(is_cut, &self.syntax.tools);
                self.held.clear();
                self.arguments(json);
            }
            Place::Arguments(mut literal) => {
                if !is_cut {
                    literal.finish();
                }
                self.arguments(literal.json);
            }
            Place::Tags(call) => {
                let json = call.rest(is_cut, &self.held);
                self.held.clear();
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

    /// What began like a call is text.
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

    fn text(&mut self, is_last: bool) -> bool {
        let ThoughtTags { open, close } = self.syntax.tags;
        let channels = self.syntax.format.and_then(|format| format.channels);
        if !self.has_begun && channels.is_none() {
            let blank = self.held.len() - self.held.trim_start().len();
            if blank == self.held.len() && !is_last {
                return false;
            }
            match begins(&self.held[blank..], open.trim(), is_last) {
                Begins::Yes => {
                    let tag = self.take(blank + open.trim().len());
                    self.open_thought();
                    if self.syntax.keeps_thoughts {
                        self.say(&tag);
                    }
                    return true;
                }
                Begins::Unknown => return false,
                Begins::No => {}
            }
        }
        let may_close =
            self.in_thought || (self.syntax.has_thoughts && !self.had_thought && self.calls == 0);
        let mut marks: Vec<&str> = Vec::new();
        if channels.is_none() && may_close {
            marks.push(close);
        }
        let thoughts = marks.len();
        if let Some(format) = self.syntax.format {
            match channels {
                Some(channels) => marks.extend(channels.ends.iter().chain(channels.open)),
                None => marks.extend(openings(format)),
            }
            marks.extend(format.wrappers);
        }
        let found = marks.iter().enumerate().filter_map(|(index, mark)| {
            Some((self.held.find(mark)?, usize::MAX - mark.len(), index))
        });
        let found = found.min();
        let limit = found.map_or(self.held.len(), |(at, ..)| at);
        // A call without its opening can stand at the beginning of a line.
        let keep = marks
            .iter()
            .map(|mark| partial(&self.held, mark))
            .max()
            .unwrap_or(0);
        let keep = if is_last { 0 } else { keep };
        let limit = limit.min(self.held.len() - keep);
        let bare = if channels.is_none() {
            self.bare(limit, is_last)
        } else {
            None
        };
        match bare {
            Some((at, Begins::Yes)) => {
                let text = self.take(at);
                self.say(&text);
                self.begin_pending();
                self.in_section = true;
                self.place = Place::Head;
                return true;
            }
            Some((at, _)) => {
                let text = self.take(at);
                self.say(&text);
                return false;
            }
            None => {}
        }
        let Some((at, _, index)) = found else {
            let text = self.take(self.held.len() - keep);
            self.say(&text);
            return false;
        };
        let mark = marks[index];
        if channels.is_none()
            && index < thoughts
            && !self.in_thought
            && !is_last
            && self.held.len() == at + close.len()
        {
            // The next character says whether the answer speaks of the tag.
            let text = self.take(at);
            self.say(&text);
            return false;
        }
        if channels.is_none()
            && index < thoughts
            && !self.in_thought
            && self.is_text(at, close.len())
        {
            let text = self.take(at + close.len());
            self.had_thought = true;
            self.say(&text);
            return true;
        }
        let text = self.take(at);
        self.say(&text);
        if index < thoughts {
            let was_open = self.in_thought;
            if let Some(pending) = &mut self.pending {
                pending.is_closed = true;
            }
            let tag = self.take(mark.len());
            if !was_open && !self.syntax.keeps_thoughts {
                self.emit(AnswerPart::ContentWasReasoning);
                self.content.clear();
            }
            self.had_thought = true;
            if self.syntax.keeps_thoughts {
                self.say(&tag);
            }
            self.close_thought();
            return true;
        }
        if let Some(channels) = channels
            && (channels.ends.contains(&mark) || channels.open.contains(&mark))
        {
            if self.in_thought && self.syntax.keeps_thoughts {
                self.say(close);
            }
            self.close_thought();
            self.drops_space = false;
            let is_header =
                channels.open.iter().any(|open| open.starts_with(mark)) && !mark.ends_with("end|>");
            if !is_header {
                self.take(mark.len());
            }
            self.place = Place::Header;
            return true;
        }
        let is_wrapper = self
            .syntax
            .format
            .is_some_and(|format| format.wrappers.contains(&mark));
        if is_wrapper {
            // Words in angle brackets surround the whole content; control tokens are never part of it.
            let is_around = mark.starts_with("<|") || self.content.is_empty();
            let is_end = self.held[mark.len()..].trim().is_empty();
            if !is_around && is_end && !is_last {
                return false;
            }
            let text = self.take(mark.len());
            if !is_around && !is_end {
                self.say(&text);
            }
            return true;
        }
        self.begin_pending();
        let is_body = self
            .syntax
            .format
            .is_some_and(|format| is_body(format, mark));
        if !is_body {
            self.raw = self.take(mark.len());
        }
        self.in_section = self
            .syntax
            .format
            .is_some_and(|format| format.section[0].trim() == mark);
        self.place = Place::Head;
        true
    }

    /// Whether a closing tag outside thoughts at `at` is text: the answer speaks of it.
    fn is_text(&self, at: usize, length: usize) -> bool {
        let before = format!("{}{}", self.content, &self.held[..at]);
        let quotes = ['`', '"', '\''];
        before.contains(self.syntax.tags.open.trim())
            || before.ends_with(quotes)
            || self.held[at + length..].starts_with(quotes)
    }

    /// Looks for a call without its opening before `limit`.
    fn bare(&self, limit: usize, is_last: bool) -> Option<(usize, Begins)> {
        let format = self.syntax.format?;
        if self.syntax.tools.0.is_empty() {
            return None;
        }
        let breaks = self.held[..limit].match_indices('\n').map(|(at, _)| at + 1);
        let starts = self.at_line_start.then_some(0).into_iter().chain(breaks);
        for start in starts {
            if start > limit {
                break;
            }
            let (text, is_last) = (
                clipped(&self.held[start..]),
                is_last || self.held.len() - start > LONGEST_HEAD,
            );
            match head::begins_call(text, format, &self.syntax.tools, is_last) {
                Begins::No => {}
                known => return Some((start, known)),
            }
        }
        None
    }

    /// Reads the text before a call's arguments.
    fn head(&mut self, is_last: bool) -> bool {
        let Some(format) = self.syntax.format else {
            self.restore();
            return true;
        };
        let skip = |c: char| c.is_whitespace() || "[,;".contains(c);
        let blank = self.held.len() - self.held.trim_start_matches(skip).len();
        let rest = &self.held[blank..];
        if rest.is_empty() && !is_last {
            return false;
        }
        // A section may hold calls with marks; a fence may surround JSON.
        let fences = ["```json", "```"];
        let marks = [
            format.call[0].trim(),
            format.section[0].trim(),
            "<|python_tag|>",
        ];
        for marks in [&marks[..], &fences[..]] {
            match begins_any(rest, marks, is_last) {
                (Begins::Yes, length) if self.raw.len() < LONGEST_HEAD => {
                    let text = self.take(blank + length);
                    self.raw += &text;
                    return true;
                }
                (Begins::Unknown, _) => return false,
                _ => {}
            }
        }
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

    fn object(&mut self, is_last: bool) -> bool {
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
        step.read > 0 || step.is_done
    }

    /// Reads what follows a call.
    fn after(&mut self, is_last: bool) -> bool {
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
    fn leave(&mut self) {
        self.in_section = false;
        self.place = Place::Text;
        self.drops_space = true;
        self.at_line_start = true;
    }

    /// Reads the header of a message.
    fn header(&mut self, is_last: bool) -> bool {
        let Some(format) = self.syntax.format else {
            return false;
        };
        let Some(channels) = format.channels else {
            return false;
        };
        let by_token = !channels.function.is_empty();
        let starts = [channels.open, &[" to=", "to="]].concat();
        let fits = !by_token || begins_any(&self.held, &starts, is_last).0 != Begins::No;
        let text = clipped(&self.held);
        let Some(end) = text.find(channels.message).filter(|_| fits) else {
            if is_last || !fits || self.held.len() > LONGEST_HEAD {
                self.no_header();
                return true;
            }
            return false;
        };
        let header = &self.held[..end];
        let last = channels
            .open
            .iter()
            .filter_map(|open| Some(header.rfind(open)? + open.len()))
            .max()
            .unwrap_or(0);
        let recipient = match header.split_once("to=") {
            Some((_, rest)) => rest.split(|c: char| c.is_whitespace() || c == '<').next(),
            None if by_token => None,
            None => Some(header[last..].trim()),
        };
        let function = recipient.map(|name| name.strip_prefix("functions.").unwrap_or(name));
        let is_marked = recipient.is_some_and(|name| name.starts_with("functions."));
        let function = function
            .filter(|name| !name.is_empty() && (self.syntax.tools.has(name) || is_marked))
            .map(str::to_string);
        let channel = header[last..]
            .split(|c: char| c.is_whitespace() || c == '<')
            .next()
            .unwrap_or("");
        let is_thought = channel == channels.thought;
        if function.is_none() && !by_token && !channels.content.contains(&header[last..].trim()) {
            self.no_header();
            return true;
        }
        self.take(end + channels.message.len());
        self.place = Place::Text;
        match function {
            Some(name) => {
                self.begin(&name, None);
                self.place = Place::Arguments(Literal::default());
            }
            None if is_thought => {
                self.open_thought();
                if self.syntax.keeps_thoughts {
                    self.say(self.syntax.tags.open);
                }
            }
            None => self.has_begun = true,
        }
        true
    }
}

impl AnswerParser {
    /// What looks like the beginning of a header is text.
    fn no_header(&mut self) {
        self.place = Place::Text;
        self.has_begun = true;
        let Some(channels) = self.syntax.format.and_then(|format| format.channels) else {
            return;
        };
        let opens = |mark: &&&str| {
            channels.open.iter().any(|open| open.starts_with(**mark))
                && self.held.starts_with(**mark)
        };
        if let Some(length) = channels
            .open
            .iter()
            .chain(channels.ends)
            .find(opens)
            .map(|mark| mark.len())
        {
            let text = self.take(length);
            self.say(&text);
        }
    }
}

/// The texts that may follow a call's arguments, before those after all calls.
fn closings(format: &CallFormat) -> [&'static str; 4] {
    let end = match format.body {
        Body::Tags(tags) => tags.end,
        Body::NameThenObject { end, .. } => end,
        _ => "",
    };
    [
        end.trim(),
        format.call[1].trim(),
        "</tool_call>",
        "</function>",
    ]
}

/// The text before which arguments end.
fn stop_of(format: Option<&CallFormat>) -> &'static str {
    let Some(format) = format else { return "" };
    if format
        .channels
        .is_some_and(|channels| !channels.function.is_empty())
    {
        return "<|";
    }
    let end = match format.body {
        Body::NameThenObject { end, .. } => end.trim(),
        _ => "",
    };
    let closings = [end, format.call[1].trim(), format.section[1].trim()];
    closings
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or("")
}

/// The texts with which calls begin.
fn openings(format: &CallFormat) -> Vec<&'static str> {
    let mut openings = vec![format.section[0].trim(), format.call[0].trim()];
    match format.body {
        Body::Tags(tags) => openings.push(tags.name[0]),
        Body::NameThenObject { before, .. } if openings.iter().all(|text| text.is_empty()) => {
            openings.push(before)
        }
        _ => {}
    }
    openings.retain(|text| !text.is_empty());
    openings
}

/// Whether an opening text is part of the call's body.
fn is_body(format: &CallFormat, mark: &str) -> bool {
    format.section[0].trim() != mark && format.call[0].trim() != mark
}

/// At most so much of a text that a decision about it does not depend on the pieces in which it arrives.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_HEAD)]
}

/// The length of the longest end of `text` with which `mark` begins.
pub(super) fn partial(text: &str, mark: &str) -> usize {
    let lengths = mark.char_indices().map(|(at, _)| at).skip(1);
    lengths
        .filter(|&length| text.ends_with(&mark[..length]))
        .max()
        .unwrap_or(0)
}
