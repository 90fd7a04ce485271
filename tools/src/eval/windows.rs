//! The windows of llama-perplexity: a text cut into equal parts. Each is read from an empty state, and its second half is counted.

use waterline::{Session, Tokenizer};

use crate::error::{Error, Result};

/// A text as windows of `length` tokens.
pub struct Windows {
    /// The text's tokens, without the last ones that fill no window.
    pub tokens: Vec<u32>,
    /// Tokens per window.
    pub length: usize,
    /// The token that replaces the first token of each window, if the tokenizer puts one before a text.
    pub begin: Option<u32>,
}

impl Windows {
    /// Cuts a text. One line break at its end is dropped, as llama-perplexity does with a file.
    ///
    /// # Errors
    /// The text is shorter than two windows.
    pub fn new(
        text: &str,
        tokenizer: &Tokenizer,
        begin: Option<u32>,
        length: usize,
    ) -> Result<Self> {
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut tokens: Vec<u32> = begin.into_iter().collect();
        tokens.extend(tokenizer.encode(text)?);
        let found = tokens.len();
        if found < 2 * length {
            return Err(Error::usage(format!(
                "--ctx {length}: the text has {found} tokens; two windows, {} tokens, are needed",
                2 * length
            )));
        }
        tokens.truncate(found / length * length);
        Ok(Windows {
            tokens,
            length,
            begin,
        })
    }

    /// Number of windows.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.length
    }

    /// Reads window `index` from an empty state. Calls `each` for every counted token, with the logits before it and the token.
    ///
    /// # Errors
    /// The errors of [`Session::feed_each`].
    pub fn read(
        &self,
        session: &mut Session,
        index: usize,
        mut each: impl FnMut(&[f32], u32),
    ) -> Result<()> {
        let window = &self.tokens[index * self.length..][..self.length];
        let mut read = window[..self.length - 1].to_vec();
        if let Some(begin) = self.begin {
            read[0] = begin;
        }
        let middle = self.length / 2;
        session.reset()?;
        session.feed(&read[..middle])?;
        session.feed_each(&read[middle..], |row, logits| {
            each(logits, window[middle + row + 1]);
        })?;
        Ok(())
    }
}
