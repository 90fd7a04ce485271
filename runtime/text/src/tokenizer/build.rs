//! Builds the parts of a tokenizer from a `tokenizer.json`. The file is untrusted: each component is checked before it is built, and
//! components that encoding does not need (decoder, post-processor, truncation, padding) are not built.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, AddedVocabulary, ModelWrapper};

use super::file::{File, Merges, Model};
use super::pattern::deadline;
use super::rwkv::{Rwkv, unescape};
use super::sentencepiece::SentencePiece;
use super::steps::{self, NormalizerStep, Normalizing, SplitStep};
use super::surplus;
use super::token_bytes::{MAX_VOCAB, Spelling};
use super::words::Words;
use waterline_quant::Vocabulary;

/// Size limits in bytes of a token and of an added token.
const MAX_TOKEN: usize = 64 << 10;
const MAX_ADDED: usize = 1 << 10;
/// Size limits in bytes of all added tokens, and of all tokens of a model that stores them in a byte trie.
const MAX_ADDED_BYTES: usize = 1 << 20;
const MAX_TRIE_BYTES: usize = 4 << 20;
/// Longest token of such a trie, which may be searched at every byte of a text.
const MAX_TRIE_TOKEN: usize = 128;

type Reason = String;

/// The parts of a tokenizer.
pub(super) struct Parts {
    pub words: Words,
    pub added: AddedVocabulary,
    pub normalizer: Vec<NormalizerStep>,
    pub splits: Vec<SplitStep>,
    /// The model's own tokens.
    pub tokens: Vec<(String, u32)>,
    pub spelling: Spelling,
    /// The unknown token.
    pub unknown: Option<u32>,
    /// Whether to put a space before text at the start and after special tokens (sentencepiece).
    pub space_prefix: bool,
}

impl Parts {
    /// Builds the parts, without tokens from id `rows` on. The error is a reason.
    pub fn new(file: File, rows: usize) -> Result<Self, Reason> {
        if let Some(reason) = file.unreadable {
            return Err(reason);
        }
        let kind = kind(&file.model)?.to_string();
        let (kind, spelling) = (kind.as_str(), spelling(&file, &kind));
        let Model {
            switches: model,
            vocab: vocabulary,
            merges,
            scores,
        } = file.model;
        let (model, merges) = (&model, merges.unwrap_or_default());
        let (mut tokens, scored) = numbered(kind, vocabulary)?;
        check_ids(&tokens)?;
        surplus::remove(kind, (model, &merges), &mut tokens, rows)?;
        let find = |token: &str| {
            tokens
                .iter()
                .find(|(other, _)| other == token)
                .map(|&(_, id)| id)
        };
        let unknown = match optional(model, "unk_token", TEXT, Value::as_str)? {
            Some(token) => find(token),
            None => optional(model, "unk_id", "a token", token)?,
        };
        let normalizer = steps::normalizer(&file.normalizer.0)?;
        let splits = steps::pre_tokenizer(&file.pre_tokenizer.0)?;
        let added = file.added_tokens;
        check_added(&added)?;
        let (words, added) = match kind {
            "SentencePiece" | "RWKV" => {
                let words = match kind {
                    "RWKV" => {
                        let bytes: Vec<(Vec<u8>, u32)> = tokens
                            .iter()
                            .map(|(token, id)| (unescape(token), *id))
                            .collect();
                        check_trie(bytes.iter().map(|(bytes, _)| bytes.len()))?;
                        Words::Rwkv(Rwkv::new(
                            bytes.iter().map(|(bytes, id)| (&bytes[..], *id)),
                            unknown,
                        ))
                    }
                    _ => Words::SentencePiece(SentencePiece::new(
                        &tokens,
                        checked(scores, tokens.len())?,
                        unknown,
                    )),
                };
                let registry = WordLevel::builder().vocab(vocab(&tokens)).build();
                let registry = registry.map_err(|error| error.to_string())?;
                (
                    words,
                    surplus::registered(
                        added,
                        &ModelWrapper::WordLevel(registry),
                        &normalizer,
                        rows,
                    )?,
                )
            }
            _ => {
                let lists = Lists {
                    tokens: &tokens,
                    scored,
                    merges: &merges,
                };
                let built = crate_model(kind, model, lists)?;
                let added = surplus::registered(added, &built, &normalizer, rows)?;
                let built = Box::new(built);
                let words = if model["line_breaks_are_whole"] == true {
                    Words::Lines(built, line_breaks(&tokens))
                } else {
                    Words::Crate(built)
                };
                (words, added)
            }
        };
        Ok(Parts {
            spelling,
            space_prefix: kind == "SentencePiece"
                && optional(model, "add_space_prefix", FLAG, Value::as_bool)? != Some(false),
            words,
            added,
            normalizer,
            splits,
            tokens,
            unknown,
        })
    }
}

const TEXT: &str = "a string";
const FLAG: &str = "true or false";

/// Reads the value at a key that may be missing or null.
fn optional<'a, T>(
    object: &'a Value,
    key: &str,
    expected: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, Reason> {
    match &object[key] {
        Value::Null => Ok(None),
        value => match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(format!("{key}: found {value:.40}, expected {expected}")),
        },
    }
}

/// Reads a token id.
fn token(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// The model's type. Older files do not state it.
fn kind(model: &Model) -> Result<&str, Reason> {
    const KNOWN: [&str; 6] = [
        "BPE",
        "Unigram",
        "WordPiece",
        "WordLevel",
        "SentencePiece",
        "RWKV",
    ];
    let switches = &model.switches;
    match optional(switches, "type", TEXT, Value::as_str)? {
        Some(kind) if KNOWN.contains(&kind) => Ok(kind),
        Some(kind) => Err(format!(
            "unknown model type {kind}, expected one of {}",
            KNOWN.join(", ")
        )),
        None if model.merges.is_some() => Ok("BPE"),
        None if matches!(model.vocab, Vocabulary::Scored(_) | Vocabulary::Listed(_)) => {
            Ok("Unigram")
        }
        None if switches["continuing_subword_prefix"].is_string() => Ok("WordPiece"),
        None if matches!(model.vocab, Vocabulary::Ids(_)) => Ok("WordLevel"),
        None => Err("found no model".into()),
    }
}

/// Tokens with their ids; for Unigram, also tokens with their scores.
type Numbered = (Vec<(String, u32)>, Vec<(String, f64)>);

/// Reads the tokens of a model in the form of its type.
fn numbered(kind: &str, vocab: Vocabulary) -> Result<Numbered, Reason> {
    let wrong = |expected: &str| Err(format!("model: vocab: expected {expected}"));
    match (kind, vocab) {
        // An empty list has no recognizable form.
        ("Unigram", Vocabulary::Listed(tokens)) if tokens.is_empty() => Ok(Numbered::default()),
        ("Unigram", Vocabulary::Scored(scored)) => {
            let tokens = scored.iter().map(|(token, _)| token.clone());
            Ok((tokens.zip(0..).collect(), scored))
        }
        ("Unigram", _) => wrong("pairs of a token and its score"),
        ("SentencePiece" | "RWKV", Vocabulary::Listed(tokens)) => {
            Ok((tokens.into_iter().zip(0..).collect(), Vec::new()))
        }
        ("SentencePiece" | "RWKV", _) => wrong("a list of tokens"),
        (_, Vocabulary::Ids(tokens)) => Ok((tokens, Vec::new())),
        _ => wrong("an object"),
    }
}

/// Checks the scores of a sentencepiece vocabulary.
fn checked(scores: Vec<f32>, count: usize) -> Result<Vec<f32>, Reason> {
    if scores.len() == count && scores.iter().all(|score| score.is_finite()) {
        Ok(scores)
    } else {
        let found = scores.len();
        Err(format!(
            "model: scores: found {found} numbers, expected {count} finite ones"
        ))
    }
}

/// Refuses ids so large that their tables would take too much memory, and duplicate ids.
fn check_ids(tokens: &[(String, u32)]) -> Result<(), Reason> {
    let most = (4 * tokens.len() + (1 << 20)).min(MAX_VOCAB);
    let Some((token, id)) = tokens.iter().max_by_key(|(_, id)| id) else {
        // Some tokenizers have added tokens only.
        return Ok(());
    };
    if *id as usize >= most {
        return Err(format!(
            "the token {token:.40?} has the id {id}, expected less than {most}"
        ));
    }
    let mut seen = vec![false; *id as usize + 1];
    for (token, id) in tokens {
        if std::mem::replace(&mut seen[*id as usize], true) {
            return Err(format!(
                "the token {token:.40?} has the id {id} of another token"
            ));
        }
    }
    match tokens.iter().find(|(token, _)| token.len() > MAX_TOKEN) {
        Some((token, id)) => Err(format!(
            "the token {id} has {} bytes, expected at most {MAX_TOKEN}",
            token.len()
        )),
        None => Ok(()),
    }
}

/// A trie is as deep as its longest token, and the crate drops it recursively.
fn check_trie(lengths: impl Iterator<Item = usize>) -> Result<(), Reason> {
    let (bytes, longest) = lengths.fold((0, 0), |(sum, most), length| {
        (sum + length, length.max(most))
    });
    if bytes > MAX_TRIE_BYTES || longest > MAX_TRIE_TOKEN {
        Err(format!(
            "its tokens have {bytes} bytes and the longest has {longest}, expected at most {MAX_TRIE_BYTES} and {MAX_TRIE_TOKEN}"
        ))
    } else {
        Ok(())
    }
}

/// The tokens that consist only of line breaks.
fn line_breaks(tokens: &[(String, u32)]) -> HashMap<String, u32> {
    let breaks = tokens
        .iter()
        .filter(|(token, _)| token.bytes().all(|byte| byte == b'\n'));
    breaks.cloned().collect()
}

fn vocab(tokens: &[(String, u32)]) -> Vocab {
    tokens.iter().cloned().collect()
}

/// The lists of a model.
struct Lists<'t> {
    tokens: &'t [(String, u32)],
    scored: Vec<(String, f64)>,
    merges: &'t Merges,
}

/// Builds a model of the tokenizers crate.
fn crate_model(kind: &str, model: &Value, lists: Lists) -> Result<ModelWrapper, Reason> {
    let Lists {
        tokens,
        scored,
        merges,
    } = lists;
    let text = |key: &str| -> Result<Option<String>, Reason> {
        Ok(optional(model, key, TEXT, Value::as_str)?.map(str::to_string))
    };
    let flag = |key: &str| -> Result<bool, Reason> {
        Ok(optional(model, key, FLAG, Value::as_bool)? == Some(true))
    };
    let prefix = text("continuing_subword_prefix")?;
    let built = match kind {
        "BPE" => {
            if prefix.is_some_and(|prefix| !prefix.is_empty()) {
                return Err("model: continuing_subword_prefix is not supported for BPE".into());
            }
            if optional(model, "dropout", "a number", Value::as_f64)?
                .is_some_and(|dropout| dropout != 0.0)
            {
                return Err("model: dropout: expected none".into());
            }
            let mut builder = BPE::builder()
                .vocab_and_merges(vocab(tokens), known(merges, tokens))
                .fuse_unk(flag("fuse_unk")?)
                .byte_fallback(flag("byte_fallback")?)
                .ignore_merges(flag("ignore_merges")?);
            if let Some(token) = text("unk_token")? {
                builder = builder.unk_token(token);
            }
            if let Some(suffix) = text("end_of_word_suffix")? {
                builder = builder.end_of_word_suffix(suffix);
            }
            builder.build().map(ModelWrapper::BPE)
        }
        "Unigram" => {
            check_trie(tokens.iter().map(|(token, _)| token.len()))?;
            if tokens.iter().any(|(token, _)| token.is_empty()) {
                return Err("model: vocab: found an empty token".into());
            }
            let unknown = optional(model, "unk_id", "a token", token)?.map(|id| id as usize);
            Unigram::from(scored, unknown, flag("byte_fallback")?).map(ModelWrapper::Unigram)
        }
        "WordPiece" => {
            let longest = optional(model, "max_input_chars_per_word", "a number", Value::as_u64)?;
            let longest = longest.unwrap_or(100).min(1_000);
            let builder = WordPiece::builder()
                .vocab(vocab(tokens))
                .unk_token(text("unk_token")?.unwrap_or_else(|| "[UNK]".into()))
                .continuing_subword_prefix(prefix.unwrap_or_else(|| "##".into()))
                .max_input_chars_per_word(longest as usize);
            builder.build().map(ModelWrapper::WordPiece)
        }
        _ => {
            let unknown = text("unk_token")?.unwrap_or_else(|| "<unk>".into());
            let builder = WordLevel::builder().vocab(vocab(tokens)).unk_token(unknown);
            builder.build().map(ModelWrapper::WordLevel)
        }
    };
    built.map_err(|error| error.to_string())
}

/// The merges whose tokens and result are all in the vocabulary; others never apply.
fn known(merges: &Merges, tokens: &[(String, u32)]) -> Vec<(String, String)> {
    let ids: HashSet<&str> = tokens.iter().map(|(token, _)| token.as_str()).collect();
    let longest = ids.iter().map(|token| token.len()).max().unwrap_or(0);
    let mut joined = String::new();
    let mut is_known = |first: &str, second: &str| {
        joined.clear();
        joined.push_str(first);
        joined.push_str(second);
        joined.len() <= longest
            && [first, second, &joined]
                .iter()
                .all(|part| ids.contains(part))
    };
    let known: Vec<(&str, &str)> = merges
        .pairs()
        .filter(|(first, second)| is_known(first, second))
        .collect();
    let owned = |(first, second): (&str, &str)| (first.to_string(), second.to_string());
    known.into_iter().map(owned).collect()
}

fn check_added(tokens: &[AddedToken]) -> Result<(), Reason> {
    let lengths = tokens.iter().map(|token| token.content.len());
    let longest = lengths.clone().max().unwrap_or(0);
    if longest > MAX_ADDED || lengths.sum::<usize>() > MAX_ADDED_BYTES {
        return Err(format!(
            "added_tokens: found more than {MAX_ADDED} bytes in one token, or {MAX_ADDED_BYTES} in all"
        ));
    }
    Ok(())
}

pub(super) fn registered(
    tokens: Vec<AddedToken>,
    model: &ModelWrapper,
    normalizer: &[NormalizerStep],
) -> Result<AddedVocabulary, Reason> {
    let mut added = AddedVocabulary::new();
    added.set_encode_special_tokens(true);
    let longest = tokens
        .iter()
        .map(|token| token.content.as_str())
        .max_by_key(|content| content.len());
    let deadline = deadline(tokens.iter().map(|token| token.content.len()).sum());
    let normalizing = Normalizing::new(normalizer, longest.unwrap_or_default(), deadline);
    added
        .add_tokens(tokens, model, Some(&normalizing))
        .map_err(|error| error.to_string())?;
    match normalizing.failure.into_inner() {
        Ok(None) => Ok(added),
        Ok(Some(reason)) => Err(reason),
        Err(_) => Err("its normalizer cannot be used".into()),
    }
}

/// How the vocabulary writes bytes.
fn spelling(file: &File, kind: &str) -> Spelling {
    let (decoder, splits) = (&file.decoder.0, &file.pre_tokenizer.0);
    let byte_level = has_step(decoder, "ByteLevel", 0) || has_step(splits, "ByteLevel", 0);
    let fallback =
        file.model.switches["byte_fallback"] == true || has_step(decoder, "ByteFallback", 0);
    match kind {
        "RWKV" => Spelling::Escaped,
        "SentencePiece" => Spelling::Text {
            byte_fallback: true,
        },
        _ if byte_level => Spelling::ByteLevel,
        _ => Spelling::Text {
            byte_fallback: fallback,
        },
    }
}

/// Whether a decoder or pre-tokenizer, or any step in its sequence, has the type `name`.
fn has_step(value: &Value, name: &str, depth: usize) -> bool {
    let steps = value["decoders"]
        .as_array()
        .or_else(|| value["pretokenizers"].as_array());
    let inside =
        || steps.is_some_and(|steps| steps.iter().any(|step| has_step(step, name, depth + 1)));
    value["type"] == name || (depth < 8 && inside())
}
