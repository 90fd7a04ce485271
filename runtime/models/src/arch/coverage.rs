//! Strict tensors: a model uses every value of each tensor that it reads. A size in the description that is too small would
//! otherwise select the first rows of a tensor and open as another model.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// Tensors of which each layer's part is computed from the whole.
const COMPUTED: [&str; 1] = ["model.lower_bounds"];

/// How many values of each stored tensor the model's tensors use.
#[derive(Default)]
pub(super) struct Coverage {
    tensors: BTreeMap<String, Used>,
}

struct Used {
    values: usize,
    used: usize,
}

impl Coverage {
    /// Records the stored tensors, each with its number of values, that were read for a tensor of `ours` values. Several stored tensors
    /// are stacked or computed with, so each is used completely, as is one that was expanded.
    pub fn add(&mut self, reads: Vec<(String, usize)>, ours: usize) {
        let is_part = reads.len() == 1;
        for (name, values) in reads {
            let tensor = self.tensors.entry(name).or_insert(Used { values, used: 0 });
            tensor.used += if is_part { ours.min(values) } else { values };
        }
    }

    /// Fails if only a part of a tensor of `file` is used. A tensor that several tensors share is used more than once.
    pub fn check(&self, file: &str) -> Result<()> {
        let is_partial = |(name, tensor): &(&String, &Used)| {
            !tensor.used.is_multiple_of(tensor.values.max(1)) && !COMPUTED.contains(&name.as_str())
        };
        match self.tensors.iter().find(is_partial) {
            None => Ok(()),
            Some((name, Used { values, used })) => Err(Error::Tensor {
                file: file.into(),
                name: name.clone(),
                found: format!("{values} values"),
                expected: format!("{used} values by the sizes of the description"),
            }),
        }
    }
}
