//! RWKV's vocabulary file: one line per token, with its id, its bytes as a Python literal, and the number of bytes.

use serde::Serialize;
use waterline_quant::MOST_TOKENS;

use super::super::token_table::AddedToken;
use super::{Description, ReadFile, added, python};

/// Name of token 0, which ends a text, if no file names it.
const END: &str = "<|rwkv_tokenizer_end_of_text|>";
/// Maximum number of missing ids.
const MAX_GAPS: usize = 1 << 16;

#[derive(Serialize)]
#[serde(tag = "type", rename = "RWKV")]
struct Model {
    vocab: Vec<String>,
}

/// Reads the file; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let text = text.trim_start_matches('\u{feff}');
    let lines = text.lines().filter(|line| !line.is_empty()).count();
    let most = (lines + MAX_GAPS).min(MOST_TOKENS);
    let mut tokens: Vec<String> = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        let wrong = |what: &str| format!("line {}: {what}", number + 1);
        let (id, bytes) = token(line)
            .ok_or_else(|| wrong("expected an id, a Python literal and its number of bytes"))?;
        if id >= most {
            return Err(wrong(&format!("the id {id} is too large")));
        }
        if id >= tokens.len() {
            tokens.resize(id + 1, String::new());
        }
        if !tokens[id].is_empty() {
            return Err(wrong(&format!("the id {id} belongs to another token")));
        }
        tokens[id] = escaped(&bytes);
    }
    let mut added = added::read(file)?;
    if tokens.first().is_some_and(String::is_empty) && !added.contains_key(&0) {
        let name = added::named(file, "eos_token")?;
        let name = name.unwrap_or_else(|| END.into());
        added.insert(0, AddedToken::new(0, &name, true));
        tokens[0] = name;
    }
    Description::new(Model { vocab: tokens }, added.into_values().collect()).to_json()
}

/// The id and the bytes of a line.
fn token(line: &str) -> Option<(usize, Vec<u8>)> {
    let (id, rest) = line.trim_end().split_once(' ')?;
    let (source, length) = rest.rsplit_once(' ')?;
    let bytes = python::literal(source)?;
    let length: usize = length.parse().ok()?;
    (length == bytes.len() && length > 0).then_some((id.parse().ok()?, bytes))
}

/// Escapes bytes as in the tokenizer's description.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(byte.into()),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}
