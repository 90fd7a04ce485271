//! Where our tensors are in a file with llama.cpp's names, and how the stored tensors are converted to ours.

use std::borrow::Cow;
use std::ops::Range;

use waterline_quant::Tensor;

use crate::arch::squeezed;
use crate::arch::tensors::{from_f32, halves, rows, rows_of_groups, transposed};
use crate::error::{Error, Result};
use crate::weights::{Precision, WeightSpec};

/// A tensor of a layer: our name, the stored name, and the conversion from the stored tensor.
#[derive(Clone)]
pub(super) struct Name {
    /// Our name after the layer's number. Without an ending it means both `.weight` and `.bias`, stored under the same endings.
    ours: Cow<'static, str>,
    /// The stored name after the block's number.
    theirs: &'static str,
    /// The ending of both names, if this entry is for one tensor.
    ending: &'static str,
    /// The stored rows to take; `None` for all.
    rows: Option<Range<usize>>,
    take: Take,
}

/// How a stored tensor is converted to ours.
#[derive(Clone)]
pub(super) enum Take {
    /// Unchanged.
    Whole,
    /// Reshaped to our dimensions, without moving a value.
    Flat,
    /// `part` of each of `count` groups of rows of equal length.
    Groups { count: usize, part: Range<usize> },
    /// Like `Groups`, but transposes the part of each group.
    TransposedGroups { count: usize, part: Range<usize> },
    /// Rows of heads whose channels `turned` rotate with the position. The file stores the two channels of a pair next to
    /// each other; ours are half of the rotated channels apart.
    Halves {
        head_dim: usize,
        turned: Range<usize>,
    },
    /// A function of each value; a result of NaN is an error.
    Values(fn(f32) -> f32),
}

impl Name {
    pub fn new(ours: &'static str, theirs: &'static str, take: Take) -> Self {
        Name {
            ours: ours.into(),
            theirs,
            ending: "",
            rows: None,
            take,
        }
    }

    /// Takes the rows `rows` of a stored tensor unchanged.
    pub fn of_rows(ours: &'static str, theirs: &'static str, rows: Range<usize>) -> Self {
        Name::new(ours, theirs, Take::Whole).in_rows(rows)
    }

    /// Restricts this entry to these stored rows.
    pub fn in_rows(self, rows: Range<usize>) -> Self {
        Name {
            rows: Some(rows),
            ..self
        }
    }

    /// Restricts this entry to the tensor with this ending.
    pub fn ending(self, ending: &'static str) -> Self {
        Name {
            ours: format!("{}{ending}", self.ours).into(),
            ending,
            ..self
        }
    }

    /// Moves this entry to one of a layer's parallel mixers, whose names begin with `prefix` instead of `mixer.`.
    pub fn within(self, prefix: &str) -> Self {
        Name {
            ours: self.ours.replacen("mixer.", prefix, 1).into(),
            ..self
        }
    }

    /// The entry for a tensor that is stored like ours, under the same name.
    pub fn same() -> Self {
        Name::new("", "", Take::Whole)
    }

    /// The stored name of our tensor `part`, if this entry names it.
    pub fn stored(&self, part: &str) -> Option<String> {
        let name = stored_name(part, &self.ours, self.theirs)?;
        Some(name + self.ending)
    }

    /// Converts the stored tensor to `weight`; `file` and `stored` name the stored tensor in errors.
    pub fn take(
        &self,
        file: &str,
        stored: &str,
        tensor: Tensor,
        weight: &WeightSpec,
    ) -> Result<Tensor> {
        let taken = self.take_from(stored, tensor, weight);
        taken.map_err(|error| match error {
            Error::Tensor {
                found, expected, ..
            } => Error::Tensor {
                file: file.into(),
                name: stored.into(),
                found,
                expected,
            },
            other => other,
        })
    }

    fn take_from(&self, stored: &str, mut tensor: Tensor, weight: &WeightSpec) -> Result<Tensor> {
        // Matrices of experts are stored one after another, like the rows of one matrix.
        if weight.shape.len() == 2 && tensor.shape.len() > 2 {
            let (rows, cols) = tensor.rows_cols();
            tensor.shape = vec![rows, cols];
        }
        if let Some(range) = &self.rows {
            tensor = rows(stored, &tensor, std::slice::from_ref(range))?;
        }
        let wrong = |found: String, expected: String| Error::Tensor {
            file: String::new(),
            name: stored.into(),
            found,
            expected,
        };
        let mut taken = match &self.take {
            Take::Whole => tensor,
            Take::Flat if tensor.len() == weight.len() => Tensor {
                shape: weight.shape.clone(),
                ..tensor
            },
            Take::Flat => {
                let expected = format!("{} values", weight.len());
                return Err(wrong(format!("shape {:?}", tensor.shape), expected));
            }
            Take::Groups { count, part } => rows_of_groups(stored, &tensor, *count, part.clone())?,
            Take::TransposedGroups { count, part } => {
                let parts = rows_of_groups(stored, &tensor, *count, part.clone())?;
                transposed(stored, &parts, *count)?
            }
            Take::Halves { head_dim, turned } => {
                halves(stored, &tensor, *head_dim, turned.clone())?
            }
            Take::Values(function) => {
                let values: Vec<f32> = tensor.to_f32().into_iter().map(function).collect();
                if values.iter().any(|x| x.is_nan()) {
                    return Err(wrong(
                        "a positive number or NaN".into(),
                        "negative numbers (rates of decay)".into(),
                    ));
                }
                from_f32(&tensor.shape, &values)?
            }
        };
        // The rows of stacked matrices are the rows of one matrix.
        let rows = |shape: &[usize]| shape.iter().rev().skip(1).product::<usize>();
        let same_rows =
            rows(&taken.shape) == rows(&weight.shape) && taken.shape.last() == weight.shape.last();
        if same_rows || squeezed(&taken.shape) == squeezed(&weight.shape) {
            taken.shape = weight.shape.clone();
        }
        // Tensors that are always f32 here may be quantized in llama.cpp's files. Matrices stay quantized, so that
        // their inputs are rounded as in llama.cpp.
        let is_matrix = weight.shape.len() == 2;
        if weight.precision == Precision::Full && taken.format.is_integer_dot() && !is_matrix {
            taken = from_f32(&taken.shape, &taken.to_f32())?;
        }
        Ok(taken)
    }
}

/// Entries for tensors that are stored unchanged.
pub(super) fn as_stored(names: &[(&'static str, &'static str)]) -> Vec<Name> {
    let name = |&(ours, theirs)| Name::new(ours, theirs, Take::Whole);
    names.iter().map(name).collect()
}

/// The stored name of our tensor `part`, if `ours` is its name with or without the ending.
pub(super) fn stored_name(part: &str, ours: &str, theirs: &str) -> Option<String> {
    match part.strip_prefix(ours)? {
        ending @ ("" | ".weight" | ".bias") => Some(format!("{theirs}{ending}")),
        _ => None,
    }
}
