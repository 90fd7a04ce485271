//! Work on single values that follows a product over a batch's slots; the product may do it itself.

use std::ops::Range;

use super::Call;
use crate::cuda::driver::Address;

/// The role of a call in such a pair of product and work.
pub(crate) enum Finish {
    /// A product, which computes these columns of the first slot.
    Product {
        /// The product that also does the work. Two parameters are missing at its end: the address of the first slot's `PrepareTasks`, and
        /// the number of bytes from one slot's tasks to the next.
        call: Box<Call>,
        columns: Vec<Range<Address>>,
    },
    /// The work: its first parameter is `PrepareTasks`, and every task is on single values.
    Work {
        columns: Vec<Range<Address>>,
        /// Addresses of the inputs that it keeps for the next token.
        states: Vec<Address>,
    },
}
