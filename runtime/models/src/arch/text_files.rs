//! The text files of a Hugging Face directory, each read once: `tokenizer.json`, `tokenizer_config.json`,
//! `special_tokens_map.json`, `added_tokens.json`, `generation_config.json`, chat templates, and the ids of `config.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};
use waterline_quant::{ask_room_for_text, read_file};

use super::sampling_keys;
use super::token_table::{TokenTable, id};
use super::{Config, LARGEST_TEXT, vocab_files};
use super::{embedding, end_tokens};
use crate::error::{Error, Result};
use crate::model::{DEFAULT_TEMPLATE, TextFiles, TokenNames};

/// Keys of `config.json` that may hold the configuration of the language model.
const INNER: [&str; 2] = ["text_config", "llm_config"];
/// Keys that name the tokens that end a generation.
const END_NAMES: [&str; 3] = ["eos_token", "eot_token", "eom_token"];
/// Folder of further chat templates, one file each.
const MORE_TEMPLATES: &str = "additional_chat_templates";
/// Maximum number of files in that folder to read.
const MOST_TEMPLATES: usize = 64;

/// Reads the text files in `dir` of a model with `vocab` token ids; also returns notes on anything odd in them.
pub(super) fn read(dir: &Path, config: &Config, vocab: usize) -> Result<(TextFiles, Vec<String>)> {
    let files = Files::read(dir, config)?;
    let json = bytes(dir, "tokenizer.json")?;
    ask_room_for_text(json.as_ref().map_or(0, Vec::len))?;
    let has_json = json.is_some();
    let json = match json {
        None => vocab_files::read(&|name| bytes(dir, name))?,
        json => json,
    };
    let mut tokens = TokenTable::new(json);
    files.add_tokens(&mut tokens);
    let mut ids = Ids {
        vocab,
        notes: Vec::new(),
    };
    let named = files.ends(&tokens, &mut ids);
    for &end in &named {
        tokens.make_special(end);
    }
    let eos = named.first().copied();
    let mut ends: BTreeSet<u32> = named.into_iter().collect();
    let by_text = end_tokens::by_text(tokens.added(), |_| None).ends;
    ends.extend(by_text.into_iter().filter(|&id| ids.has(id)));
    let (bos, adds_bos) = files.begin(&tokens, has_json, &mut ids);
    let adds_eos = files.tokenizer.get("add_eos_token") == Some(&Value::Bool(true));
    let after = tokens.end().or(eos.filter(|_| adds_eos));
    let text = TextFiles {
        templates: files.templates(dir)?,
        bos,
        adds_bos,
        eos,
        ends,
        embedding: embedding::from_directory(dir, config, after)?,
        sampling: sampling_keys::from_json(&files.generation, &mut ids.notes),
        names: TokenNames {
            bos: files.name_or_none("bos_token"),
            eos: files.name_or_none("eos_token"),
            pad: files.name_or_none("pad_token"),
        },
        tokenizer: tokens.into_json(),
    };
    Ok((text, ids.notes))
}

/// The token ids of a model, and notes on those that it does not have.
struct Ids {
    vocab: usize,
    notes: Vec<String>,
}

impl Ids {
    fn has(&self, id: u32) -> bool {
        (id as usize) < self.vocab
    }

    /// Returns those `ids` that the model has, and adds a note if `file` names any other.
    fn known(&mut self, file: &str, ids: Vec<u32>) -> Vec<u32> {
        let (known, beyond): (Vec<u32>, Vec<u32>) = ids.into_iter().partition(|&id| self.has(id));
        if let Some(id) = beyond.first() {
            let vocab = self.vocab;
            let note = format!(
                "{file} names the token {id}, but the model has {vocab} tokens: it is ignored"
            );
            self.notes.push(note);
        }
        known
    }
}

/// The JSON files of a directory.
struct Files<'a> {
    config: &'a Map<String, Value>,
    generation: Map<String, Value>,
    /// `tokenizer_config.json`
    tokenizer: Map<String, Value>,
    /// `special_tokens_map.json`
    special: Map<String, Value>,
    /// `added_tokens.json`
    added: Map<String, Value>,
}

impl<'a> Files<'a> {
    fn read(dir: &Path, config: &'a Config) -> Result<Self> {
        Ok(Files {
            config: config.object(),
            generation: object(dir, "generation_config.json")?,
            tokenizer: object(dir, "tokenizer_config.json")?,
            special: object(dir, "special_tokens_map.json")?,
            added: object(dir, "added_tokens.json")?,
        })
    }

    /// The token ids at a key of `config.json`, including the configuration of the language model inside it.
    fn ids(&self, key: &str) -> Vec<u32> {
        let inner = INNER.iter().filter_map(|inner| self.config.get(*inner));
        let inner = inner.filter_map(|config| config.get(key));
        let all = self.config.get(key).into_iter().chain(inner);
        all.flat_map(|value| ids(Some(value))).collect()
    }

    /// The tokens that end a generation, as named by the files; the first one ends a document.
    fn ends(&self, tokens: &TokenTable, all: &mut Ids) -> Vec<u32> {
        let mut ends = all.known("config.json", self.ids("eos_token_id"));
        let generation = ids(self.generation.get("eos_token_id"));
        ends.extend(all.known("generation_config.json", generation));
        let named = END_NAMES.iter().filter_map(|key| self.name(key));
        let named = named.filter_map(|name| tokens.id(&name)).collect();
        ends.extend(all.known("tokenizer_config.json", named));
        ends
    }

    /// The token that begins a text, and whether it comes before plain text. A `tokenizer.json` specifies both itself;
    /// other tokenizers have a switch.
    fn begin(&self, tokens: &TokenTable, has_json: bool, all: &mut Ids) -> (Option<u32>, bool) {
        if let Some(begin) = tokens.begin() {
            return (Some(begin), true);
        }
        let named = self.name("bos_token").and_then(|name| tokens.id(&name));
        let named = named.or_else(|| self.ids("bos_token_id").first().copied());
        let known = all.known("config.json", named.into_iter().collect());
        let bos = known.first().copied();
        let switch = self.tokenizer.get("add_bos_token") == Some(&Value::Bool(true));
        (bos, bos.is_some() && !has_json && switch)
    }

    /// A file's entry for a special token: its text or null; `None` if no file has the key.
    fn said(&self, key: &str) -> Option<&Value> {
        self.tokenizer.get(key).or_else(|| self.special.get(key))
    }

    /// The text of a special token.
    fn name(&self, key: &str) -> Option<String> {
        text_of(self.said(key)?).map(str::to_string)
    }

    /// Like [`Files::name`], but empty if a file sets the token to null.
    fn name_or_none(&self, key: &str) -> Option<String> {
        let said = self.said(key)?;
        Some(text_of(said).unwrap_or_default().to_string())
    }

    /// Adds the tokens that a `tokenizer.json` may lack: those of `added_tokens_decoder` and `added_tokens.json`, and special
    /// tokens that are only in the vocabulary.
    fn add_tokens(&self, tokens: &mut TokenTable) {
        let decoder = self.tokenizer.get("added_tokens_decoder");
        for (number, token) in decoder.and_then(Value::as_object).into_iter().flatten() {
            let special = token["special"].as_bool().unwrap_or(false);
            if let (Ok(number), Some(content)) = (number.parse(), token["content"].as_str()) {
                tokens.add(number, content, special);
            }
        }
        for (content, number) in &self.added {
            if let Some(number) = id(number) {
                tokens.add(number, content, false);
            }
        }
        for name in END_NAMES
            .iter()
            .chain(&["bos_token"])
            .filter_map(|key| self.name(key))
        {
            if let Some(number) = tokens.id(&name) {
                tokens.add(number, &name, true);
            }
        }
    }

    /// The chat templates: from separate files, else from `tokenizer_config.json`, else from `chat_template.json`.
    fn templates(&self, dir: &Path) -> Result<BTreeMap<String, String>> {
        let mut templates = BTreeMap::new();
        if let Some(template) = jinja(dir, "chat_template.jinja")? {
            templates.insert(DEFAULT_TEMPLATE.to_string(), template);
        }
        let more = std::fs::read_dir(dir.join(MORE_TEMPLATES));
        for entry in more.into_iter().flatten().flatten().take(MOST_TEMPLATES) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(kind) = name.strip_suffix(".jinja") else {
                continue;
            };
            if let Some(template) = jinja(dir, &format!("{MORE_TEMPLATES}/{name}"))? {
                templates.insert(kind.into(), template);
            }
        }
        if templates.is_empty() {
            templates = self
                .tokenizer
                .get("chat_template")
                .map(named)
                .unwrap_or_default();
        }
        if templates.is_empty() {
            let processor = object(dir, "chat_template.json")?;
            templates = processor
                .get("chat_template")
                .map(named)
                .unwrap_or_default();
        }
        Ok(templates)
    }
}

/// One or more templates by name: from a text, a list of objects with a name and a template, or an object of templates.
fn named(value: &Value) -> BTreeMap<String, String> {
    let of =
        |name: &str, template: &Value| Some((name.to_string(), template.as_str()?.to_string()));
    match value {
        Value::Array(list) => {
            let entry = |entry: &Value| of(entry["name"].as_str()?, &entry["template"]);
            list.iter().filter_map(entry).collect()
        }
        Value::Object(object) => object.iter().filter_map(|(name, t)| of(name, t)).collect(),
        text => of(DEFAULT_TEMPLATE, text).into_iter().collect(),
    }
}

/// The text of a special token, which may be an object with flags.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// One id or a list of them.
fn ids(value: Option<&Value>) -> Vec<u32> {
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        value => value.and_then(id).into_iter().collect(),
    }
}

/// The bytes of a file without its byte order mark, if the file exists.
pub(super) fn bytes(dir: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    let bytes = match read_file(&path, LARGEST_TEXT) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, "cannot read", e)),
    };
    if let Some((found, expected)) = waterline_quant::failed_download(&bytes) {
        return Err(Error::Config {
            file: path.display().to_string(),
            key: "the file".into(),
            found: found.into(),
            expected: expected.into(),
        });
    }
    let marked = bytes.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec);
    Ok(Some(marked.unwrap_or(bytes)))
}

/// The object in a file; empty if the file does not exist.
pub(super) fn object(dir: &Path, name: &str) -> Result<Map<String, Value>> {
    let Some(bytes) = bytes(dir, name)? else {
        return Ok(Map::new());
    };
    let file = dir.join(name).display().to_string();
    Ok(Config::parse(&file, &bytes)?.into_object())
}

/// The template in a file, if the file exists.
fn jinja(dir: &Path, name: &str) -> Result<Option<String>> {
    let Some(bytes) = bytes(dir, name)? else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes).map_err(|e| Error::Template {
        reason: format!("{}: {e}", dir.join(name).display()),
    })?;
    Ok(Some(text))
}
