//! Tensors that a model needs: their names and shapes, and the formats that preserve their meaning.

use std::collections::HashMap;
use std::sync::Arc;

use waterline_quant::Tensor;

/// A small f32 tensor that is never quantized: a norm, bias, gate, convolution or router.
pub type Vector = Arc<[f32]>;

/// Tensors by their full names.
pub type Tensors = HashMap<String, Tensor>;

/// A tensor that a model needs: its name, its shape and how it may be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Name; a mixer's tensors are named relative to the layer, such as `q_proj.weight`.
    pub name: String,
    /// Shape, outermost dimension first. Dimensions of size one are left out.
    pub shape: Vec<usize>,
    /// Number formats that the tensor may be stored in.
    pub precision: Precision,
}

/// Which number formats a tensor may be stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// A large matrix: any format, including 4-bit ones.
    Quantized,
    /// A decay, gate, norm, convolution or router: always f32.
    Full,
}

/// Name prefix of tensors that several layers share.
pub const OF_MODEL: &str = "model.";

/// Returns the name of a tensor that all layers listing it share; its shape is equal in each.
pub fn shared_name(name: &str) -> String {
    format!("{OF_MODEL}{name}")
}

/// Returns the full name of the tensor `name` of a model part whose names begin with `scope`.
pub fn full_name(scope: &str, name: &str) -> String {
    if name.starts_with(OF_MODEL) {
        name.into()
    } else {
        format!("{scope}{name}")
    }
}

impl WeightSpec {
    /// A matrix `[rows, cols]` that may be quantized.
    #[doc(hidden)]
    pub fn matrix(name: &str, rows: usize, cols: usize) -> Self {
        WeightSpec {
            name: name.into(),
            shape: vec![rows, cols],
            precision: Precision::Quantized,
        }
    }

    /// A tensor that always stays f32.
    #[doc(hidden)]
    pub fn full(name: &str, shape: &[usize]) -> Self {
        WeightSpec {
            name: name.into(),
            shape: shape.to_vec(),
            precision: Precision::Full,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
