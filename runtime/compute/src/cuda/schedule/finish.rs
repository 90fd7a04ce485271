//! A product over a batch's slots that can also do the work on single values after it.

use std::ops::Range;

use super::Call;
use crate::cuda::driver::Address;

/// The product with the work.
pub(crate) struct FinishedProduct {
    /// Two parameters are missing at its end: the address of the first slot's `PrepareTasks`, and the number of bytes from one slot's tasks
    /// to the next.
    pub call: Box<Call>,
    /// The columns of the first slot that it computes.
    pub columns: Vec<Range<Address>>,
}
