//! Text that knows which of its bytes came from a message.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// The origin of a stretch of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The template's own text, in which the names of control tokens stand for the tokens.
    Template,
    /// The content of the message with this index.
    Content(usize),
    /// The structure of a content's parts, which no template should print.
    Structure,
    /// Any other text of messages, tools and variables.
    Data,
}

/// A stretch of one origin, which ends before the byte `end`.
#[derive(Clone, Copy, Debug)]
struct Run {
    end: usize,
    mark: Mark,
}

/// Bytes that a run takes, for the work budget.
pub const RUN: usize = size_of::<Run>();

/// An immutable text. Its stretches take no memory if all of it has one origin, as most texts do.
#[derive(Clone, Debug)]
pub struct Text {
    string: Arc<str>,
    /// The origin of the text without `runs`.
    mark: Mark,
    runs: Option<Arc<[Run]>>,
    /// Whether characters of HTML in it are meant, so that adding other text to it escapes theirs (Jinja2's `Markup`).
    pub is_safe: bool,
}

impl Text {
    /// The same text, safe or not.
    pub fn with_safety(self, is_safe: bool) -> Self {
        Text { is_safe, ..self }
    }

    /// A text of one origin.
    pub fn new(string: &str, mark: Mark) -> Self {
        Text {
            string: string.into(),
            mark,
            runs: None,
            is_safe: false,
        }
    }

    /// Text of the template.
    pub fn template(string: &str) -> Self {
        Text::new(string, Mark::Template)
    }

    /// The stretches of one origin, in order.
    pub fn stretches(&self) -> impl Iterator<Item = (&str, Mark)> {
        let whole = (self.runs.is_none() && !self.string.is_empty())
            .then_some((&self.string[..], self.mark));
        let runs = self.runs.as_deref().unwrap_or_default();
        whole
            .into_iter()
            .chain(stretches(&self.string, runs, 0..self.string.len()))
    }

    /// Bytes of memory.
    pub fn size(&self) -> usize {
        self.string.len() + RUN * self.runs.as_ref().map_or(0, |runs| runs.len())
    }

    /// The origin of a text that is computed from this one: the first that is not the template.
    pub fn origin(&self) -> Mark {
        let mut marks = self.stretches().map(|(_, mark)| mark);
        let foreign = marks.find(|&mark| mark != Mark::Template);
        foreign.unwrap_or(Mark::Template)
    }

    /// The bytes in `range`.
    pub fn slice(&self, range: Range<usize>) -> Text {
        let Some(runs) = &self.runs else {
            return Text::new(&self.string[range], self.mark);
        };
        let mut out = Marked::default();
        for (stretch, mark) in stretches(&self.string, runs, range) {
            out.push(stretch, mark);
        }
        out.into_text()
    }

    /// A part of this text, given as a slice of its string.
    pub fn part(&self, part: &str) -> Text {
        if part.is_empty() {
            return Text::template("");
        }
        let start = part.as_ptr() as usize - self.string.as_ptr() as usize;
        self.slice(start..start + part.len())
    }

    /// Each character replaced by the characters that `map` writes for it.
    pub fn mapped(&self, mut map: impl FnMut(char, &mut String)) -> Text {
        let mut out = Marked::default();
        for (stretch, mark) in self.stretches() {
            stretch
                .chars()
                .for_each(|character| map(character, &mut out.string));
            out.close(mark);
        }
        out.into_text()
    }

    /// The characters in reverse order.
    pub fn reversed(&self) -> Text {
        let mut out = Marked::default();
        let stretches: Vec<_> = self.stretches().collect();
        for (stretch, mark) in stretches.into_iter().rev() {
            out.string.extend(stretch.chars().rev());
            out.close(mark);
        }
        out.into_text()
    }
}

/// The stretches of one origin in `range` of a text.
fn stretches<'t>(
    string: &'t str,
    runs: &'t [Run],
    range: Range<usize>,
) -> impl Iterator<Item = (&'t str, Mark)> {
    let first = runs.partition_point(|run| run.end <= range.start);
    let mut start = range.start;
    runs[first..].iter().map_while(move |run| {
        let end = run.end.min(range.end);
        let stretch = string
            .get(start..end)
            .filter(|stretch| !stretch.is_empty())?;
        start = end;
        Some((stretch, run.mark))
    })
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.string
    }
}

/// A text that is being written.
#[derive(Clone, Debug, Default)]
pub struct Marked {
    string: String,
    runs: Vec<Run>,
}

impl Marked {
    /// Appends text of one origin. Returns whether a new stretch begins.
    pub fn push(&mut self, text: &str, mark: Mark) -> bool {
        self.string.push_str(text);
        self.close(mark)
    }

    /// Gives the bytes after the last run an origin.
    fn close(&mut self, mark: Mark) -> bool {
        let end = self.string.len();
        match self.runs.last_mut() {
            Some(last) if last.end == end => false,
            Some(last) if last.mark == mark => {
                last.end = end;
                false
            }
            None if end == 0 => false,
            _ => {
                self.runs.push(Run { end, mark });
                true
            }
        }
    }

    /// The text so far.
    pub fn as_str(&self) -> &str {
        &self.string
    }

    /// The bytes from the first to the last of this origin.
    pub fn range_of(&self, mark: Mark) -> Option<Range<usize>> {
        let first = self.runs.iter().position(|run| run.mark == mark)?;
        let last = self.runs.iter().rposition(|run| run.mark == mark)?;
        let start = first
            .checked_sub(1)
            .map_or(0, |before| self.runs[before].end);
        Some(start..self.runs[last].end)
    }

    /// The stretches of one origin in `range`, in order.
    pub fn stretches(&self, range: Range<usize>) -> impl Iterator<Item = (&str, Mark)> {
        stretches(&self.string, &self.runs, range)
    }

    /// The finished text.
    pub fn into_text(self) -> Text {
        let mark = self.runs.first().map_or(Mark::Template, |run| run.mark);
        let runs = (self.runs.len() > 1).then(|| self.runs.into());
        Text {
            string: self.string.into(),
            mark,
            runs,
            is_safe: false,
        }
    }
}
