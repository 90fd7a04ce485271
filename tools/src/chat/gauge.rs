//! `/state`: the contents of a session's state as gauges (windows, retained tokens, matrices) or tensor by tensor.

use std::collections::BTreeMap;

use waterline::Snapshot;
use waterline::{StateDtype, StateKind, StateTensorPlan};

use super::conversation::Conversation;
use crate::error::Result;
use crate::retention::{self, LayerSets, u32s};
use crate::text::{shown_end, shown_line};
use crate::units::{bytes, thousands};

/// Width of a gauge, in characters.
const GAUGE: usize = 20;
/// Maximum length of shown text, in characters.
const TEXT: usize = 56;
/// Number of retained tokens whose text is shown.
const SHOWN: usize = 24;

/// Shows the state as gauges.
pub fn gauges(conversation: &Conversation) -> Result<String> {
    let session = conversation.session();
    let snapshot = session.snapshot()?;
    let read = session.position();
    let mut lines = vec![format!(
        "{} of state, {}; {} tokens read",
        bytes(session.state_bytes()),
        match conversation.context() {
            Some(context) => format!("for {} tokens", thousands(context as u64)),
            None => "however much is read".into(),
        },
        thousands(read)
    )];
    lines.extend(matrices(&snapshot));
    for (rows, holders) in windows(&snapshot) {
        let held = read.min(rows as u64);
        let name = if conversation.context() == Some(rows) {
            "context"
        } else {
            "window"
        };
        lines.push(gauge(name, held, rows as u64, &layers(holders)));
        if held > 0 {
            let text = shown_end(&conversation.last_text(held as usize), TEXT);
            lines.push(format!("{:9} up to: {text}", ""));
        }
    }
    let sets = retention::sets(&snapshot);
    let counted = retained(&sets);
    let positions = retained_positions(&snapshot);
    if counted.is_none() && !positions.is_empty() {
        let (held, capacity) = (positions.len() as u64, positions_capacity(&snapshot));
        lines.push(gauge("retained", held, capacity, "all layers together"));
    }
    lines.extend(counted);
    let shares = retention::lines(&sets, read);
    lines.extend(shares.iter().map(|line| format!("{:9} {line}", "")));
    lines.extend(retained_text(&positions, conversation));
    Ok(lines.join("\n"))
}

/// A line such as `window    █████··············· 32 of 128 tokens, 4 layers`.
fn gauge(name: &str, held: u64, capacity: u64, rest: &str) -> String {
    let full = (GAUGE as u64 * held.min(capacity)).div_ceil(capacity.max(1)) as usize;
    let bar: String = (0..GAUGE)
        .map(|i| if i < full { '█' } else { '·' })
        .collect();
    let (held, capacity) = (thousands(held), thousands(capacity));
    format!("{name:<9} {bar} {held} of {capacity} tokens, {rest}")
}

fn layers(n: usize) -> String {
    match n {
        1 => "1 layer".into(),
        n => format!("{n} layers"),
    }
}

/// The layers with a matrix state, and its size.
fn matrices(snapshot: &Snapshot) -> Option<String> {
    let of_kind = snapshot
        .tensors()
        .filter(|(tensor, _)| tensor.kind == StateKind::Matrix);
    let mut holders: Vec<usize> = Vec::new();
    let mut sum = 0;
    for (tensor, data) in of_kind {
        holders.extend(tensor.layer);
        sum += data.len();
    }
    holders.dedup();
    (sum > 0).then(|| {
        format!(
            "matrices  {} in {}: all that was read, decayed and overwritten",
            bytes(sum),
            layers(holders.len())
        )
    })
}

/// The lengths of the windows, each with its number of layers.
fn windows(snapshot: &Snapshot) -> Vec<(usize, usize)> {
    let mut windows: Vec<(usize, usize)> = Vec::new();
    let is_window = |tensor: &StateTensorPlan| {
        tensor.kind == StateKind::Ring && tensor.name == "keys" && tensor.layer.is_some()
    };
    for (tensor, _) in snapshot.tensors().filter(|(tensor, _)| is_window(tensor)) {
        let rows = tensor.shape.get(1).copied().unwrap_or(0);
        match windows.iter_mut().find(|(other, _)| *other == rows) {
            Some((_, holders)) => *holders += 1,
            None => windows.push((rows, 1)),
        }
    }
    windows
}

/// The fill level of the sets of retained tokens: the mean, and the range over layers and heads.
fn retained(sets: &[LayerSets]) -> Option<String> {
    let counts: Vec<u64> = sets
        .iter()
        .flat_map(|set| set.counts.iter().map(|&n| n.into()))
        .collect();
    let capacity = sets.iter().map(|set| set.capacity as u64).max()?;
    let (least, most) = (*counts.iter().min()?, *counts.iter().max()?);
    let mean = counts.iter().sum::<u64>() / counts.len() as u64;
    let rest = format!(
        "{least} to {most} in each of {} heads",
        thousands(counts.len() as u64)
    );
    Some(gauge("retained", mean, capacity, &rest))
}

/// The state tensors that hold the positions of retained tokens.
fn position_tensors(snapshot: &Snapshot) -> impl Iterator<Item = (&StateTensorPlan, &[u8])> {
    let tensors = snapshot.tensors();
    tensors.filter(|(tensor, _)| tensor.name.ends_with("_positions"))
}

/// The number of tokens that all layers together can retain.
fn positions_capacity(snapshot: &Snapshot) -> u64 {
    let rows = position_tensors(snapshot).map(|(tensor, _)| tensor.shape.iter().product::<usize>());
    rows.sum::<usize>() as u64
}

/// The positions of retained tokens, each with the number of layers and heads that hold it.
fn retained_positions(snapshot: &Snapshot) -> BTreeMap<u64, usize> {
    let mut holders = BTreeMap::new();
    for (_, data) in position_tensors(snapshot) {
        // The tensors store the position plus one; 0 marks an empty row.
        let stored = data.as_chunks::<8>().0.iter();
        let positions = stored.filter_map(|&p| u64::from_le_bytes(p).checked_sub(1));
        for position in positions {
            *holders.entry(position).or_default() += 1;
        }
    }
    holders
}

/// The text of the retained tokens that most layers and heads hold, as far as the history reaches, in text order.
fn retained_text(holders: &BTreeMap<u64, usize>, conversation: &Conversation) -> Option<String> {
    let mut positions: Vec<u64> = holders.keys().copied().collect();
    positions.sort_by_key(|position| std::cmp::Reverse(holders[position]));
    let words = positions
        .iter()
        .filter_map(|&position| Some((position, conversation.token_text(position)?)));
    let mut words: Vec<(u64, String)> = words.take(SHOWN).collect();
    words.sort_by_key(|word| word.0);
    let mut text = String::new();
    let mut last = None;
    for (position, word) in words {
        // Consecutive tokens are joined.
        let follows = last.is_none_or(|last| position == last + 1);
        text += if follows { "" } else { "|" };
        text += &word;
        last = Some(position);
    }
    (!text.is_empty()).then(|| format!("{:9} among them: {}", "", shown_line(&text, TEXT)))
}

/// Lists every state tensor, grouped by name and shape, and the values of counters.
pub fn tensors(conversation: &Conversation) -> Result<String> {
    let session = conversation.session();
    let snapshot = session.snapshot()?;
    let mut groups: Vec<(String, usize, usize)> = Vec::new();
    let mut counters = Vec::new();
    let sets = retention::sets(&snapshot);
    for (tensor, data) in snapshot.tensors() {
        let what = format!("{} {:?} {:?}", tensor.name, tensor.dtype, tensor.shape).to_lowercase();
        match groups.iter_mut().find(|(other, ..)| *other == what) {
            Some((_, times, sum)) => (*times, *sum) = (*times + 1, *sum + data.len()),
            None => groups.push((what, 1, data.len())),
        }
        let counts_members = tensor.kind == StateKind::Counter && tensor.dtype == StateDtype::U32;
        if let Some(layer) = tensor.layer.filter(|_| counts_members) {
            let counts: Vec<String> = u32s(data).map(|count| count.to_string()).collect();
            let set = sets.iter().find(|set| set.layer == layer);
            let capacity = set.map_or(String::new(), |set| format!(" of {}", set.capacity));
            let counts = counts.join(" ");
            counters.push(format!(
                "layer {layer:<3} {}: {counts}{capacity}",
                tensor.name
            ));
        }
    }
    let widths = groups.iter().map(|(what, ..)| what.len());
    let width = widths.max().unwrap_or(0);
    let line = |(what, times, sum): &(String, usize, usize)| {
        format!("{what:<width$}  {times:>3} x  {:>10}", bytes(*sum))
    };
    let mut lines: Vec<String> = groups.iter().map(line).collect();
    lines.extend(counters);
    lines.push(format!(
        "position {}, {} ({} bytes)",
        session.position(),
        bytes(session.state_bytes()),
        session.state_bytes()
    ));
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_full_when_all_is_held_and_empty_before() {
        let bar = |held| gauge("window", held, 128, "1 layer");
        assert!(bar(0).contains(&format!("{} 0 of 128", "·".repeat(20))));
        assert!(bar(1).contains("█·"));
        assert!(bar(128).contains(&"█".repeat(20)));
        assert!(bar(500).contains(&"█".repeat(20)));
    }
}
