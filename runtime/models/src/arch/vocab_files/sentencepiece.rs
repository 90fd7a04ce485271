//! SentencePiece's vocabulary file, a protocol buffers message:
//!
//! ```text
//! 1 pieces:     1 text, 2 score (f32), 3 kind (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte)
//! 2 trainer:    3 model type (1 unigram, 2 byte pairs), 35 byte fallback, 40 id of the unknown piece
//! 3 normalizer: 2 character map, 3 a space before text, 4 runs of spaces collapsed and both ends stripped
//! ```

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use waterline_error::base64;

use super::super::token_table::AddedToken;
use super::{Description, ReadFile, added, check_added, check_count};

const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
const UNIGRAM: u64 = 1;
const BYTE_PAIRS: u64 = 2;

/// The pieces as a model of byte pairs or of unigrams.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Model<'b> {
    SentencePiece {
        vocab: Vec<&'b str>,
        scores: Vec<f32>,
        unk_id: u32,
        add_space_prefix: bool,
    },
    Unigram {
        #[serde(serialize_with = "pairs")]
        vocab: (Vec<&'b str>, Vec<f32>),
        unk_id: u32,
        byte_fallback: bool,
    },
}

fn pairs<S: Serializer>(scored: &(Vec<&str>, Vec<f32>), to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(scored.0.iter().zip(&scored.1))
}

/// Reads the file; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Vec<u8>, String> {
    let (mut tokens, mut scores, mut added) = (Vec::new(), Vec::new(), added::Added::new());
    let (mut unknown, mut kind_of_model, mut fallback) = (0, UNIGRAM, false);
    let (mut prefix, mut single_spaces, mut map) = (true, true, &[][..]);
    for part in fields(bytes) {
        let (field, value) = part?;
        let inner = || value.message().ok_or("a part is not a message");
        match field {
            1 => {
                let (mut text, mut score, mut kind) = ("", 0.0, NORMAL);
                for part in fields(inner()?) {
                    let (field, value) = part?;
                    match field {
                        1 => text = value.text().ok_or("a piece is not a string")?,
                        2 => score = value.float().ok_or("a score is not a number")?,
                        3 => kind = value.number().ok_or("a kind is not a number")?,
                        _ => {}
                    }
                }
                let id = tokens.len() as u32;
                match kind {
                    UNKNOWN => unknown = id,
                    CONTROL | USER_DEFINED => {
                        added.insert(id, AddedToken::new(id, text, kind == CONTROL));
                        check_added(added.len())?;
                    }
                    _ => {}
                }
                tokens.push(text);
                scores.push(score);
                check_count(tokens.len())?;
            }
            2 => {
                for part in fields(inner()?) {
                    let (field, value) = part?;
                    match field {
                        3 => kind_of_model = value.number().unwrap_or(0),
                        35 => fallback = value.number() == Some(1),
                        _ => {}
                    }
                }
            }
            3 => {
                for part in fields(inner()?) {
                    let (field, value) = part?;
                    match field {
                        2 => map = value.message().unwrap_or_default(),
                        3 => prefix = value.number() != Some(0),
                        4 => single_spaces = value.number() != Some(0),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    added.extend(added::read(file)?);
    let mut steps = Vec::new();
    if !map.is_empty() {
        let map = base64::encode(map);
        steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": map }));
    }
    if single_spaces {
        steps.push(json!({ "type": "Strip", "strip_left": true, "strip_right": true }));
        steps.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
    }
    let normalizer = json!({ "type": "Sequence", "normalizers": steps });
    // SentencePiece's tokenizers begin a text with a token unless configured not to.
    let config = added::json_of(file, "tokenizer_config.json")?;
    let begins = config["add_bos_token"] != false;
    let name = added::named(file, "bos_token")?.unwrap_or_else(|| "<s>".into());
    let begin = added
        .iter()
        .find(|(_, token)| begins && token.content == name);
    let post_processor = begin.map(|(&id, _)| added::begins_with(id, &name));
    let post_processor = post_processor.unwrap_or(Value::Null);
    let added: Vec<AddedToken> = added.into_values().collect();
    match kind_of_model {
        BYTE_PAIRS => {
            let model = Model::SentencePiece {
                vocab: tokens,
                scores,
                unk_id: unknown,
                add_space_prefix: prefix,
            };
            Description {
                normalizer,
                post_processor,
                ..Description::new(model, added)
            }
            .to_json()
        }
        UNIGRAM => {
            let space = json!({
                "type": "Metaspace",
                "replacement": "\u{2581}",
                "prepend_scheme": if prefix { "always" } else { "never" },
                "split": false,
            });
            let model = Model::Unigram {
                vocab: (tokens, scores),
                unk_id: unknown,
                byte_fallback: fallback,
            };
            Description {
                normalizer,
                post_processor,
                pre_tokenizer: space.clone(),
                decoder: space,
                ..Description::new(model, added)
            }
            .to_json()
        }
        other => Err(format!(
            "found the model type {other}, expected 1 (unigram) or 2 (byte pairs)"
        )),
    }
}

/// The value of a field.
#[derive(Clone, Copy)]
enum Field<'b> {
    Number(u64),
    Float(f32),
    Bytes(&'b [u8]),
    Other,
}

impl<'b> Field<'b> {
    fn number(self) -> Option<u64> {
        match self {
            Field::Number(number) => Some(number),
            _ => None,
        }
    }

    fn float(self) -> Option<f32> {
        match self {
            Field::Float(number) => Some(number),
            _ => None,
        }
    }

    fn message(self) -> Option<&'b [u8]> {
        match self {
            Field::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn text(self) -> Option<&'b str> {
        std::str::from_utf8(self.message()?).ok()
    }
}

/// The fields of a message with their numbers; a broken field is an error and ends the iteration.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Field<'_>), String>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let field = field(&mut bytes);
        if field.is_none() {
            bytes = &[];
        }
        let broken = || "it is not a message of protocol buffers, or it was cut short".to_string();
        Some(field.ok_or_else(broken))
    })
}

/// Takes a field off the front.
fn field<'b>(bytes: &mut &'b [u8]) -> Option<(u64, Field<'b>)> {
    let key = varint(bytes)?;
    let value = match key & 7 {
        0 => Field::Number(varint(bytes)?),
        1 => take(bytes, 8).map(|_| Field::Other)?,
        2 => {
            let length = varint(bytes)?;
            Field::Bytes(take(bytes, length)?)
        }
        5 => Field::Float(f32::from_le_bytes(take(bytes, 4)?.try_into().ok()?)),
        _ => return None,
    };
    Some((key >> 3, value))
}

/// Takes `count` bytes off the front.
fn take<'b>(bytes: &mut &'b [u8], count: u64) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// Takes a number with seven bits per byte off the front.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
