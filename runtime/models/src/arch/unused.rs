//! Strict checkpoints: a tensor that no frontend read is an error that names it, unless [`super::unused_lists`] lists it, with the
//! reason why the model's logits do not depend on it. A tensor counts as used when a frontend reads it through
//! [`safetensors::Checkpoint`] or [`Gguf`]; nothing else needs to be declared.

use std::ops::Range;

use serde_json::Value;
use waterline_quant::gguf::{Gguf, Value as GgufValue};
use waterline_quant::safetensors;

use super::Config;
use super::unused_lists::{GGUF_MTP, GGUF_TENSORS, Idle, MTP, OWN_KEYS, TENSORS, TENSORS_AT};
use crate::error::{Error, Result};
use crate::weights::Tensors;

/// Maximum number of names in a message.
const SHOWN: usize = 8;

/// Infix of a shared block's tensor names, between the layer and the part.
const SHARED: &str = ".shared_transformer.";

/// Refuses a checkpoint with an unread tensor that may affect the logits. `tensors` are the model's tensors. Those of a block that
/// predicts further tokens have no effect, unless `mtp`.
pub(super) fn check_tensors(
    config: &Config,
    weights: &safetensors::Checkpoint,
    tensors: &Tensors,
    mtp: bool,
) -> Result<()> {
    // Some programs write a tied output matrix as a copy of the embedding.
    let is_embedding = |name: &str| {
        name.ends_with("lm_head.weight")
            && tensors.get("token_embd.weight").is_some_and(|embedding| {
                weights
                    .bytes(name)
                    .is_some_and(|bytes| bytes[..] == embedding.data[..])
            })
    };
    let unused: Vec<&str> = weights.unused().collect();
    let at = |name: &str| {
        let mut lists = TENSORS_AT.iter().filter(|(key, value, _)| {
            let found = config.object().get(*key);
            found.and_then(Value::as_bool) == Some(*value)
        });
        lists.any(|(_, _, names)| is_named(names, name))
    };
    let bytes = |name: &str| weights.bytes(name).map(|bytes| &bytes[..]);
    // Some programs write the tensors of a shared block under every layer that uses it.
    let repeats = |name: &str| {
        let ending = name.split_once(SHARED).map(|(_, ending)| ending);
        let same = |other: &str| {
            other != name
                && other.split_once(SHARED).map(|(_, ending)| ending) == ending
                && bytes(other) == bytes(name)
        };
        let used = |other: &&str| !unused.contains(other);
        ending.is_some() && weights.names().filter(used).any(same)
    };
    // Layers after the last one predict further tokens.
    let number = |key: &str| {
        config
            .object()
            .get(key)
            .and_then(Value::as_u64)
            .unwrap_or(0)
    };
    let first = number("num_hidden_layers");
    let further = first..first + number("num_nextn_predict_layers").min(first);
    let after_last = |name: &str| {
        let layer = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split('.').next()?.parse().ok());
        layer.is_some_and(|layer| further.contains(&layer))
    };
    let is_further = |name: &str| !mtp && (is_named(MTP, name) || after_last(name));
    let text = config
        .object()
        .get("text_config")
        .and_then(Value::as_object);
    let inner = |key: &str| {
        let value = text.unwrap_or(config.object()).get(key);
        value.and_then(Value::as_u64).unwrap_or(0)
    };
    let count = inner("num_hidden_layers");
    let shared = count.saturating_sub(inner("num_kv_shared_layers"))..count;
    let listed =
        |name: &str| is_listed(TENSORS, name) || is_further(name) || has_no_reader(&shared, name);
    let idle = |name: &str| listed(name) || is_embedding(name) || at(name) || repeats(name);
    let unused = unused.iter().copied().filter(|name| !idle(name));
    refuse(weights.name(), unused)
}

/// Refuses a GGUF file with an unread tensor that may affect the logits. Tensors of a block that predicts further tokens have no
/// effect, unless `mtp`.
pub(crate) fn check_gguf(gguf: &Gguf, mtp: bool) -> Result<()> {
    let architecture = gguf.get_str("general.architecture").unwrap_or_default();
    let tensors = gguf.unused_tensors();
    // Blocks after the last layer predict further tokens.
    let number = |key: &str| {
        let value = gguf.get(&format!("{architecture}.{key}"));
        value.and_then(GgufValue::as_u64).unwrap_or(0)
    };
    let blocks = number("block_count");
    let further = blocks.saturating_sub(number("nextn_predict_layers"))..blocks;
    let is_further = |name: &str| {
        let block = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next());
        let block = block.and_then(|block| block.parse::<u64>().ok());
        block.is_some_and(|block| further.contains(&block)) || is_named(GGUF_MTP, name)
    };
    let shared = blocks.saturating_sub(number("attention.shared_kv_layers"))..blocks;
    let is_idle = |name: &str| {
        is_listed(GGUF_TENSORS, name) || !mtp && is_further(name) || has_no_reader(&shared, name)
    };
    let tensors = tensors.filter(|name| !is_idle(name));
    refuse(gguf.name(), tensors)
}

/// Whether the tensor would give keys or values to one of the layers `shared`, which read those of earlier layers.
fn has_no_reader(shared: &Range<u64>, name: &str) -> bool {
    let mut starts = ["layers.", "blk."].iter();
    let layer = starts.find_map(|start| name.split_once(start)?.1.split_once('.'));
    layer.is_some_and(|(layer, part)| {
        layer.parse().is_ok_and(|layer| shared.contains(&layer))
            && OWN_KEYS.iter().any(|key| part.starts_with(key))
    })
}

fn is_listed(list: &[Idle], name: &str) -> bool {
    list.iter().any(|(names, _)| is_named(names, name))
}

fn is_named(patterns: &str, name: &str) -> bool {
    let mut patterns = patterns.split_whitespace();
    patterns.any(|pattern| matches(pattern, name))
}

/// Whether `name` matches `pattern`, in which each of up to two stars matches anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let rest = name.strip_prefix(start);
            match end.split_once('*') {
                None => rest.is_some_and(|rest| rest.ends_with(end)),
                Some((middle, end)) => rest.is_some_and(|rest| {
                    let mut ends = rest.match_indices(middle);
                    ends.any(|(i, _)| rest[i + middle.len()..].ends_with(end))
                }),
            }
        }
    }
}

/// The error that names the unused tensors, if there are any.
fn refuse<'a>(file: &str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let names: Vec<&str> = names.collect();
    let what = match names.len() {
        0 => return Ok(()),
        1 => "the tensor",
        _ => "the tensors",
    };
    Err(Error::Unused {
        file: file.into(),
        what,
        names: listed(&names),
    })
}

/// The first names, and the number of the others.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(SHOWN).map(AsRef::as_ref);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_many_names_are_shown() {
        let names: Vec<String> = (0..20).map(|i| format!("t{i}")).collect();
        let error = refuse("f", names.iter().map(String::as_str)).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("the tensors: t0, t1") && said.contains("and 12 more"),
            "{said}"
        );
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("*.inv_freq", "model.rotary_emb.inv_freq"));
        assert!(matches("blk.*.nextn.*", "blk.12.nextn.eh_proj.weight"));
        assert!(matches("a*", "a") && matches("a", "a"));
        assert!(
            !matches("a*", "b")
                && !matches("a", "ab")
                && !matches("blk.*.nextn.*", "blk.1.attn.weight")
        );
    }
}
