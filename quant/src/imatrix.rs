//! Importance matrices in llama.cpp's file format: the mean squares of each matrix's inputs, stored in a GGUF file.

use crate::F32;
use crate::error::{Error, Result};
use crate::gguf::{Gguf, Value};
use crate::room::zeroed;
use crate::storage::Tensor;

/// Suffix of the name of a tensor with a matrix's sums of squares.
pub const SUMS: &str = ".in_sum2";
/// Suffix of the name of a tensor with the numbers of inputs: one count per matrix that is stacked in the tensor.
pub const COUNTS: &str = ".counts";

/// The importances in a file. They are read on request, so a hole in the file costs nothing until then.
pub struct Importances {
    gguf: Gguf,
    /// The texts that the importances were measured on.
    pub datasets: Vec<String>,
    /// Number of text windows read.
    pub chunks: u32,
}

impl Importances {
    /// Takes a file written by `waterline imatrix` or llama-imatrix.
    ///
    /// # Errors
    /// If the file is not an importance matrix.
    pub fn new(gguf: Gguf) -> Result<Self> {
        let kind = gguf.get("general.type").and_then(Value::as_str);
        if kind != Some("imatrix") {
            let kind = kind.unwrap_or("no string");
            let expected = "imatrix, in a file that `waterline imatrix` writes";
            return Err(Error::invalid(gguf.name(), "general.type", kind, expected));
        }
        let datasets = gguf.optional("imatrix.datasets", "a list of texts", |value| {
            Value::as_array(value)?.as_strings()
        });
        Ok(Importances {
            datasets: datasets?.unwrap_or_default().to_vec(),
            chunks: gguf.get_u32("imatrix.chunk_count")?,
            gguf,
        })
    }

    /// The names of the model tensors that the file covers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let tensors = self.gguf.tensors().iter();
        tensors.filter_map(|info| info.name.strip_suffix(SUMS))
    }

    /// Number of columns of a model tensor, summed over its stacked matrices, each with its importance; `None` if the file does not cover
    /// it.
    ///
    /// # Errors
    /// If the tensor does not hold f32 values.
    pub fn columns(&self, name: &str) -> Result<Option<usize>> {
        let sums = format!("{name}{SUMS}");
        if !self.gguf.has_tensor(&sums) {
            return Ok(None);
        }
        Ok(Some(self.floats(&sums)?.len()))
    }

    /// Returns the mean square of each column's input; 1 where a matrix has read no input, as in llama-quantize.
    ///
    /// # Errors
    /// If the values are not mean squares.
    pub fn mean_squares(&self, name: &str) -> Result<Vec<f32>> {
        let sums_name = format!("{name}{SUMS}");
        let sums = self.floats(&sums_name)?;
        let counts = self.floats(&format!("{name}{COUNTS}"))?;
        let wrong = |found: String, expected: &str| {
            let item = format!("tensor '{sums_name}'");
            Error::invalid(self.gguf.name(), item, found, expected)
        };
        let cols = sums.len().checked_div(counts.len()).unwrap_or(0);
        if cols == 0 || cols * counts.len() != sums.len() {
            let found = format!("{} numbers", sums.len());
            let expected = format!("the same number for each of the {} counts", counts.len());
            return Err(wrong(found, &expected));
        }
        let decoded = |tensor: Tensor| -> Result<Vec<f32>> {
            let mut floats = zeroed(tensor.len())?;
            F32.decode(&tensor.data, &mut floats);
            Ok(floats)
        };
        let (mut means, counts) = (decoded(sums)?, decoded(counts)?);
        for (matrix, count) in means.chunks_exact_mut(cols).zip(counts) {
            let count = count.round();
            for mean in matrix {
                *mean = if count > 0.0 { *mean / count } else { 1.0 };
                if !(mean.is_finite() && *mean >= 0.0) {
                    return Err(wrong(
                        mean.to_string(),
                        "a mean square: finite and at least 0",
                    ));
                }
            }
        }
        Ok(means)
    }

    fn floats(&self, name: &str) -> Result<Tensor> {
        let tensor = self.gguf.tensor(name)?;
        if tensor.format != &F32 {
            let item = format!("tensor '{name}'");
            return Err(Error::invalid(self.gguf.name(), item, tensor.format, "F32"));
        }
        Ok(tensor)
    }
}
