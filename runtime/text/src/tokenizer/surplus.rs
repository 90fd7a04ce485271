//! Tokens without rows in a model's matrices, such as control tokens for images or sound in the files of a text model. They are removed
//! if no text can become such a token.

use std::collections::HashSet;

use serde_json::Value;
use tokenizers::{AddedToken, AddedVocabulary, ModelWrapper};

use super::build;
use super::file::Merges;
use super::steps::NormalizerStep;

/// Removes the model's own tokens from id `rows` on. Fails if a text may become one of them.
pub(super) fn remove(
    kind: &str,
    (model, merges): (&Value, &Merges),
    tokens: &mut Vec<(String, u32)>,
    rows: usize,
) -> Result<(), String> {
    let is_surplus = |(_, id): &(String, u32)| *id as usize >= rows;
    let Some(last) = tokens.iter().map(|&(_, id)| id).max() else {
        return Ok(());
    };
    if (last as usize) < rows {
        return Ok(());
    }
    let merged: HashSet<String> = merges
        .pairs()
        .map(|(first, second)| [first, second].concat())
        .collect();
    // Tokens longer than a character come only from merges.
    let never = |token: &str| {
        kind == "BPE"
            && model["ignore_merges"] != true
            && token.chars().count() > 1
            && !merged.contains(token)
    };
    let mut surplus = tokens.iter().filter(|token| is_surplus(token));
    if let Some((token, id)) = surplus.find(|(token, _)| !never(token)) {
        return Err(format!(
            "it has {} tokens, but the model has {rows}, and text can be encoded as the token {id}, {token:.40?}",
            u64::from(last) + 1
        ));
    }
    tokens.retain(|token| !is_surplus(token));
    Ok(())
}

/// The added tokens with the ids that the crate assigns, without those from id `rows` on.
pub(super) fn registered(
    mut tokens: Vec<AddedToken>,
    model: &ModelWrapper,
    normalizer: &[NormalizerStep],
    rows: usize,
) -> Result<AddedVocabulary, String> {
    let all = build::registered(tokens.clone(), model, normalizer)?;
    let numbered = all.get_added_tokens_decoder().iter();
    let surplus = numbered.filter(|(id, _)| **id as usize >= rows);
    let surplus: HashSet<&str> = surplus.map(|(_, token)| token.content.as_str()).collect();
    if surplus.is_empty() {
        return Ok(all);
    }
    tokens.retain(|token| !surplus.contains(token.content.as_str()));
    let fewer = build::registered(tokens, model, normalizer)?;
    let numbers = all.get_added_tokens_decoder();
    let same = |(id, token): (&u32, &AddedToken)| {
        numbers
            .get(id)
            .is_some_and(|other| other.content == token.content)
    };
    if fewer.get_added_tokens_decoder().iter().all(same) {
        Ok(fewer)
    } else {
        Err(format!(
            "added_tokens: the tokens from the id {rows} on are not the last ones"
        ))
    }
}
