//! Splits the bytes of an arena into those that never change once written and those of the current position.
//!
//! A state tensor whose rows follow the context (keys and values of full attention, means of their blocks) holds a row for each token
//! or block, and a complete row never changes. All other tensors of the layers are overwritten by later tokens.

use std::ops::Range;

use super::plan::{LOGITS, StatePlan, StateTensorPlan};

impl StatePlan {
    /// The bytes of the rows that the tokens at `positions` have written, in an order that does not depend on the context. `positions` must
    /// lie within the context.
    #[doc(hidden)]
    pub fn rows(&self, positions: Range<u64>) -> impl Iterator<Item = Range<usize>> {
        self.tensor_rows(positions).map(|(_, part)| part)
    }

    /// Like [`StatePlan::rows`], but with the tensor of each range.
    #[doc(hidden)]
    pub fn tensor_rows(
        &self,
        positions: Range<u64>,
    ) -> impl Iterator<Item = (&StateTensorPlan, Range<usize>)> {
        let layers = self.tensors().iter().skip(LOGITS + 1);
        layers.flat_map(move |tensor| {
            let parts = rows_of(tensor, positions.clone());
            parts.map(move |part| (tensor, part))
        })
    }

    /// Total size of the ranges of [`StatePlan::rows`] in bytes.
    #[doc(hidden)]
    pub fn row_bytes(&self, positions: Range<u64>) -> usize {
        self.rows(positions).map(|range| range.len()).sum()
    }

    /// The bytes of the layers' other tensors, whose rows do not follow the context.
    #[doc(hidden)]
    pub fn present(&self) -> impl Iterator<Item = Range<usize>> {
        let layers = self.tensors().iter().skip(LOGITS + 1);
        let others = layers.filter(|tensor| tensor.growth().is_none());
        others.map(|tensor| tensor.offset..tensor.offset + tensor.bytes)
    }

    /// Total size of the ranges of [`StatePlan::present`] in bytes.
    #[doc(hidden)]
    pub fn present_bytes(&self) -> usize {
        self.present().map(|range| range.len()).sum()
    }

    /// The tensors of [`StatePlan::present`], each with its bytes in `state`, where they lie one after another.
    #[doc(hidden)]
    pub fn present_tensors<'a>(
        &'a self,
        state: &'a [u8],
    ) -> impl Iterator<Item = (&'a StateTensorPlan, &'a [u8])> {
        let layers = self.tensors().iter().skip(LOGITS + 1);
        let others = layers.filter(|tensor| tensor.growth().is_none());
        others.scan(state, |rest, tensor| {
            let (own, after) = rest.split_at_checked(tensor.bytes)?;
            *rest = after;
            Some((tensor, own))
        })
    }

    /// A hash of the logits and of every tensor of the layers, without the context: plans with equal hashes can exchange checkpoints.
    #[doc(hidden)]
    pub fn shape_hash(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        for tensor in self.tensors().iter().skip(LOGITS) {
            let mut shape = tensor.shape.clone();
            if let Some(growth) = tensor.growth() {
                shape[growth.dimension] = growth.tokens;
            }
            let growth = tensor.growth().is_some();
            let line = format!(
                "{:?} {} {:?} {shape:?} {growth};",
                tensor.layer, tensor.name, tensor.dtype
            );
            hash.update(line.as_bytes());
        }
        hash.finalize()
    }
}

/// The bytes of a tensor's rows that these tokens have written; empty for a tensor without such rows.
fn rows_of(tensor: &StateTensorPlan, positions: Range<u64>) -> impl Iterator<Item = Range<usize>> {
    let (mut parts, mut row, mut rows) = (0, 0, 0..0);
    if let Some(growth) = tensor.growth().filter(|_| !positions.is_empty()) {
        let tokens = growth.tokens as u64;
        parts = tensor.shape[..growth.dimension].iter().product();
        row = tensor.bytes / (parts * tensor.shape[growth.dimension]).max(1);
        let held = tensor.shape[growth.dimension];
        let first = (positions.start / tokens) as usize;
        let end = positions.end.div_ceil(tokens) as usize;
        rows = first.min(held)..end.min(held);
    }
    let (part, offset) = (tensor.bytes / parts.max(1), tensor.offset);
    (0..parts).map(move |index| {
        let start = offset + index * part;
        start + rows.start * row..start + rows.end * row
    })
}
