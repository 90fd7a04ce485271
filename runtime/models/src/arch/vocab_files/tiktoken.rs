//! tiktoken's vocabulary file: one line per token, with its bytes in base64 and its rank. Kimi's models have this file.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use waterline_error::alphabet::Alphabet;
use waterline_error::base64;

use super::super::llama_cpp_splits::splits;
use super::super::token_table::AddedToken;
use super::{Description, ReadFile, added, byte_level, byte_level_splits, check_count};

/// Ids after the last rank that Kimi's tokenizer reserves for special tokens.
const RESERVED: u32 = 256;
/// Longest token whose parts are looked up.
const MAX_MERGED: usize = 256;
/// Maximum number of bytes of parts to look up: a token of n bytes has about n * n. Published vocabularies have twenty million.
const MOST_PART_BYTES: usize = 1 << 28;

#[derive(Serialize)]
#[serde(tag = "type", rename = "BPE")]
struct Model<'r> {
    merges: Vec<[String; 2]>,
    #[serde(serialize_with = "spelled")]
    vocab: &'r HashMap<Vec<u8>, u64>,
    ignore_merges: bool,
}

fn spelled<S: Serializer>(ranks: &HashMap<Vec<u8>, u64>, to: S) -> Result<S::Ok, S::Error> {
    let alphabet = Alphabet::default();
    to.collect_map(
        ranks
            .iter()
            .map(|(token, rank)| (alphabet.encode(token), rank)),
    )
}

/// Reads the file; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Vec<u8>, String> {
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
        check_count(ranks.len())?;
    }
    let mut added = added::read(file)?;
    let last = ranks.values().max().copied().unwrap_or(0);
    if last.checked_add(1) != Some(ranks.len() as u64) {
        return Err(format!(
            "found {} tokens, but the last has rank {last}",
            ranks.len()
        ));
    }
    // This fits, because there are fewer ranks than bytes in the file.
    let next = last as u32 + 1;
    for id in next..next + RESERVED {
        let name = format!("<|reserved_token_{id}|>");
        added
            .entry(id)
            .or_insert_with(|| AddedToken::new(id, &name, true));
    }
    let model = Model {
        merges: merges_by_rank(&ranks)?,
        vocab: &ranks,
        ignore_merges: true,
    };
    let patterns = splits("kimi-k2").map_or(&[][..], |splits| splits.patterns);
    Description {
        pre_tokenizer: byte_level_splits(patterns),
        decoder: byte_level(false),
        ..Description::new(model, added.into_values().collect())
    }
    .to_json()
}

fn token(line: &str) -> Option<(Vec<u8>, u64)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    let token = base64::decode(token).filter(|token| !token.is_empty())?;
    Some((token, rank.parse().ok()?))
}

/// Every pair of tokens that makes a token, ordered by the rank of that token, because tiktoken joins the two neighbours
/// whose token has the lowest rank. The error is a reason.
pub(in crate::arch) fn merges_by_rank(
    ranks: &HashMap<Vec<u8>, u64>,
) -> Result<Vec<[String; 2]>, String> {
    let merged = |token: &&Vec<u8>| token.len() <= MAX_MERGED;
    let squares = ranks.keys().filter(merged).map(|token| token.len().pow(2));
    let bytes: usize = squares.sum();
    if bytes > MOST_PART_BYTES {
        return Err(format!(
            "its tokens have parts of {bytes} bytes, at most {MOST_PART_BYTES} are looked up"
        ));
    }
    let mut by_rank: Vec<(u64, &[u8])> = ranks
        .iter()
        .map(|(token, &rank)| (rank, &token[..]))
        .collect();
    by_rank.sort_unstable();
    let mut pairs: Vec<(u64, u64, u64)> = Vec::new();
    for &(rank, token) in by_rank
        .iter()
        .filter(|(_, token)| token.len() <= MAX_MERGED)
    {
        for place in 1..token.len() {
            let (first, second) = token.split_at(place);
            if let (Some(&a), Some(&b)) = (ranks.get(first), ranks.get(second)) {
                check_count(pairs.len() + 1)?;
                pairs.push((rank, a, b));
            }
        }
    }
    pairs.sort_unstable();
    let alphabet = Alphabet::default();
    let spelled = |rank: u64| {
        let place = by_rank.partition_point(|&(other, _)| other < rank);
        alphabet.encode(by_rank[place].1)
    };
    Ok(pairs.iter().map(|&(_, a, b)| [a, b].map(spelled)).collect())
}
