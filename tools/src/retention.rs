//! Retained sets: how many tokens each head of each layer holds, and of those that have left the window which share.

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

/// The sets of a layer, one of each key head.
pub struct LayerSets {
    /// The layer's number.
    pub layer: usize,
    /// Tokens that each head holds.
    pub counts: Vec<u32>,
    /// The most that one can hold.
    pub capacity: usize,
    /// Tokens of the layer's window.
    pub window: usize,
}

impl LayerSets {
    /// The share of the tokens that have left the window when `read` tokens were read, for each head; none while none has left it.
    fn shares(&self, read: u64) -> Option<Vec<f64>> {
        let left = read.checked_sub(self.window as u64).filter(|&n| n > 0)?;
        let share = |&count: &u32| f64::from(count) / left as f64;
        Some(self.counts.iter().map(share).collect())
    }
}

/// The sets of every layer that has some.
pub fn sets(snapshot: &Snapshot) -> Vec<LayerSets> {
    // Columns of a layer's set or window.
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

/// A line for each layer: the heads' shares in percent.
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

/// `waterline inspect --retention`: reads a text and tells of the sets.
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

/// Numbers of a state tensor.
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
