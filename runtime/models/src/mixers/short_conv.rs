//! Projections followed by a short causal convolution of each channel over time, as in most linear attention.

use super::Mismatch;
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Conv, HeadGroup, HeadOp};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

/// A projection of the layer's input to adjacent heads.
pub(super) struct Branch {
    /// Name of the matrix, without `.weight`.
    pub projection: &'static str,
    /// Name of the convolution, without `.weight`; also names the state tensor of its last inputs.
    pub conv: &'static str,
    /// Width of a head.
    pub head_dim: usize,
    /// Heads.
    pub heads: usize,
}

impl Branch {
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns `view` as a head group; the convolution, if any, keeps its last inputs in the mixer's state tensor `tensor`.
    pub fn group(
        &self,
        layer: &Lowering,
        view: View,
        tensor: usize,
        maps: Vec<HeadOp>,
    ) -> Result<HeadGroup> {
        let weight = layer.optional_vector(&format!("{}.weight", self.conv))?;
        let bias = layer.optional_vector(&format!("{}.bias", self.conv))?;
        Ok(HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: weight
                .map(|weight| Conv::new(&weight, self.width(), bias, layer.state_tensor(tensor))),
            maps,
        })
    }
}

/// The branches of query, key and value.
pub(super) fn qkv(
    [q_heads, k_heads, v_heads]: [usize; 3],
    head_dim: usize,
    value_dim: usize,
) -> [Branch; 3] {
    let branch = |projection, conv, heads, head_dim| Branch {
        projection,
        conv,
        head_dim,
        heads,
    };
    [
        branch("q_proj", "q_conv1d", q_heads, head_dim),
        branch("k_proj", "k_conv1d", k_heads, head_dim),
        branch("v_proj", "v_conv1d", v_heads, value_dim),
    ]
}

/// Head groups of unit-length queries and keys, and of values, each after a convolution and silu. The indices of the convolutions'
/// state tensors start at `first`.
pub(super) fn unit_qkv(
    layer: &Lowering,
    branches: &[Branch; 3],
    views: &[View],
    first: usize,
) -> Result<Vec<HeadGroup>> {
    let group = |(i, branch): (usize, &Branch)| {
        let mut maps = vec![HeadOp::Activation(Activation::Silu)];
        maps.extend((i < 2).then_some(HeadOp::L2Norm));
        branch.group(layer, views[i], first + i, maps)
    };
    branches.iter().enumerate().map(group).collect()
}

/// Checks the number of taps.
pub(super) fn check(taps: Option<usize>) -> Result<(), Mismatch> {
    Mismatch::unless(
        taps.is_none_or(|n| (1..=64).contains(&n)),
        || format!("conv {taps:?}"),
        "1 to 64 taps",
    )
}

/// The weights: the matrices, then the convolutions.
pub(super) fn weights(
    branches: &[Branch],
    hidden: usize,
    taps: Option<usize>,
    bias: bool,
) -> Vec<WeightSpec> {
    let mut weights: Vec<_> = branches
        .iter()
        .map(|b| WeightSpec::matrix(&format!("{}.weight", b.projection), b.width(), hidden))
        .collect();
    for branch in branches {
        let Some(taps) = taps else { break };
        let weight = format!("{}.weight", branch.conv);
        weights.push(WeightSpec::full(&weight, &[branch.width(), taps]));
        if bias {
            let bias = format!("{}.bias", branch.conv);
            weights.push(WeightSpec::full(&bias, &[branch.width()]));
        }
    }
    weights
}

/// State tensors of the convolutions' last inputs, one per branch.
pub(super) fn tensors(branches: &[Branch], taps: Option<usize>) -> Vec<StateTensor> {
    let Some(taps) = taps else { return Vec::new() };
    let tensor = |branch: &Branch| {
        let shape = [taps - 1, branch.width()];
        StateTensor::new(branch.conv, StateKind::Shift, StateDtype::F32, &shape)
    };
    branches.iter().map(tensor).collect()
}

/// State tensors of a linear recurrence: its states `[heads, dk, dv]`, then [`tensors`].
pub(super) fn matrix_tensors(
    shape: [usize; 3],
    branches: &[Branch],
    taps: Option<usize>,
) -> Vec<StateTensor> {
    let state = StateTensor::new("state", StateKind::Matrix, StateDtype::F32, &shape);
    let mut all = vec![state];
    all.extend(tensors(branches, taps));
    all
}
