//! The tokens of a `tokenizer.json` by name, and the few tokens that other files add to it or change.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use waterline_quant::{Few, MOST_ADDED, ShortList, Vocabulary};

/// Maximum nesting of post-processors to search.
const DEEPEST: usize = 8;
/// Maximum number of values in a post-processor.
const MOST_VALUES: usize = 1 << 12;
/// The key of the added tokens.
const ADDED: &str = "added_tokens";

/// A token that is found in text before it is tokenized, as a `tokenizer.json` lists it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AddedToken {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalized: Option<bool>,
    /// Whether the token is a control token.
    #[serde(default)]
    pub special: bool,
}

impl AddedToken {
    /// A token without special flags.
    pub fn new(id: u32, content: &str, special: bool) -> Self {
        AddedToken {
            id: Some(id),
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: Some(false),
            special,
        }
    }
}

/// A tokenizer whose added tokens are parsed; the rest is parsed when needed.
pub(super) struct TokenTable {
    json: Option<Vec<u8>>,
    /// The added tokens of the file, then of other files; `places` has their indices by id, and `names` their ids by name.
    listed: Vec<AddedToken>,
    places: BTreeMap<u32, usize>,
    names: HashMap<String, u32>,
    /// Number of tokens in `listed` that come from the file.
    own: usize,
    /// The tokens that the post-processor puts before and after a text.
    around: [Option<u32>; 2],
    /// Whether other files have changed or added tokens.
    is_changed: bool,
    vocab: OnceCell<Vocabulary>,
}

/// The short parts of the file.
#[derive(Deserialize, Default)]
struct Head {
    #[serde(default)]
    added_tokens: ShortList<AddedToken, MOST_ADDED>,
    #[serde(default)]
    post_processor: Few<MOST_VALUES>,
}

/// The long part of the file.
#[derive(Deserialize, Default)]
struct Words {
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize, Default)]
struct Model {
    #[serde(default)]
    vocab: Vocabulary,
}

impl TokenTable {
    /// The tokens of a `tokenizer.json`, if there is one. A broken file yields none; building the tokenizer reports the
    /// reason.
    pub fn new(json: Option<Vec<u8>>) -> Self {
        let head = json.as_deref().map(serde_json::from_slice::<Head>);
        let head = head.and_then(Result::ok).unwrap_or_default();
        let listed = head.added_tokens.0;
        let numbered = || {
            (0..)
                .zip(&listed)
                .filter_map(|(place, token)| Some((token.id?, place, token)))
        };
        TokenTable {
            places: numbered().map(|(id, place, _)| (id, place)).collect(),
            names: numbered()
                .map(|(id, _, token)| (token.content.clone(), id))
                .collect(),
            own: listed.len(),
            listed,
            around: around(&head.post_processor.0, 0),
            json,
            is_changed: false,
            vocab: OnceCell::new(),
        }
    }

    /// The token that the tokenizer puts before plain text.
    pub fn begin(&self) -> Option<u32> {
        self.around[0]
    }

    /// The token that the tokenizer puts after plain text.
    pub fn end(&self) -> Option<u32> {
        self.around[1]
    }

    /// The added tokens, sorted by id.
    pub fn added(&self) -> impl Iterator<Item = (u32, &str)> {
        let tokens = self.places.iter();
        tokens.map(|(&id, &place)| (id, self.listed[place].content.as_str()))
    }

    /// The id of a token.
    pub fn id(&self, name: &str) -> Option<u32> {
        let named = self.names.get(name).copied();
        named.or_else(|| self.vocab().id(name))
    }

    /// The model's vocabulary, for which the entire file is parsed.
    fn vocab(&self) -> &Vocabulary {
        self.vocab.get_or_init(|| {
            let words = self.json.as_deref().map(serde_json::from_slice::<Words>);
            words.and_then(Result::ok).unwrap_or_default().model.vocab
        })
    }

    /// Adds a token that another file names, unless the tokenizer has it.
    pub fn add(&mut self, number: u32, content: &str, special: bool) {
        let known = self.places.contains_key(&number) || self.names.contains_key(content);
        if !known && !content.is_empty() {
            self.places.insert(number, self.listed.len());
            self.names.insert(content.into(), number);
            self.listed.push(AddedToken::new(number, content, special));
            self.is_changed = true;
        }
    }

    /// Makes an added token a control token, which user text never produces.
    pub fn make_special(&mut self, id: u32) {
        if let Some(&place) = self.places.get(&id) {
            let special = &mut self.listed[place].special;
            self.is_changed |= !*special;
            *special = true;
        }
    }

    /// The `tokenizer.json`, with the changes.
    pub fn into_json(mut self) -> Option<Vec<u8>> {
        if !self.is_changed {
            return self.json;
        }
        let others = self.listed.split_off(self.own);
        // A tokenizer gives a new token its id in the vocabulary or the next free id, so tokens with other ids are dropped.
        let ids = self.listed.iter().filter_map(|token| token.id);
        let len = self.vocab().len() as u32;
        let mut next = ids.max().map_or(0, |last| last.saturating_add(1)).max(len);
        let mut others: Vec<(u32, AddedToken)> = others
            .into_iter()
            .filter_map(|token| Some((token.id?, token)))
            .collect();
        others.sort_by_key(|(id, _)| *id);
        for (id, token) in others {
            let is_next = id == next;
            next += u32::from(is_next);
            if is_next || self.vocab().id(&token.content) == Some(id) {
                self.listed.push(token);
            }
        }
        let list = serde_json::to_vec(&self.listed).ok()?;
        let json = self.json?;
        Some(with_member(&json, ADDED, &list).unwrap_or(json))
    }
}

/// Sets the value at a key of a JSON object; `None` if `json` is not an object.
fn with_member(json: &[u8], key: &str, value: &[u8]) -> Option<Vec<u8>> {
    serde_json::from_slice::<Head>(json).ok()?;
    if let Some(Range { start, end }) = member(json, key) {
        return Some([&json[..start], value, &json[end..]].concat());
    }
    let (open, rest) = json.split_at(json.iter().position(|&byte| byte == b'{')? + 1);
    let is_empty = rest.trim_ascii_start().first() == Some(&b'}');
    let comma: &[u8] = if is_empty { b"" } else { b"," };
    Some([open, format!("\"{key}\":").as_bytes(), value, comma, rest].concat())
}

/// Finds the value of a key in the text of an object.
fn member(json: &[u8], key: &str) -> Option<Range<usize>> {
    let (mut depth, mut in_string, mut is_escaped) = (0, false, false);
    // `text` is the last string of the object itself, a key if a colon follows; `value` is where the sought value starts.
    let (mut text, mut value) = (0..0, None);
    for (at, &byte) in json.iter().enumerate() {
        match (in_string, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (true, b'"') => {
                in_string = false;
                text.end = at;
            }
            (true, _) => {}
            (false, b'"') => {
                in_string = true;
                text = at + 1..at + 1;
            }
            (false, b'[' | b'{') => depth += 1,
            (false, b':') if depth == 1 && &json[text.clone()] == key.as_bytes() => {
                value = Some(at + 1);
            }
            (false, b',' | b']' | b'}') => {
                if let Some(start) = value.filter(|_| depth == 1) {
                    return Some(start..at);
                }
                depth -= i32::from(byte != b',');
            }
            _ => {}
        }
    }
    None
}

/// A token id.
pub(super) fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The tokens that a post-processor puts before and after a single text.
fn around(post: &Value, depth: usize) -> [Option<u32>; 2] {
    match post["type"].as_str() {
        Some("TemplateProcessing") => {
            let pieces = post["single"].as_array().map_or(&[][..], Vec::as_slice);
            let token = |piece: Option<&Value>| {
                let name = piece?["SpecialToken"]["id"].as_str()?;
                id(&post["special_tokens"][name]["ids"][0])
            };
            [token(pieces.first()), token(pieces.last())]
        }
        Some("Sequence") if depth < DEEPEST => {
            let steps = post["processors"].as_array().into_iter().flatten();
            let around = steps.map(|step| around(step, depth + 1));
            around.fold([None; 2], |all, step| {
                [all[0].or(step[0]), all[1].or(step[1])]
            })
        }
        Some("BertProcessing" | "RobertaProcessing") => [id(&post["cls"][1]), id(&post["sep"][1])],
        _ => [None; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokenizer() -> Value {
        json!({
            "added_tokens": [{ "id": 3, "content": "<|im_end|>", "special": false }],
            "post_processor": { "type": "Sequence", "processors": [
                { "type": "ByteLevel" },
                { "type": "TemplateProcessing", "single": [
                    { "SpecialToken": { "id": "<s>", "type_id": 0 } },
                    { "Sequence": { "id": "A", "type_id": 0 } },
                ], "special_tokens": { "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } } },
            ] },
            "model": { "type": "BPE", "vocab": { "a": 0, "<s>": 1 }, "merges": [] },
        })
    }

    fn table(json: &Value) -> TokenTable {
        TokenTable::new(Some(json.to_string().into_bytes()))
    }

    #[test]
    fn the_post_processor_names_the_tokens_around_a_text() {
        assert_eq!(table(&tokenizer()).around, [Some(1), None]);
        let mut other = tokenizer();
        let steps = &mut other["post_processor"]["processors"];
        steps[1]["single"] = json!([{ "Sequence": { "id": "A", "type_id": 0 } }]);
        assert_eq!(table(&other).around, [None, None]);
        let steps = &mut other["post_processor"]["processors"];
        let end = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
        steps[1]["single"] = json!([{ "Sequence": { "id": "A", "type_id": 0 } }, end]);
        let table = |json| table(json).around;
        assert_eq!(table(&other), [None, Some(1)]);
        assert_eq!(TokenTable::new(Some(b"[".to_vec())).begin(), None);
    }

    #[test]
    fn tokens_are_found_added_and_made_special() {
        let mut table = table(&tokenizer());
        assert_eq!(
            ["a", "<s>", "<|im_end|>", "b"].map(|name| table.id(name)),
            [Some(0), Some(1), Some(3), None]
        );
        table.add(3, "other", true);
        table.add(4, "<pad>", true);
        table.make_special(3);
        let json: Value =
            serde_json::from_slice(&table.into_json().expect("a file")).expect("JSON");
        let added = |i: usize, key: &str| json["added_tokens"][i][key].clone();
        assert_eq!(
            [added(0, "content"), added(0, "special")],
            [json!("<|im_end|>"), json!(true)]
        );
        assert_eq!(
            [added(1, "content"), added(1, "id")],
            [json!("<pad>"), json!(4)]
        );
    }

    #[test]
    fn a_tokenizer_that_needs_no_change_stays_as_it_is() {
        let bytes = tokenizer().to_string().into_bytes();
        let mut table = TokenTable::new(Some(bytes.clone()));
        table.add(3, "<|im_end|>", true);
        assert_eq!(table.into_json(), Some(bytes));
    }
}
