//! Observation of the inputs of products, which importance matrices need.

use std::panic::RefUnwindSafe;
use std::sync::Arc;

use crate::activations::Activations;

/// A product about to be computed.
pub struct ObservedProduct<'a> {
    pub(crate) rows: &'a [u8],
    pub(crate) inputs: &'a Activations,
    pub(crate) picked: Option<&'a [u32]>,
}

/// A callback for products, run on the threads that compute them. The product of a matrix with its inputs may arrive in parts, each with
/// some of the rows.
pub type ProductObserver = Arc<dyn Fn(&ObservedProduct) + Send + Sync + RefUnwindSafe>;

impl<'a> ObservedProduct<'a> {
    /// The stored bytes of the matrix's rows; their address identifies the matrix.
    pub fn rows(&self) -> &'a [u8] {
        self.rows
    }

    /// Calls `see` with each input, before it is rounded to 8 bits.
    pub fn each_input(&self, mut see: impl FnMut(&[f32])) {
        match self.picked {
            None => (0..self.inputs.rows()).for_each(|t| see(self.inputs.row(t))),
            Some(picked) => picked
                .iter()
                .for_each(|&t| see(self.inputs.row(t as usize))),
        }
    }
}
