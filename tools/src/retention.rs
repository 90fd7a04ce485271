//! Retained sets: the tokens that each head of each layer holds, and their share of the tokens that have left the window.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use waterline::{
    Model, Session, SessionOptions, Snapshot, StateKind, StateOptions, StateTensorPlan,
};

use crate::error::{Error, Result};
use crate::text::read_file;
use crate::units::thousands;

/// The sets of a layer, one per key head.
pub struct LayerSets {
    /// The layer's number.
    pub layer: usize,
    /// Number of tokens that each head holds.
    pub counts: Vec<u32>,
    /// Maximum tokens that a head can hold.
    pub capacity: usize,
    /// Size of the layer's window in tokens.
    pub window: usize,
}

impl LayerSets {
    /// For each head, returns its share of the tokens that have left the window after `read` tokens; `None` while no
    /// token has left it.
    fn shares(&self, read: u64) -> Option<Vec<f64>> {
        let left = read.checked_sub(self.window as u64).filter(|&n| n > 0)?;
        let share = |&count: &u32| f64::from(count) / left as f64;
        Some(self.counts.iter().map(share).collect())
    }
}

/// Returns the sets of every layer that has retained sets.
pub fn sets(snapshot: &Snapshot) -> Vec<LayerSets> {
    // Number of columns of a layer's set or window.
    let rows = |layer: usize, kind: StateKind| {
        let mut tensors = snapshot.tensors().map(|(tensor, _)| tensor);
        let of_keys = |t: &&StateTensorPlan| t.kind == StateKind::Set || t.name == "keys";
        let of_layer = |t: &&StateTensorPlan| t.layer == Some(layer) && t.kind == kind;
        let tensor = tensors.find(|t| of_layer(t) && of_keys(t));
        tensor
            .and_then(|tensor| tensor.shape.get(1).copied())
            .unwrap_or(0)
    };
    let counters = snapshot
        .tensors()
        .filter(|(tensor, _)| tensor.name == "set_counts");
    counters
        .filter_map(|(tensor, data)| {
            let layer = tensor.layer?;
            Some(LayerSets {
                layer,
                counts: u32s(data).collect(),
                capacity: rows(layer, StateKind::Set),
                window: rows(layer, StateKind::Ring),
            })
        })
        .collect()
}

/// Returns a line for each layer, with the heads' shares in percent.
pub fn lines(sets: &[LayerSets], read: u64) -> Vec<String> {
    let line = |set: &LayerSets| {
        let mut text = format!("layer {:<3}", set.layer);
        for share in set.shares(read)? {
            write!(text, " {:>5.1}", 100.0 * share).expect("a string grows");
        }
        let left = thousands(read - set.window as u64);
        Some(text + &format!(" % of the {left} tokens that left the window"))
    };
    sets.iter().filter_map(line).collect()
}

/// `waterline inspect --retention`: reads a text and reports the sets.
pub fn of_text(model: &Arc<Model>, path: &Path, state: StateOptions) -> Result<(String, Value)> {
    let tokens = model.tokenizer()?.encode(&read_file(path)?)?;
    let tokens: Vec<u32> = model.bos().into_iter().chain(tokens).collect();
    let mut options = SessionOptions::default();
    options.state = state;
    let mut session = Session::new(model.clone(), options)?;
    session.feed(&tokens)?;
    let sets = sets(&session.snapshot()?);
    if sets.is_empty() {
        let reason = "--retention: no layer of the model counts retained tokens";
        return Err(Error::usage(reason));
    }
    let read = session.position();
    let mut lines = lines(&sets, read);
    if lines.is_empty() {
        let reason = format!("{} tokens, which the windows hold", thousands(read));
        return Err(Error::input(path, reason));
    }
    lines.push(String::new());
    let layer = |set: &LayerSets| {
        json!({
            "layer": set.layer, "window": set.window, "capacity": set.capacity, "counts": set.counts, "shares": set.shares(read),
        })
    };
    let layers: Vec<Value> = sets.iter().map(layer).collect();
    Ok((
        lines.join("\n"),
        json!({ "tokens": read, "layers": layers }),
    ))
}

/// Decodes the numbers of a state tensor.
pub fn u32s(data: &[u8]) -> impl Iterator<Item = u32> {
    data.as_chunks::<4>()
        .0
        .iter()
        .map(|&n| u32::from_le_bytes(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_tokens_that_left_the_window() {
        let sets = [LayerSets {
            layer: 1,
            counts: vec![0, 5, 10],
            capacity: 10,
            window: 16,
        }];
        assert!(lines(&sets, 16).is_empty());
        assert_eq!(
            lines(&sets, 36),
            ["layer 1     0.0  25.0  50.0 % of the 20 tokens that left the window"]
        );
    }
}
