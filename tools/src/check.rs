//! `waterline inspect --check`: finds weights that are not finite, and layers that compute non-finite numbers from finite weights.

use std::io::Write;
use std::process::ExitCode;

use indicatif::ProgressBar;
use waterline::internal::Checkpoint;
use waterline::{Model, Session, SessionOptions};
use waterline_quant::Tensor;

use crate::error::{Error, Result};
use crate::inspect::tensors;
use crate::interrupt::Interrupt;
use crate::progress::{self, Unit};
use crate::text::shown;
use crate::units::thousands;

/// Reads every weight, then a few tokens. Reports tensors with values that are not finite, and the first layer whose output is
/// not finite.
pub fn run(checkpoint: &Checkpoint) -> Result<ExitCode> {
    let interrupt = Interrupt::watch()?;
    let wrong = wrong_tensors(checkpoint, &interrupt)?;
    let all = tensors(checkpoint).count();
    let mut lines = wrong.clone();
    lines.push(match wrong.len() {
        0 => format!(
            "{}: all values of {all} tensors are finite",
            checkpoint.file
        ),
        n => format!(
            "{}: {n} of {all} tensors hold values that are not finite",
            checkpoint.file
        ),
    });
    let part = first_wrong_part(checkpoint, &interrupt)?;
    lines.push(match &part {
        None => format!("the logits of {TOKENS} tokens are finite"),
        Some(part) => {
            format!("reading {TOKENS} tokens, {part} produces numbers that are not finite")
        }
    });
    let is_wrong = part.is_some() || !wrong.is_empty();
    writeln!(std::io::stdout(), "{}", shown(&lines.join("\n"))).map_err(Error::Stdout)?;
    Ok(ExitCode::from(u8::from(is_wrong)))
}

/// Returns a sentence for each tensor with a value that is not finite.
fn wrong_tensors(checkpoint: &Checkpoint, interrupt: &Interrupt) -> Result<Vec<String>> {
    let all: Vec<(String, &Tensor)> = tensors(checkpoint).collect();
    let size = |(_, tensor): &(String, &Tensor)| tensor.shape.iter().product::<usize>();
    let bar = progress::bar(all.iter().map(size).sum(), Unit::Of("weights"));
    let mut wrong = Vec::new();
    for (name, tensor) in &all {
        bar.set_message(name.clone());
        let found = Values::read(tensor, interrupt, &bar)?;
        if found.nan + found.infinite > 0 {
            wrong.push(format!(
                "{name}: {} NaN and {} infinite of {} values, the first at {:?}",
                thousands(found.nan),
                thousands(found.infinite),
                thousands(found.all),
                index(found.first.unwrap_or(0), &tensor.shape)
            ));
        }
    }
    bar.finish_and_clear();
    Ok(wrong)
}

/// Number of tokens that a check reads, evenly spread over the vocabulary.
const TOKENS: usize = 16;

/// Finds the first part of a model whose output is not finite. Non-finite values persist in the sums of later layers, so the
/// layer is found by bisection: a model cut off after its first layers has finite logits as long as all of these are right.
fn first_wrong_part(checkpoint: &Checkpoint, interrupt: &Interrupt) -> Result<Option<String>> {
    let layers = checkpoint.spec.layers.len();
    if is_finite(checkpoint, layers)? {
        return Ok(None);
    }
    if !is_finite(checkpoint, 0)? {
        return Ok(Some(
            "the embedding, the last norm or the output matrix".into(),
        ));
    }
    // The first `right` layers compute finite numbers, the first `wrong` layers do not.
    let (mut right, mut wrong) = (0, layers);
    while wrong - right > 1 {
        interrupt.check()?;
        let middle = right.midpoint(wrong);
        if is_finite(checkpoint, middle)? {
            right = middle
        } else {
            wrong = middle
        }
    }
    let kind = checkpoint.spec.layers[right].kind();
    Ok(Some(format!("layer {right} ({kind}), the first to do so,")))
}

/// Whether the logits of a model with only the first `layers` layers are finite.
fn is_finite(checkpoint: &Checkpoint, layers: usize) -> Result<bool> {
    let mut first = checkpoint.clone();
    first.spec.layers.truncate(layers);
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (TOKENS, TOKENS);
    options.chunk = TOKENS;
    let vocab = checkpoint.spec.vocab;
    let tokens: Vec<u32> = (0..TOKENS).map(|i| (i * vocab / TOKENS) as u32).collect();
    let mut session = Session::new(Model::bind(first)?, options)?;
    let mut all = true;
    session.feed_each(&tokens, |_, logits| {
        all &= logits.iter().all(|x| x.is_finite())
    })?;
    Ok(all)
}

/// A summary of a tensor's values.
#[derive(Default)]
struct Values {
    all: u64,
    nan: u64,
    infinite: u64,
    /// Index of the first value that is not finite.
    first: Option<usize>,
}

impl Values {
    /// Decodes a tensor row by row.
    fn read(tensor: &Tensor, interrupt: &Interrupt, bar: &ProgressBar) -> Result<Self> {
        /// Number of values to decode at once, unless a row has more.
        const PIECE: usize = 1 << 16;
        let cols = tensor.shape.last().copied().unwrap_or(1).max(1);
        let row_bytes = tensor.format.row_bytes(cols)?;
        let rows = (PIECE / cols).max(1);
        let mut found = Values::default();
        let mut decoded = vec![0.0; rows * cols];
        for stored in tensor.data.chunks(rows * row_bytes) {
            interrupt.check()?;
            let values = &mut decoded[..stored.len() / row_bytes * cols];
            tensor.format.decode(stored, values);
            for (i, value) in values.iter().enumerate().filter(|(_, x)| !x.is_finite()) {
                if value.is_nan() {
                    found.nan += 1
                } else {
                    found.infinite += 1
                }
                found.first.get_or_insert(found.all as usize + i);
            }
            found.all += values.len() as u64;
            bar.inc(values.len() as u64);
        }
        Ok(found)
    }
}

/// Returns the coordinates of value number `i` in a tensor of this shape.
fn index(i: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = i;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&n| {
            let place = rest % n.max(1);
            rest /= n.max(1);
            place
        })
        .collect();
    index.reverse();
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_index() {
        assert_eq!(index(0, &[2, 3]), [0, 0]);
        assert_eq!(index(5, &[2, 3]), [1, 2]);
        assert_eq!(index(7, &[8]), [7]);
    }
}
