//! Columns and state of keys and values that are not simply the layer's projections: normed values, values that are keys, and keys and
//! values that several layers share.
//!
//! A layer whose keys later layers read leaves queries, keys and values of the chunk in columns that outlive it; those layers put their
//! own queries there. The last of them caches, so that all see the cache as it was before the chunk. With a retained set, each layer has
//! a cache, because its own queries decide which tokens stay.

use super::Attention;
use crate::error::Result;
use crate::functions::Norm;
use crate::lowering::Lowering;
use crate::mixers::Mismatch;
use crate::operands::View;
use crate::ops::{HeadGroup, HeadOp};

/// Name of the columns that layer `owner` shares.
fn columns_of(owner: usize) -> String {
    format!("keys and values of layer {owner}")
}

impl Attention {
    pub(super) fn check_shared(&self) -> Result<(), Mismatch> {
        let eps = self.value_norm_eps.unwrap_or(0.0);
        Mismatch::unless(
            eps >= 0.0 && eps.is_finite(),
            || format!("value_norm_eps {eps}"),
            "a number of 0 or more",
        )?;
        let is_plain = self.keys_of.is_none() && !self.values_are_keys;
        Mismatch::unless(
            is_plain || !self.norm_over_heads,
            || "norm_over_heads without own keys and values".into(),
            "norms of each head",
        )?;
        Mismatch::unless(
            self.keys_of.is_none() || !self.values_are_keys && self.value_norm_eps.is_none(),
            || "values of its own beside keys_of".into(),
            "no values of its own",
        )
    }

    /// Whether queries, keys and values are prepared in columns apart from the projections.
    pub(super) fn is_apart(&self, layer: &Lowering) -> bool {
        self.keys_of.is_some()
            || self.values_are_keys
            || self.value_norm_eps.is_some()
            || layer.last_reader(layer.number()).is_some()
    }

    /// Copies the projections `views` (queries, then keys and values if the layer has them) to the columns for attention, and applies
    /// norms and positions there.
    pub(super) fn prepare_shared(&self, layer: &mut Lowering, views: &[View]) -> Result<[View; 3]> {
        let (width, kv_width) = (self.heads * self.head_dim, self.kv_width());
        let all = width + 2 * kv_width;
        let number = layer.number();
        let columns = match self.keys_of {
            Some(owner) => layer.published(&columns_of(owner), all)?,
            None if layer.last_reader(number).is_some() => layer.publish(columns_of(number), all),
            None => layer.buffer(all),
        };
        let (q, rest) = columns.split(width);
        let (k, v) = rest.split(kv_width);
        let mut groups = vec![self.queries(layer, q)?];
        if self.keys_of.is_none() {
            groups.push(self.group(layer, k, "k_norm.weight")?);
            groups.push(self.value_group(v));
        }
        // Without a projection of their own, values are the keys' projection.
        let last = views[views.len() - 1];
        for (index, group) in groups.iter_mut().enumerate() {
            let from = views.get(index).copied().unwrap_or(last);
            group.maps.insert(0, HeadOp::Copy(from));
        }
        self.push_prepared(layer, groups, Vec::new());
        Ok([q, k, v])
    }

    fn value_group(&self, view: View) -> HeadGroup {
        let gains = vec![1.0; self.head_dim];
        let norm = |eps| HeadOp::Rms(Norm::rms(gains.into(), eps));
        HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: None,
            maps: self.value_norm_eps.map(norm).into_iter().collect(),
        }
    }

    /// The state tensors of keys and values, and whether this layer caches the tokens.
    pub(super) fn cache(&self, layer: &Lowering) -> Result<([usize; 2], bool)> {
        let number = layer.number();
        let owner = self.keys_of.filter(|_| self.retained.is_none());
        let first = match owner {
            Some(owner) => layer.first_tensor_of(owner)?,
            None => layer.state_tensor(0),
        };
        let last = layer.last_reader(owner.unwrap_or(number)).unwrap_or(number);
        Ok((
            [first, first + 1],
            self.retained.is_some() || last == number,
        ))
    }
}
