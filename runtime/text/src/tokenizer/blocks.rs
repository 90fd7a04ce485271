//! Long texts are encoded in blocks: the `tokenizers` crate needs about a hundred bytes of memory for each byte of a text.

use std::time::Instant;

use super::Tokenizer;
use crate::error::Result;
use waterline_quant::ask_room;

/// Texts up to this size, in bytes, are one block.
const BLOCK: usize = 256 << 10;
/// Memory in bytes that the crate needs for a byte of a block, and the size of texts that need little.
const OF_BYTE: usize = 160;
const SMALL: usize = 32 << 10;
/// Bytes on each side of a cut whose tokens must not change.
const SIDE: usize = 256;
/// Places that are tried for each kind of cut.
const TRIES: usize = 16;

impl Tokenizer {
    /// Appends the tokens of a text without special tokens. `flags` say whether it is at the beginning of the complete text, and whether it
    /// is there or follows a special token. A text is cut only where the tokens on both sides are those of the uncut neighbourhood: after a line,
    /// before a word, or inside a word without such a place.
    pub(super) fn encode_blocks(
        &self,
        text: &str,
        flags: [bool; 2],
        deadline: Instant,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        self.encode_blocks_of(text, flags, deadline, BLOCK, tokens)
    }

    fn encode_blocks_of(
        &self,
        text: &str,
        mut flags: [bool; 2],
        deadline: Instant,
        block: usize,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        if text.len() > SMALL {
            // The crate does not return errors when memory is refused.
            ask_room(
                text.len()
                    .min(block)
                    .saturating_mul(OF_BYTE)
                    .saturating_add(8 * text.len()),
            )?;
        }
        let mut rest = text;
        while rest.len() > block + 2 * SIDE {
            let Some(cut) = self.cut(rest, block, deadline)? else {
                break;
            };
            let (first, after) = rest.split_at(cut);
            tokens.extend(self.encode_run(first, flags, deadline)?);
            (rest, flags) = (after, [false, false]);
        }
        tokens.extend(self.encode_run(rest, flags, deadline)?);
        Ok(())
    }

    /// Returns a place of `text`, not far after the first `block` bytes, where it can be cut.
    fn cut(&self, text: &str, block: usize, deadline: Instant) -> Result<Option<usize>> {
        let bytes = text.as_bytes();
        let places = block..text.len() - SIDE;
        let ends_line = |&at: &usize| {
            bytes[at - 1] == b'\n'
                && bytes[at].is_ascii_alphanumeric()
                && bytes[at - 2].is_ascii_graphic()
        };
        let begins_word = |&at: &usize| {
            bytes[at] == b' '
                && bytes[at + 1].is_ascii_alphanumeric()
                && bytes[at - 1].is_ascii_graphic()
        };
        let lines = places.clone().take(block).filter(ends_line).take(TRIES);
        let words = places.clone().take(block).filter(begins_word).take(TRIES);
        let others = places.filter(|&at| text.is_char_boundary(at)).take(TRIES);
        for at in lines.chain(words).chain(others) {
            if self.is_cut(text, at, deadline)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Whether the neighbourhood of `at` has the same tokens with and without a cut.
    fn is_cut(&self, text: &str, at: usize, deadline: Instant) -> Result<bool> {
        let start = text.floor_char_boundary(at - SIDE);
        let end = text.floor_char_boundary(at + SIDE);
        let encode = |part: &str| self.encode_run(part, [false, false], deadline);
        let mut parts = encode(&text[start..at])?;
        parts.extend(encode(&text[at..end])?);
        Ok(encode(&text[start..end])? == parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn blocks_have_the_tokens_of_the_whole_text() {
        const FILE: &str = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/tok4096/tokenizer.json"
        );
        let json = std::fs::read(FILE).unwrap();
        let tokenizer = Tokenizer::from_json(&json, FILE).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let line = "The quick brown fox, 1234 times;  it's\tjumping over \u{e9}\u{4e16} dogs.\n";
        let word = "x".repeat(40_000);
        for text in [
            line.repeat(500),
            word,
            " \n".repeat(20_000),
            "\u{e9}".repeat(9_000),
        ] {
            for flags in [[true, true], [false, true], [false, false]] {
                let whole = tokenizer.encode_run(&text, flags, deadline).unwrap();
                for block in [1024, 4096, 5000] {
                    let mut blocks = Vec::new();
                    tokenizer
                        .encode_blocks_of(&text, flags, deadline, block, &mut blocks)
                        .unwrap();
                    assert!(blocks == whole, "{:?} {block}", &text[..20]);
                }
            }
        }
    }
}
