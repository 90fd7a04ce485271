//! An importance matrix file, and the tensors that it names.

use std::path::{Path, PathBuf};

use waterline_quant::gguf::{Gguf, Value};
use waterline_quant::imatrix::{Importances, SUMS};

use crate::error::{Error, Result};
use crate::write_model::TensorSource;

/// The importance matrix of a model.
pub struct Imatrix {
    path: PathBuf,
    importances: Importances,
}

impl Imatrix {
    /// Reads a file written by `waterline imatrix` or llama-imatrix (GGUF).
    ///
    /// # Errors
    /// The errors of [`Importances::new`].
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Imatrix {
            path: path.into(),
            importances: Importances::new(Gguf::open(path)?)?,
        })
    }

    /// Sets the column importance of each source that the file names.
    ///
    /// # Errors
    /// A tensor's number of columns differs from the file's.
    pub fn apply(&self, sources: &mut [TensorSource]) -> Result<()> {
        for source in sources {
            let name = &source.weight.name;
            let Some(columns) = self.importances.columns(name)? else {
                continue;
            };
            let shape = &source.weight.shape;
            let rows = shape.len().checked_sub(2).map_or(1, |axis| shape[axis]);
            let expected = source.weight.len() / rows.max(1);
            if columns == expected {
                source.importance = self.importances.mean_squares(name)?;
            } else if name != "token_embd.weight" {
                // The entry of an embedding holds the inputs of the output matrix that it is tied to.
                let message = format!(
                    "{name}{SUMS} has {columns} numbers; the model's tensor of shape {shape:?} needs {expected}"
                );
                return Err(Error::input(&self.path, message));
            }
        }
        Ok(())
    }

    /// The metadata keys in which llama-quantize records the importance matrix that a file was made with.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let file = self.path.display().to_string();
        let mut pairs = vec![("quantize.imatrix.file".to_string(), Value::String(file))];
        if let Some(first) = self.importances.datasets.first() {
            let key = "quantize.imatrix.dataset".to_string();
            pairs.push((key, Value::String(first.clone())));
        }
        let entries = Value::U32(self.importances.names().count() as u32);
        pairs.push(("quantize.imatrix.entries_count".into(), entries));
        let chunks = Value::U32(self.importances.chunks);
        pairs.push(("quantize.imatrix.chunks_count".into(), chunks));
        pairs
    }
}
