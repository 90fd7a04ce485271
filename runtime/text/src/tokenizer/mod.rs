//! Converts text to tokens and back.

mod blocks;
mod build;
mod charsmap;
mod file;
#[cfg(test)]
mod hostile_tests;
mod pattern;
mod runs;
mod rwkv;
mod sentencepiece;
mod steps;
mod surplus;
mod token_bytes;
mod words;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::error::{Error, Result};
use build::Parts;
use pattern::deadline;
pub use runs::{Run, Runs};
use steps::{NormalizerStep, Normalizing, SplitStep};
use token_bytes::ByteTable;
use tokenizers::{AddedVocabulary, OffsetReferential, OffsetType};
use waterline_quant::ask_room;
use words::Words;

/// Memory that building a tokenizer takes: bytes per byte of its file, and bytes for its patterns.
const OF_BYTE: usize = 4;
const PATTERNS: usize = 8 << 20;
/// Largest depth of nested cuts in a word that spells control tokens.
const MAX_CUTS: usize = 64;
/// The error for a panic inside the `tokenizers` crate, which must not reach the caller.
const PANICKED: &str = "internal error: the tokenizer panicked";

/// Converts text to tokens and tokens to bytes, as described by a `tokenizer.json`.
///
/// Adds no tokens by itself: neither a beginning-of-text token nor those of the file's post-processor. A chat template contains such
/// tokens explicitly.
pub struct Tokenizer {
    words: Words,
    /// Configured to ignore special tokens; [`encode_pieces`](Self::encode_pieces) finds them.
    added: AddedVocabulary,
    normalizer: Vec<NormalizerStep>,
    splits: Vec<SplitStep>,
    /// The model's own tokens.
    ids: HashMap<String, u32>,
    space_prefix: bool,
    source_name: String,
    specials: Vec<Special>,
    /// Finds the names of all `specials` in a single pass.
    special_names: AhoCorasick,
    /// `[vocab]`
    is_special: Vec<bool>,
    /// The unknown token: it is special, but plain text may become it.
    unknown: Option<u32>,
    bytes: ByteTable,
}

/// A part of a rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Template text, in which the names of special tokens stand for the tokens.
    Template(&'a str),
    /// Text of a user or a model, in which such names are ordinary text.
    Content(&'a str),
}

struct Special {
    content: String,
    id: u32,
    /// Whether the token strips white space before and after it.
    lstrip: bool,
    rstrip: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; `source_name` names it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if it is not JSON, not a tokenizer, empty, or has an unusable component: an empty pattern, a map that points
    /// outside itself, or ids beyond the limit.
    pub fn from_json(bytes: &[u8], source_name: &str) -> Result<Self> {
        Self::for_rows(bytes, source_name, usize::MAX)
    }

    /// Like [`from_json`](Self::from_json), without tokens from id `rows` on, which have no rows in the model's matrices.
    ///
    /// # Errors
    /// The errors of [`from_json`](Self::from_json), and [`Error::Tokenizer`] if a text may become such a token.
    #[doc(hidden)]
    pub fn for_rows(bytes: &[u8], source_name: &str, rows: usize) -> Result<Self> {
        ask_room(bytes.len().saturating_mul(OF_BYTE).saturating_add(PATTERNS))?;
        let build = || -> std::result::Result<Self, String> {
            if bytes.trim_ascii_start().first() != Some(&b'{') {
                return Err("the file is not a JSON object".into());
            }
            let file = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            Self::from_parts(Parts::new(file, rows)?, source_name)
        };
        let built = catch_unwind(build).unwrap_or_else(|_| Err(PANICKED.into()));
        built.map_err(|reason| Error::Tokenizer {
            source_name: source_name.into(),
            reason: printable(&reason),
        })
    }

    fn from_parts(parts: Parts, source_name: &str) -> std::result::Result<Self, String> {
        let added = parts.added.get_added_tokens_decoder();
        let mut specials: Vec<Special> = added
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, token)| Special {
                content: token.content.clone(),
                id,
                lstrip: token.lstrip,
                rstrip: token.rstrip,
            })
            .collect();
        specials.sort_by_key(|special| special.id);
        let special_names = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(specials.iter().map(|special| &special.content))
            .map_err(|error| format!("added_tokens: {error}"))?;
        let bytes = ByteTable::new(&parts.tokens, &parts.added, parts.spelling)?;
        let mut is_special = vec![false; bytes.vocab_size()];
        for special in &specials {
            is_special[special.id as usize] = true;
        }
        Ok(Self {
            bytes,
            words: parts.words,
            added: parts.added,
            normalizer: parts.normalizer,
            splits: parts.splits,
            ids: parts.tokens.into_iter().collect(),
            space_prefix: parts.space_prefix,
            source_name: source_name.into(),
            specials,
            special_names,
            is_special,
            unknown: parts.unknown,
        })
    }

    /// Encodes plain text. Names of special tokens in it are ordinary text.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_pieces(&[Piece::Content(text)], true)
    }

    /// Encodes a template's text, in which the names of special tokens stand for the tokens.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_pieces(&[Piece::Template(text)], true)
    }

    /// Encodes text composed of template and content pieces.
    ///
    /// The pieces between two special tokens are encoded as one run, so a token may extend across the boundary between template and
    /// content, as in training. `at_start` means that the text is at the beginning of the prompt, where some tokenizers insert a space.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub(crate) fn encode_pieces(&self, pieces: &[Piece], at_start: bool) -> Result<Vec<u32>> {
        let (tokens, _) = self.encode_runs(pieces, at_start, None)?;
        Ok(tokens)
    }

    /// Like `encode_pieces`, with a cache of runs. Also returns the last run, which is empty after a special token.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub(crate) fn encode_runs(
        &self,
        pieces: &[Piece],
        at_start: bool,
        runs: Option<&Runs>,
    ) -> Result<(Vec<u32>, Run)> {
        let bytes = pieces.iter().map(|piece| match piece {
            Piece::Template(text) | Piece::Content(text) => text.len(),
        });
        let deadline = deadline(bytes.sum());
        let mut tokens = Vec::new();
        let mut run = Run {
            text: String::new(),
            at_start,
            border: at_start,
        };
        let encode = |run: &Run, tokens: &mut Vec<u32>| -> Result<()> {
            if let Some(known) = runs.and_then(|runs| runs.get(run)) {
                tokens.extend(known);
                return Ok(());
            }
            let first = tokens.len();
            self.encode_blocks(&run.text, [run.at_start, run.border], deadline, tokens)?;
            if let Some(runs) = runs {
                runs.set(run, &tokens[first..]);
            }
            Ok(())
        };
        for piece in pieces {
            let mut rest = match *piece {
                Piece::Content(text) => {
                    run.text.push_str(text);
                    continue;
                }
                Piece::Template(text) => text,
            };
            while let Some((position, special)) = self.next_special(rest) {
                let (before, after) =
                    (&rest[..position], &rest[position + special.content.len()..]);
                run.text.push_str(if special.lstrip {
                    before.trim_end()
                } else {
                    before
                });
                encode(&run, &mut tokens)?;
                tokens.push(special.id);
                run = Run {
                    border: true,
                    ..Run::default()
                };
                rest = if special.rstrip {
                    after.trim_start()
                } else {
                    after
                };
            }
            run.text.push_str(rest);
        }
        encode(&run, &mut tokens)?;
        Ok((tokens, run))
    }

    /// The exact bytes of a token, which may be part of a character; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// One more than the largest token id. A model may have more logits.
    pub fn vocab_size(&self) -> usize {
        self.bytes.vocab_size()
    }

    /// The id of a token, in the file's spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let added = || self.added.get_vocab().get(token).copied();
        self.ids.get(token).copied().or_else(added)
    }

    /// Whether the token is a control token, which a user's text never becomes.
    pub fn is_special(&self, id: u32) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether the token has a visible name: a control token, or another token that the file adds to the vocabulary.
    pub(crate) fn is_mark(&self, id: u32) -> bool {
        let added = self.added.get_added_tokens_decoder().get(&id);
        added.is_some_and(|token| !token.content.trim().is_empty())
    }

    /// The first special token in `text`, the longest if several begin there.
    fn next_special(&self, text: &str) -> Option<(usize, &Special)> {
        let found = self.special_names.find(text)?;
        Some((found.start(), &self.specials[found.pattern()]))
    }

    /// Encodes text without special tokens. `border` means that it is at the beginning or follows a special token.
    fn encode_run(
        &self,
        text: &str,
        [at_start, border]: [bool; 2],
        deadline: Instant,
    ) -> Result<Vec<u32>> {
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let run = AssertUnwindSafe(|| self.encode_text(text, [at_start, border], deadline));
        let found = catch_unwind(run).unwrap_or_else(|_| Err(PANICKED.into()));
        found.map_err(|reason| self.error(&reason))
    }

    fn encode_text(
        &self,
        text: &str,
        [at_start, border]: [bool; 2],
        deadline: Instant,
    ) -> std::result::Result<Vec<u32>, String> {
        let normalizing = Normalizing::new(&self.normalizer, text, deadline);
        let mut split = self.added.extract_and_normalize(Some(&normalizing), text);
        if let Ok(mut failure) = normalizing.failure.lock()
            && let Some(reason) = failure.take()
        {
            return Err(reason);
        }
        for step in &self.splits {
            step.split(&mut split, at_start, deadline)
                .map_err(|error| error.to_string())?;
        }
        let mut tokens = Vec::new();
        let mut border = border;
        for (word, _, added) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
            match (added, &self.words) {
                (Some(added), _) => tokens.extend(added.iter().map(|token| token.id)),
                (None, Words::SentencePiece(_)) => {
                    let prefix = if border && self.space_prefix { " " } else { "" };
                    let spaced = format!("{prefix}{word}").replace(' ', "\u{2581}");
                    self.encode_word(&spaced, 0, &mut tokens)?;
                }
                (None, _) => self.encode_word(word, 0, &mut tokens)?,
            }
            border = added.is_some();
        }
        Ok(tokens)
    }

    /// Appends the tokens of a pre-tokenized word. If the model's own vocabulary contains the name of a special token (sentencepiece has
    /// `</s>` there), the word is cut so that the token is not matched.
    fn encode_word(
        &self,
        word: &str,
        cuts: usize,
        tokens: &mut Vec<u32>,
    ) -> std::result::Result<(), String> {
        let found = self.words.tokenize(word)?;
        let control = |id: u32| self.is_special(id) && self.unknown != Some(id);
        if !found.iter().any(|&(id, _)| control(id)) {
            tokens.extend(found.iter().map(|&(id, _)| id));
            return Ok(());
        }
        let mut done = 0;
        for &(_, start) in found.iter().filter(|&&(id, _)| control(id)) {
            // Cuts after the token's first character, or before it if it is the last of the word.
            let first = word.get(start..).and_then(|rest| rest.chars().next());
            let inside = start + first.map_or(0, char::len_utf8);
            let cut = if inside < word.len() { inside } else { start };
            if cut > done && word.is_char_boundary(cut) {
                if cuts == MAX_CUTS {
                    break;
                }
                self.encode_word(&word[done..cut], cuts + 1, tokens)?;
                done = cut;
            }
        }
        if done == 0 {
            let short: String = word.chars().take(80).collect();
            return Err(format!("{short:?} can only be written as a control token"));
        }
        self.encode_word(&word[done..], cuts + 1, tokens)
    }

    fn error(&self, reason: &str) -> Error {
        Error::Tokenizer {
            source_name: self.source_name.clone(),
            reason: printable(reason),
        }
    }
}

/// Escapes control characters, which a file may put into a reason.
fn printable(reason: &str) -> String {
    let escaped = |character: char| {
        if character.is_control() {
            character.escape_default().to_string()
        } else {
            character.to_string()
        }
    };
    reason.chars().take(1_000).map(escaped).collect()
}
