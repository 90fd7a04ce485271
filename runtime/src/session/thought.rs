//! The thought with which an answer may begin: where it opens and closes, and the limit on its tokens.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::text::{ThoughtTags, Tokenizer, Turns};

/// The thought with which an answer may begin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ThoughtOptions {
    /// The texts around the thought.
    #[serde(with = "tags_as_texts")]
    pub tags: ThoughtTags,
    /// Whether the prompt opens the thought. Otherwise only the model's first token can open it: a tag later in the answer is text.
    pub is_open: bool,
    /// Largest number of tokens of the thought, without its tags; the closing tag follows them whatever the model's choice. A character
    /// or a closing tag that the model has begun is completed first. `None` sets no limit.
    pub budget: Option<usize>,
}

impl ThoughtOptions {
    /// A thought without a limit.
    pub fn new(tags: ThoughtTags, is_open: bool) -> Self {
        ThoughtOptions {
            tags,
            is_open,
            budget: None,
        }
    }

    /// The thought with which an answer in `turns` begins, without a limit.
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails.
    pub fn of_turns(turns: &Turns) -> Result<Self> {
        Ok(Self::new(turns.thought_tags(), turns.opens_thought()?))
    }
}

/// Tags as a pair of texts, which must be those of a published model.
mod tags_as_texts {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::text::ThoughtTags;

    pub fn serialize<S: Serializer>(tags: &ThoughtTags, serializer: S) -> Result<S::Ok, S::Error> {
        (tags.open, tags.close).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ThoughtTags, D::Error> {
        let (open, close) = <(String, String)>::deserialize(from)?;
        let tags = ThoughtTags::of_template(&format!("{open}{close}"));
        tags.filter(|tags| (tags.open, tags.close) == (&*open, &*close))
            .ok_or_else(|| D::Error::custom("expected the tags of a model's thoughts"))
    }
}

/// Length of the longest character in bytes.
const LONGEST_CHARACTER: usize = 4;

/// The place of the next token.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The answer may still open a thought: this many bytes of the opening tag have been generated.
    Before(usize),
    Inside,
    /// The closing tag is forced, from this token on.
    Closing(usize),
    After,
}

/// The progress of an answer through its thought. Advancing allocates nothing.
pub(crate) struct Thought {
    tokenizer: Arc<Tokenizer>,
    open: &'static [u8],
    close: Search,
    /// The tokens of the closing tag.
    closing: Vec<u32>,
    /// Number of tokens that the thought may still have.
    left: usize,
    /// Number of tokens that a spent thought may still have to complete a character or its closing tag.
    extra: usize,
    /// Number of bytes that the last character lacks.
    missing: usize,
    place: Place,
}

impl Thought {
    /// Creates the thought at the beginning of an answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is a budget, but no tokens spell the closing tag.
    pub fn new(model: &Model, options: &ThoughtOptions) -> Result<Self> {
        let tokenizer = model.tokenizer()?;
        let tags = options.tags;
        let closing = match tokenizer.token_id(tags.close) {
            Some(token) => vec![token],
            None => tokenizer.encode_with_special(tags.close)?,
        };
        let vocab = model.spec().vocab;
        let is_possible = |token: &u32| (*token as usize) < vocab;
        let can_close = !closing.is_empty() && closing.iter().all(is_possible);
        if options.budget.is_some() && !can_close {
            let reason = format!("the model has no tokens for {:?}", tags.close);
            return Err(Error::invalid("the budget of thoughts", reason));
        }
        Ok(Thought {
            tokenizer,
            open: tags.open.trim_end().as_bytes(),
            close: Search::new(tags.close.trim().as_bytes()),
            closing,
            left: options.budget.unwrap_or(usize::MAX),
            extra: tags.close.len() + LONGEST_CHARACTER,
            missing: 0,
            place: match options.is_open {
                true => Place::Inside,
                false => Place::Before(0),
            },
        })
    }

    /// Whether the next token is part of the thought or of its closing tag.
    pub fn is_open(&self) -> bool {
        matches!(self.place, Place::Inside | Place::Closing(_))
    }

    /// Whether the answer may still open a thought.
    pub fn may_open(&self) -> bool {
        matches!(self.place, Place::Before(_))
    }

    /// The tokens that follow whatever the model's choice.
    pub fn forced(&self) -> &[u32] {
        let is_whole = self.missing == 0 && self.close.matched == 0;
        let is_spent = self.left == 0 && (is_whole || self.extra == 0);
        match self.place {
            Place::Inside if is_spent => &self.closing,
            Place::Closing(next) => &self.closing[next..],
            _ => &[],
        }
    }

    /// A number of next tokens none of which is forced.
    pub fn free(&self) -> usize {
        match self.place {
            Place::Before(_) => self.left.saturating_add(1),
            Place::Inside if self.forced().is_empty() => self.left.max(1),
            Place::Inside | Place::Closing(_) => 0,
            Place::After => usize::MAX,
        }
    }

    /// Advances past a token of the answer.
    pub fn take(&mut self, token: u32) {
        let is_forced = !self.forced().is_empty();
        match self.place {
            Place::After => {}
            Place::Inside | Place::Closing(_) if is_forced => self.close_by_one(),
            Place::Before(_) => self.read(token),
            Place::Inside | Place::Closing(_) => {
                match self.left {
                    usize::MAX => {}
                    0 => self.extra -= 1,
                    _ => self.left -= 1,
                }
                self.read(token);
            }
        }
    }

    /// Advances past a token of the closing tag.
    fn close_by_one(&mut self) {
        let next = match self.place {
            Place::Closing(next) => next + 1,
            _ => 1,
        };
        self.place = if next < self.closing.len() {
            Place::Closing(next)
        } else {
            Place::After
        };
    }

    fn read(&mut self, token: u32) {
        let tokenizer = Arc::clone(&self.tokenizer);
        for &byte in tokenizer.token_bytes(token) {
            match self.place {
                Place::Before(0) if byte.is_ascii_whitespace() => {}
                Place::Before(matched) if self.open[matched] == byte => {
                    self.place = if matched + 1 == self.open.len() {
                        Place::Inside
                    } else {
                        Place::Before(matched + 1)
                    };
                }
                Place::Before(_) => self.place = Place::After,
                Place::Inside => {
                    self.missing = match byte {
                        0xc2..0xe0 => 1,
                        0xe0..0xf0 => 2,
                        0xf0..0xf5 => 3,
                        0x80..0xc0 => self.missing.saturating_sub(1),
                        _ => 0,
                    };
                    if self.close.is_found_with(byte) {
                        self.place = Place::After;
                    }
                }
                Place::Closing(_) | Place::After => return,
            }
        }
    }
}

/// A search for a text in a stream of bytes (Knuth, Morris and Pratt 1977).
struct Search {
    text: &'static [u8],
    /// For each length of a prefix of the text, the length of the longest shorter prefix with which it ends.
    shorter: Vec<usize>,
    /// Length of the longest prefix of the text with which the stream ends.
    matched: usize,
}

impl Search {
    fn new(text: &'static [u8]) -> Self {
        let mut shorter = vec![0; text.len() + 1];
        for end in 1..text.len() {
            let mut length = shorter[end];
            while length > 0 && text[length] != text[end] {
                length = shorter[length];
            }
            shorter[end + 1] = length + usize::from(text[length] == text[end]);
        }
        Search {
            text,
            shorter,
            matched: 0,
        }
    }

    /// Advances past a byte. Returns whether the text ends there.
    fn is_found_with(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text.get(self.matched) != Some(&byte) {
            self.matched = self.shorter[self.matched];
        }
        self.matched += usize::from(self.text.get(self.matched) == Some(&byte));
        self.matched == self.text.len()
    }
}

#[cfg(test)]
#[path = "thought_tests.rs"]
mod tests;
