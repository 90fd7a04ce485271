use super::token_bytes::ByteTable;
use crate::error::{Error, Result};
use serde_json::Value;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{Model, OffsetReferential, OffsetType, PreTokenizer, PreTokenizerWrapper};

/// Text to tokens and tokens to bytes, as a `tokenizer.json` describes it.
///
/// Nothing is added on its own: neither a beginning-of-text token nor what the file's post
/// processor says. A chat template writes such tokens out.
pub struct Tokenizer {
    /// Set to leave special tokens alone; [`encode_pieces`](Self::encode_pieces) finds them.
    inner: tokenizers::Tokenizer,
    /// The pre-tokenizer for text that does not begin the whole.
    continuing: Option<PreTokenizerWrapper>,
    source_name: String,
    /// Longest first.
    specials: Vec<Special>,
    /// Whether a special token begins with this byte.
    special_start: [bool; 256],
    /// `[vocab]`
    is_special: Vec<bool>,
    /// The unknown token: special, yet what plain text may become.
    unknown: Option<u32>,
    bytes: ByteTable,
}

/// Part of a rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text of a template, in which the names of special tokens mean these tokens.
    Template(&'a str),
    /// Text of a user or a model, in which they are letters like any other.
    Content(&'a str),
}

struct Special {
    content: String,
    id: u32,
    /// Whether the token swallows white space before and after it.
    lstrip: bool,
    rstrip: bool,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; `source_name` names it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if it is not JSON, not a tokenizer, empty, or numbers its tokens
    /// beyond 2^24.
    pub fn from_json(bytes: &[u8], source_name: &str) -> Result<Self> {
        let fail = |reason: String| Error::Tokenizer {
            source_name: source_name.into(),
            reason,
        };
        // First as plain JSON: some deserializers of the crate panic on a syntax error.
        let json: Value = serde_json::from_slice(bytes).map_err(|error| fail(error.to_string()))?;
        let mut inner =
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| fail(error.to_string()))?;
        inner.set_encode_special_tokens(true);

        let added = inner.get_added_tokens_decoder();
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
        specials.sort_by(|a, b| b.content.len().cmp(&a.content.len()).then(a.id.cmp(&b.id)));
        let bytes = ByteTable::new(&inner, &json).map_err(fail)?;
        let mut special_start = [false; 256];
        let mut is_special = vec![false; bytes.vocab_size()];
        for special in &specials {
            // The crate drops added tokens without content.
            special_start[special.content.as_bytes()[0] as usize] = true;
            is_special[special.id as usize] = true;
        }

        let model = &json["model"];
        let unknown = model["unk_token"]
            .as_str()
            .and_then(|token| inner.token_to_id(token))
            .or_else(|| {
                model["unk_id"]
                    .as_u64()
                    .and_then(|id| u32::try_from(id).ok())
            });

        Ok(Self {
            bytes,
            continuing: inner.get_pre_tokenizer().cloned().map(without_first_prefix),
            source_name: source_name.into(),
            inner,
            specials,
            special_start,
            is_special,
            unknown,
        })
    }

    /// Tokens of plain text: the names of special tokens in it are letters like any other.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary cannot express the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_pieces(&[Piece::Content(text)], true)
    }

    /// Tokens of a template's text, in which the names of special tokens mean these tokens.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_pieces(&[Piece::Template(text)], true)
    }

    /// Tokens of text put together from a template and contents.
    ///
    /// Between two special tokens the pieces are encoded as one run, so a token may reach across
    /// the border between template and content as it did in training. `at_start` says that the
    /// text begins the whole prompt, where some tokenizers put a space.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_pieces(&self, pieces: &[Piece], at_start: bool) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        let mut run = String::new();
        let mut at_start = at_start;
        for piece in pieces {
            let mut rest = match *piece {
                Piece::Content(text) => {
                    run.push_str(text);
                    continue;
                }
                Piece::Template(text) => text,
            };
            while let Some((position, special)) = self.next_special(rest) {
                let (before, after) =
                    (&rest[..position], &rest[position + special.content.len()..]);
                run.push_str(if special.lstrip {
                    before.trim_end()
                } else {
                    before
                });
                self.encode_run(&run, at_start, &mut tokens)?;
                tokens.push(special.id);
                run.clear();
                at_start = false;
                rest = if special.rstrip {
                    after.trim_start()
                } else {
                    after
                };
            }
            run.push_str(rest);
        }
        self.encode_run(&run, at_start, &mut tokens)?;
        Ok(tokens)
    }

    /// The exact bytes of a token, possibly part of a character; none for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// One more than the largest token id. A model may have more logits than that.
    pub fn vocab_size(&self) -> usize {
        self.bytes.vocab_size()
    }

    /// The id of a token, as the file spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether the token is a control token, which a user's text never becomes.
    pub fn is_special(&self, id: u32) -> bool {
        self.is_special.get(id as usize).copied().unwrap_or(false)
    }

    /// The first special token in `text`, the longest if several begin there.
    fn next_special(&self, text: &str) -> Option<(usize, &Special)> {
        let bytes = text.as_bytes();
        let mut starts = (0..bytes.len()).filter(|&at| self.special_start[bytes[at] as usize]);
        starts.find_map(|at| {
            let begins = |special: &&Special| bytes[at..].starts_with(special.content.as_bytes());
            Some((at, self.specials.iter().find(begins)?))
        })
    }

    /// Appends the tokens of text without special tokens.
    fn encode_run(&self, text: &str, at_start: bool, tokens: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let added = self.inner.get_added_vocabulary();
        let mut split = added.extract_and_normalize(self.inner.get_normalizer(), text);
        let pre_tokenizer = match at_start {
            true => self.inner.get_pre_tokenizer(),
            false => self.continuing.as_ref(),
        };
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer
                .pre_tokenize(&mut split)
                .map_err(|error| self.error(error))?;
        }
        for (word, _, added) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
            match added {
                Some(added) => tokens.extend(added.iter().map(|token| token.id)),
                None => self.encode_word(word, tokens)?,
            }
        }
        Ok(())
    }

    /// Appends the tokens of a pre-tokenized word. Where the model's own vocabulary holds the name
    /// of a special token (sentencepiece keeps `</s>` there), the word is cut so that it is not
    /// found.
    fn encode_word(&self, word: &str, tokens: &mut Vec<u32>) -> Result<()> {
        let found = self
            .inner
            .get_model()
            .tokenize(word)
            .map_err(|error| self.error(error))?;
        let control = |id: u32| self.is_special(id) && self.unknown != Some(id);
        if !found.iter().any(|token| control(token.id)) {
            tokens.extend(found.iter().map(|token| token.id));
            return Ok(());
        }
        let mut done = 0;
        for token in found.iter().filter(|token| control(token.id)) {
            // After the token's first character, or before it if it is the last of the word.
            let start = token.offsets.0;
            let first = word.get(start..).and_then(|rest| rest.chars().next());
            let inside = start + first.map_or(0, char::len_utf8);
            let cut = if inside < word.len() { inside } else { start };
            if cut > done && word.is_char_boundary(cut) {
                self.encode_word(&word[done..cut], tokens)?;
                done = cut;
            }
        }
        if done == 0 {
            let reason = format!("{word:?} can only be written as a control token");
            return Err(self.error(reason.into()));
        }
        self.encode_word(&word[done..], tokens)
    }

    fn error(&self, error: tokenizers::Error) -> Error {
        Error::Tokenizer {
            source_name: self.source_name.clone(),
            reason: error.to_string(),
        }
    }
}

/// The pre-tokenizer without a space put before the beginning of the text.
fn without_first_prefix(mut pre_tokenizer: PreTokenizerWrapper) -> PreTokenizerWrapper {
    match &mut pre_tokenizer {
        PreTokenizerWrapper::Metaspace(metaspace)
            if metaspace.get_prepend_scheme() == PrependScheme::First =>
        {
            metaspace.set_prepend_scheme(PrependScheme::Never);
        }
        PreTokenizerWrapper::Sequence(sequence) => {
            for step in sequence.as_mut() {
                *step = without_first_prefix(step.clone());
            }
        }
        _ => {}
    }
    pre_tokenizer
}
