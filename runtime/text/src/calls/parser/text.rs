//! Text outside calls: content and thoughts, up to the next mark.

use super::super::marks::{Begins, LONGEST_HEAD, begins, clipped, is_body, openings, partial};
use super::super::{AnswerPart, ThoughtTags, head};
use super::{AnswerParser, Place};

impl AnswerParser {
    pub(super) fn text(&mut self, is_last: bool) -> bool {
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
        let keep = marks.iter().map(|mark| partial(&self.held, mark)).max();
        let keep = if is_last { 0 } else { keep.unwrap_or(0) };
        let end = self.held.len() - keep;
        let found = marks.iter().enumerate().filter_map(|(index, mark)| {
            Some((self.held.find(mark)?, usize::MAX - mark.len(), index))
        });
        // A longer mark may begin where one was found, or before it.
        let found = found.min().filter(|&(at, ..)| at < end);
        let limit = found.map_or(end, |(at, ..)| at);
        // A call without its opening can stand at the beginning of a line.
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
            let text = self.take(end);
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
}
