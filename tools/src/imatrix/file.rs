//! A file of importances: the mean squares of the inputs of each matrix, in llama.cpp's file format.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use waterline_quant::gguf::{Gguf, Value};

use crate::error::{Error, Result};
use crate::write_model::TensorSource;

pub(super) const SUMS: &str = ".in_sum2";
pub(super) const COUNTS: &str = ".counts";

/// An importance matrix of a model.
pub struct Imatrix {
    path: PathBuf,
    /// Per tensor the mean square of each column's input; of stacked matrices one after another.
    means: HashMap<String, Vec<f32>>,
    /// The texts that it was made with.
    datasets: Vec<String>,
    chunks: u32,
}

impl Imatrix {
    /// Reads a file of `waterline imatrix` or llama-imatrix (GGUF).
    ///
    /// # Errors
    /// The file is no importance matrix, or holds numbers that are none.
    pub fn open(path: &Path) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let kind = gguf.get("general.type").and_then(Value::as_str);
        if kind != Some("imatrix") {
            let message = "is no importance matrix: general.type is not imatrix; `waterline imatrix` writes one";
            return Err(Error::input(path, message));
        }
        let mut means = HashMap::new();
        for info in gguf.tensors() {
            if let Some(name) = info.name.strip_suffix(SUMS) {
                means.insert(name.to_string(), mean_squares(&gguf, path, name)?);
            }
        }
        let datasets = gguf.get("imatrix.datasets").and_then(Value::as_array);
        let datasets = datasets.and_then(|texts| texts.as_strings());
        Ok(Imatrix {
            path: path.into(),
            means,
            datasets: datasets.unwrap_or_default().to_vec(),
            chunks: gguf.get_u32("imatrix.chunk_count")?,
        })
    }

    /// Gives each source that the file names the importance of its columns.
    ///
    /// # Errors
    /// A tensor has another number of columns than the file says.
    pub fn apply(&self, sources: &mut [TensorSource]) -> Result<()> {
        for source in sources {
            let Some(means) = self.means.get(&source.weight.name) else {
                continue;
            };
            let shape = &source.weight.shape;
            let rows = shape.len().checked_sub(2).map_or(1, |axis| shape[axis]);
            let expected = source.weight.len() / rows.max(1);
            if means.len() == expected {
                source.importance = means.clone();
            } else if source.weight.name != "token_embd.weight" {
                // The inputs of an embedding are those of the output that it is tied to.
                let message = format!(
                    "{}{SUMS} has {} numbers; the model's tensor of shape {shape:?} needs {expected}",
                    source.weight.name,
                    means.len()
                );
                return Err(Error::input(&self.path, message));
            }
        }
        Ok(())
    }

    /// The keys by which llama-quantize names the matrix that a file was made with.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let file = self.path.display().to_string();
        let mut pairs = vec![("quantize.imatrix.file".to_string(), Value::String(file))];
        if let Some(first) = self.datasets.first() {
            let key = "quantize.imatrix.dataset".to_string();
            pairs.push((key, Value::String(first.clone())));
        }
        let entries = Value::U32(self.means.len() as u32);
        pairs.push(("quantize.imatrix.entries_count".into(), entries));
        let chunks = Value::U32(self.chunks);
        pairs.push(("quantize.imatrix.chunks_count".into(), chunks));
        pairs
    }
}

/// The sums of a tensor's inputs over their counts; 1 for a matrix that has read nothing, as in llama-quantize.
fn mean_squares(gguf: &Gguf, path: &Path, name: &str) -> Result<Vec<f32>> {
    let tensor = |ending: &str| -> Result<Vec<f32>> {
        let name = format!("{name}{ending}");
        Ok(gguf.tensor(&name)?.to_f32())
    };
    let (mut means, counts) = (tensor(SUMS)?, tensor(COUNTS)?);
    let cols = means.len().checked_div(counts.len()).unwrap_or(0);
    if cols == 0 || cols * counts.len() != means.len() {
        let message = format!(
            "{name}{SUMS} has {} numbers, which {} counts do not divide",
            means.len(),
            counts.len()
        );
        return Err(Error::input(path, message));
    }
    for (matrix, count) in means.chunks_exact_mut(cols).zip(counts) {
        let count = count.round();
        for mean in matrix {
            *mean = if count > 0.0 { *mean / count } else { 1.0 };
            if !(mean.is_finite() && *mean >= 0.0) {
                let message = format!("{name}{SUMS} holds {mean}, which is no mean of squares");
                return Err(Error::input(path, message));
            }
        }
    }
    Ok(means)
}
