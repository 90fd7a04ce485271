//! The tokens of a `tokenizer.json` by their names, and the few that other files add to it or give another meaning.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// Deepest nesting of post-processors that is searched.
const DEEPEST: usize = 8;

/// A token that is found in text before it is tokenized.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Added {
    pub content: String,
    /// Whether it is a control token.
    pub special: bool,
}

/// A tokenizer of which only the added tokens are known until more is needed.
pub(super) struct TokenTable {
    json: Option<Vec<u8>>,
    /// Added tokens by their ids, and their ids by their names.
    added: BTreeMap<u32, Added>,
    names: HashMap<String, u32>,
    /// The token that its post-processor puts before a text.
    begin: Option<u32>,
    /// The ids of `json` that other files have changed or added.
    changed: Vec<u32>,
    vocab: OnceCell<HashMap<String, u32>>,
}

/// The parts of the file that are short.
#[derive(Deserialize, Default)]
struct Head {
    #[serde(default)]
    added_tokens: Vec<Value>,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    #[allow(dead_code)] // It is the long part, which is passed over.
    model: Option<IgnoredAny>,
}

impl TokenTable {
    /// The tokens of a `tokenizer.json`, if there is one. A broken file has none: building the tokenizer reports the
    /// reason.
    pub fn new(json: Option<Vec<u8>>) -> Self {
        let head = json.as_deref().map(serde_json::from_slice::<Head>);
        let head = head.and_then(Result::ok).unwrap_or_default();
        let added = head.added_tokens.iter().filter_map(|token| {
            let special = token["special"].as_bool().unwrap_or(false);
            Some((
                id(&token["id"])?,
                added(token["content"].as_str()?, special),
            ))
        });
        let added: BTreeMap<u32, Added> = added.collect();
        let name = |(&id, token): (&u32, &Added)| (token.content.clone(), id);
        TokenTable {
            names: added.iter().map(name).collect(),
            added,
            begin: begin(&head.post_processor, 0),
            json,
            changed: Vec::new(),
            vocab: OnceCell::new(),
        }
    }

    /// The token that the tokenizer puts before plain text.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// The added tokens, by their ids.
    pub fn added(&self) -> impl Iterator<Item = (u32, &str)> {
        let tokens = self.added.iter();
        tokens.map(|(&id, token)| (id, token.content.as_str()))
    }

    /// The id of a token.
    pub fn id(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied().or_else(|| {
            let vocab = self.vocab.get_or_init(|| self.read_vocab());
            vocab.get(name).copied()
        })
    }

    /// The model's own tokens. The whole file is read for them.
    fn read_vocab(&self) -> HashMap<String, u32> {
        let json: Value = match self.json.as_deref().map(serde_json::from_slice) {
            Some(Ok(json)) => json,
            _ => return HashMap::new(),
        };
        match &json["model"]["vocab"] {
            Value::Object(vocab) => {
                let token = |(name, number): (&String, &Value)| Some((name.clone(), id(number)?));
                vocab.iter().filter_map(token).collect()
            }
            Value::Array(vocab) => {
                // Unigram has pairs of a token and its score.
                let name = |token: &Value| token.as_str().or(token[0].as_str()).map(str::to_string);
                let tokens = vocab.iter().zip(0..);
                tokens
                    .filter_map(|(token, id)| Some((name(token)?, id)))
                    .collect()
            }
            _ => HashMap::new(),
        }
    }

    /// Adds a token that another file names, unless the tokenizer has it.
    pub fn add(&mut self, number: u32, content: &str, special: bool) {
        let known = self.added.contains_key(&number) || self.names.contains_key(content);
        if !known && !content.is_empty() {
            self.added.insert(number, added(content, special));
            self.names.insert(content.into(), number);
            self.changed.push(number);
        }
    }

    /// Makes an added token a control token, which no text of a person becomes.
    pub fn make_special(&mut self, id: u32) {
        if let Some(token) = self.added.get_mut(&id)
            && !token.special
        {
            token.special = true;
            self.changed.push(id);
        }
    }

    /// The `tokenizer.json`, with what was added.
    pub fn into_json(self) -> Option<Vec<u8>> {
        let bytes = self.json?;
        if self.changed.is_empty() {
            return Some(bytes);
        }
        let Ok(mut json) = serde_json::from_slice::<Value>(&bytes) else {
            return Some(bytes);
        };
        if !json.is_object() || !(json["added_tokens"].is_array() || json["added_tokens"].is_null())
        {
            return Some(bytes);
        }
        let vocab = json["model"]["vocab"].take();
        let len = vocab.as_object().map(|vocab| vocab.len());
        let len = len.or(vocab.as_array().map(Vec::len)).unwrap_or(0) as u32;
        let in_vocab = |name: &str| vocab.get(name).and_then(id);
        if json["added_tokens"].is_null() {
            json["added_tokens"] = json!([]);
        }
        let Some(tokens) = json["added_tokens"].as_array_mut() else {
            return Some(bytes);
        };
        let mut changed: BTreeMap<u32, &Added> = self
            .changed
            .iter()
            .map(|id| (*id, &self.added[id]))
            .collect();
        for token in tokens.iter_mut() {
            if let Some(change) = id(&token["id"]).and_then(|id| changed.remove(&id)) {
                token["special"] = json!(change.special);
            }
        }
        // A new token has the id of the vocabulary or the next one: the numbers of others cannot be kept.
        let ids = tokens.iter().filter_map(|token| id(&token["id"]));
        let mut next = ids.max().map_or(0, |last| last + 1).max(len);
        let fits = |(number, token): &(u32, &Added)| {
            let is_next = *number == next;
            next += u32::from(is_next);
            is_next || in_vocab(&token.content) == Some(*number)
        };
        let changed: Vec<(u32, &Added)> = changed.into_iter().filter(fits).collect();
        tokens.extend(changed.into_iter().map(|(id, token)| {
            json!({
                "id": id,
                "content": token.content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": token.special,
            })
        }));
        json["model"]["vocab"] = vocab;
        Some(json.to_string().into_bytes())
    }
}

fn added(content: &str, special: bool) -> Added {
    let content = content.into();
    Added { content, special }
}

/// A token id.
pub(super) fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// The token that a post-processor puts before a single text.
fn begin(post: &Value, depth: usize) -> Option<u32> {
    match post["type"].as_str()? {
        "TemplateProcessing" => {
            let name = post["single"][0]["SpecialToken"]["id"].as_str()?;
            id(&post["special_tokens"][name]["ids"][0])
        }
        "Sequence" if depth < DEEPEST => {
            let steps = post["processors"].as_array()?;
            steps.iter().find_map(|step| begin(step, depth + 1))
        }
        "BertProcessing" | "RobertaProcessing" => id(&post["cls"][1]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_post_processor_says_what_begins_a_text() {
        assert_eq!(table(&tokenizer()).begin(), Some(1));
        let mut other = tokenizer();
        let steps = &mut other["post_processor"]["processors"];
        steps[1]["single"] = json!([{ "Sequence": { "id": "A", "type_id": 0 } }]);
        assert_eq!(table(&other).begin(), None);
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
