//! Steps before tokenization: normalization, and splitting into words. They come from an untrusted `tokenizer.json`; each is checked
//! before it is built.

use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;
use tokenizers::pattern::Invert;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::charsmap;
use super::pattern::{BoundedRegex, Search};

/// Largest number of steps of one kind, and their deepest nesting.
const MAX_STEPS: usize = 32;
const MAX_DEPTH: usize = 8;
/// Longest text that a step inserts, in bytes.
const MAX_CONTENT: usize = 64;

type Reason = String;

/// A normalization step.
pub(super) enum NormalizerStep {
    Replace(BoundedRegex, String),
    Crate(NormalizerWrapper),
}

/// A splitting step.
pub(super) enum SplitStep {
    Regex(BoundedRegex, SplitDelimiterBehavior, bool),
    Crate(PreTokenizerWrapper),
}

/// Flattens nested sequences of components into a list of steps.
fn flat<'j>(
    json: &'j Value,
    list: &str,
    depth: usize,
    steps: &mut Vec<&'j Value>,
) -> Result<(), Reason> {
    if json.is_null() {
        return Ok(());
    }
    if json["type"] != "Sequence" {
        steps.push(json);
    } else {
        for step in json[list]
            .as_array()
            .ok_or_else(|| format!("a sequence has no {list:?}"))?
        {
            if depth == MAX_DEPTH {
                return Err("sequences nest too deeply".into());
            }
            flat(step, list, depth + 1, steps)?;
        }
    }
    if steps.len() > MAX_STEPS {
        Err(format!("found more than {MAX_STEPS} steps in a sequence"))
    } else {
        Ok(())
    }
}

/// Reads the text at a key, if it is not longer than a step may insert.
fn content<'j>(json: &'j Value, key: &str) -> Result<&'j str, Reason> {
    match json[key].as_str() {
        Some(text) if text.len() <= MAX_CONTENT => Ok(text),
        _ => Err(format!(
            "{}: {key}: expected a string of at most {MAX_CONTENT} bytes",
            json["type"]
        )),
    }
}

/// Reads a pattern, which is a regular expression or a literal text.
fn pattern(json: &Value) -> Result<BoundedRegex, Reason> {
    let (regex, text) = (
        json["pattern"]["Regex"].as_str(),
        json["pattern"]["String"].as_str(),
    );
    let source = match (regex, text.or(json["pattern"].as_str())) {
        (Some(regex), _) => regex.to_string(),
        (None, Some(text)) => fancy_regex::escape(text).into_owned(),
        (None, None) => return Err(format!("{}: found no pattern", json["type"])),
    };
    if source.is_empty() {
        return Err(format!("{}: the pattern is empty", json["type"]));
    }
    BoundedRegex::new(&source)
}

/// The normalization steps of a tokenizer.
pub(super) fn normalizer(json: &Value) -> Result<Vec<NormalizerStep>, Reason> {
    let mut steps = Vec::new();
    flat(json, "normalizers", 0, &mut steps)?;
    let step = |json: &&Value| -> Result<NormalizerStep, Reason> {
        match json["type"].as_str() {
            Some("Replace") => {
                return Ok(NormalizerStep::Replace(
                    pattern(json)?.without_empty(),
                    content(json, "content")?.to_string(),
                ));
            }
            Some("Precompiled") => charsmap::check(&json["precompiled_charsmap"])?,
            Some("Prepend") => {
                if content(json, "prepend")?.is_empty() {
                    return Err("\"Prepend\": prepend is empty".into());
                }
            }
            Some(
                "BertNormalizer" | "Strip" | "StripAccents" | "NFC" | "NFD" | "NFKC" | "NFKD"
                | "Lowercase" | "Nmt" | "ByteLevel",
            ) => {}
            _ => return Err(format!("the normalizer {} is not known", json["type"])),
        }
        let step = serde_json::from_value((*json).clone());
        step.map(NormalizerStep::Crate)
            .map_err(|error| error.to_string())
    };
    steps.iter().map(step).collect()
}

/// The splitting steps of a tokenizer.
pub(super) fn pre_tokenizer(json: &Value) -> Result<Vec<SplitStep>, Reason> {
    let mut steps = Vec::new();
    flat(json, "pretokenizers", 0, &mut steps)?;
    let step = |json: &&Value| -> Result<SplitStep, Reason> {
        match json["type"].as_str() {
            Some("Split") => {
                let behavior = serde_json::from_value(json["behavior"].clone());
                let behavior = behavior.map_err(|error| format!("Split: behavior: {error}"))?;
                return Ok(SplitStep::Regex(
                    pattern(json)?,
                    behavior,
                    json["invert"] == true,
                ));
            }
            Some("FixedLength") if json["length"].as_u64().is_none_or(|length| length == 0) => {
                return Err(format!(
                    "FixedLength: length: found {}, expected at least 1",
                    json["length"]
                ));
            }
            Some(
                "BertPreTokenizer" | "ByteLevel" | "CharDelimiterSplit" | "Metaspace"
                | "Whitespace" | "WhitespaceSplit" | "Punctuation" | "Digits" | "UnicodeScripts"
                | "FixedLength",
            ) => {}
            _ => return Err(format!("the pre-tokenizer {} is not known", json["type"])),
        }
        let step = serde_json::from_value((*json).clone());
        step.map(SplitStep::Crate)
            .map_err(|error| error.to_string())
    };
    steps.iter().map(step).collect()
}

/// Normalization of one text. The crate does not propagate errors from a normalizer, so they are stored here.
pub(super) struct Normalizing<'s> {
    steps: &'s [NormalizerStep],
    /// Longest allowed result in bytes.
    limit: usize,
    deadline: Instant,
    pub failure: Mutex<Option<Reason>>,
}

impl<'s> Normalizing<'s> {
    /// Prepares the steps for `text`, with a deadline.
    pub fn new(steps: &'s [NormalizerStep], text: &str, deadline: Instant) -> Self {
        Normalizing {
            steps,
            limit: 1024 + 16 * text.len(),
            deadline,
            failure: Mutex::new(None),
        }
    }

    fn run(&self, text: &mut NormalizedString) -> Result<(), Reason> {
        for step in self.steps {
            let done = match step {
                NormalizerStep::Replace(pattern, content) => {
                    let deadline = self.deadline;
                    text.replace(Search { pattern, deadline }, content)
                }
                NormalizerStep::Crate(step) => step.normalize(text),
            };
            done.map_err(|error| error.to_string())?;
            if text.get().len() > self.limit {
                return Err("its normalizer makes text too long".into());
            }
        }
        Ok(())
    }
}

impl Normalizer for Normalizing<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if let Err(reason) = self.run(text)
            && let Ok(mut failure) = self.failure.lock()
        {
            failure.get_or_insert(reason);
        }
        Ok(())
    }
}

impl SplitStep {
    /// Splits each part of `text` before `deadline`. Adds no space before text that is not at the start, if the scheme is `first`.
    pub fn split(
        &self,
        text: &mut PreTokenizedString,
        at_start: bool,
        deadline: Instant,
    ) -> tokenizers::Result<()> {
        match self {
            SplitStep::Regex(pattern, behavior, inverted) => text.split(|_, part| {
                let search = Search { pattern, deadline };
                if *inverted {
                    part.split(Invert(search), *behavior)
                } else {
                    part.split(search, *behavior)
                }
            }),
            SplitStep::Crate(PreTokenizerWrapper::Metaspace(step))
                if !at_start && step.get_prepend_scheme() == PrependScheme::First =>
            {
                let mut step = step.clone();
                step.set_prepend_scheme(PrependScheme::Never);
                step.pre_tokenize(text)
            }
            SplitStep::Crate(step) => step.pre_tokenize(text),
        }
    }
}
