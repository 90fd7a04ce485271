//! Work on single values after a product of a batch's slots, which the product may do itself.

use std::ops::Range;

use super::Call;
use crate::cuda::driver::Address;

/// A call's part in such a pair.
pub(crate) enum Finish {
    /// A product, which makes these columns of the first slot.
    Product {
        /// The product that also does the work. Two parameters are missing at its end: where the first slot's `PrepareTasks` lie, and how
        /// many bytes are between those of two slots.
        call: Box<Call>,
        columns: Vec<Range<Address>>,
    },
    /// The work: its first parameter is `PrepareTasks`, and all that it does is on single values.
    Work {
        columns: Vec<Range<Address>>,
        /// Where it keeps inputs for the next token.
        states: Vec<Address>,
    },
}
