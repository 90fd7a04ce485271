//! Seeing the inputs of products, as importance matrices need them.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crate::activations::Activations;

/// A product that is about to be computed.
pub struct ObservedProduct<'a> {
    pub(crate) rows: &'a [u8],
    pub(crate) inputs: &'a Activations,
    pub(crate) picked: Option<&'a [u32]>,
}

/// Sees products, on the threads that compute them. The product of one matrix with some inputs may be several, of some of its rows each.
pub type ProductObserver = Arc<dyn Fn(&ObservedProduct) + Send + Sync + RefUnwindSafe>;

impl<'a> ObservedProduct<'a> {
    /// The stored bytes of the matrix's rows; their address tells which matrix it is.
    pub fn rows(&self) -> &'a [u8] {
        self.rows
    }

    /// The inputs that are multiplied, before they are rounded to 8 bits.
    pub fn each_input(&self, mut see: impl FnMut(&[f32])) {
        match self.picked {
            None => (0..self.inputs.rows()).for_each(|t| see(self.inputs.row(t))),
            Some(picked) => picked
                .iter()
                .for_each(|&t| see(self.inputs.row(t as usize))),
        }
    }
}
