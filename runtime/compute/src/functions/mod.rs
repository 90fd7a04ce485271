//! Functions that ops apply to a token's values before and after their products: activations, norms, gates.

mod activation;
mod clamped;
mod norm;

pub use activation::Activation;
pub(crate) use activation::log_sigmoid;
pub use clamped::ClampedUnit;
pub use norm::Norm;

use crate::operands::View;
use crate::weights::Vector;

/// The operation on a mixer's output before the output matrix.
pub enum OutputOp {
    /// A norm over each group of values that its gains cover: a head, or all columns.
    Norm(Norm),
    /// A norm over each of this many equal parts of the values that its gains cover.
    GroupNorm(Norm, usize),
    /// Adds these columns, each multiplied by its gain.
    Add(View, Vector),
    /// Applies a function to every value.
    Map(Activation),
    /// Multiplies by a function of these columns.
    Gate(View, Activation),
}
