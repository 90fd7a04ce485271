//! tiktoken's vocabulary file: a line for each token, with its bytes in base64 and its rank. Kimi's models have one.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::super::llama_cpp_splits::splits;
use super::{ReadFile, added, byte_level, byte_level_splits};
use waterline_error::alphabet::Alphabet;
use waterline_error::base64;

/// Ids after the last rank that Kimi's tokenizer reserves for special tokens.
const RESERVED: u64 = 256;
/// Longest token of which the parts are looked for.
const MAX_MERGED: usize = 256;

/// Reads the file; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut ranks: HashMap<Vec<u8>, u64> = HashMap::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
    {
        let (token, rank) = token(line).ok_or_else(|| {
            format!(
                "line {}: expected a token in base64 and its rank",
                number + 1
            )
        })?;
        ranks.insert(token, rank);
    }
    let mut added = added::read(file)?;
    let last = ranks.values().max().copied().unwrap_or(0);
    if last + 1 != ranks.len() as u64 {
        return Err(format!(
            "found {} tokens, the last of rank {last}",
            ranks.len()
        ));
    }
    for id in last + 1..=last.saturating_add(RESERVED) {
        let reserved = || added::token(id, &format!("<|reserved_token_{id}|>"), true);
        added.entry(id).or_insert_with(reserved);
    }
    let alphabet = Alphabet::default();
    let spelled = |(token, rank): (&Vec<u8>, &u64)| (alphabet.encode(token), json!(rank));
    let patterns = splits("kimi-k2").map_or(&[][..], |splits| splits.patterns);
    Ok(json!({
        "version": "1.0",
        "added_tokens": added.into_values().collect::<Vec<_>>(),
        "pre_tokenizer": byte_level_splits(patterns),
        "decoder": byte_level(false),
        "model": {
            "type": "BPE",
            "merges": merges_by_rank(&ranks),
            "vocab": ranks.iter().map(spelled).collect::<Map<_, _>>(),
            "ignore_merges": true,
        },
    }))
}

fn token(line: &str) -> Option<(Vec<u8>, u64)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    let token = base64::decode(token).filter(|token| !token.is_empty())?;
    Some((token, rank.parse().ok()?))
}

/// Every pair of tokens that makes a token, in the order of what they make: tiktoken joins the two neighbours whose token has
/// the lowest rank.
pub(in crate::arch) fn merges_by_rank(ranks: &HashMap<Vec<u8>, u64>) -> Vec<[String; 2]> {
    let mut pairs: Vec<(u64, u64, u64, [&[u8]; 2])> = Vec::new();
    for (token, &rank) in ranks.iter().filter(|(token, _)| token.len() <= MAX_MERGED) {
        for place in 1..token.len() {
            let (first, second) = token.split_at(place);
            if let (Some(&a), Some(&b)) = (ranks.get(first), ranks.get(second)) {
                pairs.push((rank, a, b, [first, second]));
            }
        }
    }
    pairs.sort_unstable();
    let alphabet = Alphabet::default();
    let spelled = pairs
        .iter()
        .map(|(.., pair)| pair.map(|part| alphabet.encode(part)));
    spelled.collect()
}
