//! Functions of a token's values that ops apply before and after their products: activations, norms, gates.

mod activation;
mod norm;

pub use activation::Activation;
pub(crate) use activation::log_sigmoid;
pub use norm::Norm;

use crate::operands::View;
use crate::weights::Vector;

/// The operation on a mixer's output before the output matrix.
pub enum OutputOp {
    /// A norm over each group of values that its gains span: a head, or the whole width.
    Norm(Norm),
    /// A norm over each of this many equal parts of the values that its gains span.
    GroupNorm(Norm, usize),
    /// Plus these columns, each times its gain.
    Add(View, Vector),
    /// A function of every value.
    Map(Activation),
    /// Multiplied by a function of these columns.
    Gate(View, Activation),
}
