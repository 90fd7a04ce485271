//! The headers of messages in formats with channels.

use super::super::json::Literal;
use super::super::marks::{Begins, LONGEST_HEAD, begins_any, clipped};
use super::{AnswerParser, Place};

impl AnswerParser {
    /// Reads the header of a message.
    pub(super) fn header(&mut self, is_last: bool) -> bool {
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

    /// Reads the beginning of a header that is none as text.
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
