//! Feed-forward networks of llama.cpp's architectures: dense networks and mixtures of experts.

use super::Keys;
use super::names::{Name, Take, as_stored};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpSpec, SharedSpec};
use crate::ops::{Groups, Router, Scoring};

/// The value of `expert_gating_func` that means sigmoid.
const SIGMOID: usize = 2;

/// The gated network of block `block`, as in most models.
pub(super) fn dense(keys: &Keys, block: usize, intermediate: usize) -> FeedForward {
    FeedForward::Dense(MlpSpec {
        intermediate,
        bias: keys.has_tensor(&format!("blk.{block}.ffn_up.bias")),
        ..MlpSpec::default()
    })
}

/// Properties of a family's mixtures of experts that the keys do not give.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    /// The router, without the scale and the groups.
    pub router: Router,
    /// Whether a shared expert's output is gated.
    pub gate: bool,
    /// Whether a bias is added to the scores for the choice.
    pub bias: bool,
    /// Whether `feed_forward_length` is the total width of all chosen experts, and the width of the shared one, if no other
    /// key gives these widths; otherwise it is the width of one expert.
    pub length_is_total: bool,
}

impl Mixture {
    /// A mixture with this router and without gates.
    pub fn new(router: Router) -> Self {
        Mixture {
            router,
            gate: false,
            bias: false,
            length_is_total: false,
        }
    }
}

/// The mixture of experts of block `block`, or its dense network without a `mixture`; adds the names of the experts' tensors to `names`.
pub(super) fn dense_or_experts(
    keys: &Keys,
    block: usize,
    mixture: Option<Mixture>,
    intermediate: usize,
    names: &mut Vec<Name>,
) -> Result<FeedForward> {
    let Some(mixture) = mixture else {
        return Ok(dense(keys, block, intermediate));
    };
    let experts = experts(keys, block, mixture)?;
    names.extend(expert_names(keys, block, &experts));
    Ok(FeedForward::Experts(experts))
}

/// The mixture of experts of block `block`.
pub(super) fn experts(keys: &Keys, block: usize, mixture: Mixture) -> Result<ExpertsSpec> {
    let whole = keys.per_layer_or("feed_forward_length", 0)?[block];
    let chosen = keys.per_layer("expert_used_count")?[block];
    let usual = if mixture.length_is_total {
        whole / chosen.max(1)
    } else {
        whole
    };
    let intermediate = keys.per_layer_or("expert_feed_forward_length", usual)?[block];
    let shared = match keys.optional_usize("expert_shared_feed_forward_length")? {
        Some(shared) => shared,
        None if mixture.length_is_total => whole,
        None => keys
            .usize_or("expert_shared_count", 0)?
            .saturating_mul(intermediate),
    };
    let scale = keys.f32_or("expert_weights_scale", 0.0)?;
    Ok(ExpertsSpec {
        experts: keys.usize("expert_count")?,
        chosen,
        intermediate,
        router: Router {
            scale: if scale == 0.0 { 1.0 } else { scale },
            groups: groups(keys)?,
            ..mixture.router
        },
        shared: (shared > 0).then_some(SharedSpec {
            intermediate: shared,
            gate: mixture.gate,
        }),
        bias: mixture.bias,
        ..ExpertsSpec::default()
    })
}

/// A router with sigmoid scores that divides the chosen weights by their sum plus `more`. Fails if the file sets another
/// score function.
pub(super) fn sigmoid(keys: &Keys, more: f32) -> Result<Router> {
    let key = "expert_gating_func";
    match keys.usize_or(key, SIGMOID)? {
        SIGMOID => Ok(Router {
            scoring: Scoring::Sigmoid,
            normalize: Some(more),
            ..Router::softmax(true)
        }),
        other => Err(keys.wrong(key, other, format!("{SIGMOID}, which is sigmoid"))),
    }
}

/// The groups of experts, of which the best are used; `None` for a single group.
fn groups(keys: &Keys) -> Result<Option<Groups>> {
    let count = keys.usize_or("expert_group_count", 0)?;
    let top_k = keys.usize_or("expert_group_used_count", count)?;
    Ok((count > 1).then_some(Groups { count, top_k }))
}

/// The names of the tensors of `experts` in block `block`. Gate and up projections may be fused in one tensor.
pub(super) fn expert_names(keys: &Keys, block: usize, experts: &ExpertsSpec) -> Vec<Name> {
    let mut names = as_stored(&[
        ("ffn_latent_in", "ffn_latent_down"),
        ("ffn_latent_out", "ffn_latent_up"),
    ]);
    if keys.has_tensor(&format!("blk.{block}.ffn_gate_up_exps.weight")) {
        let (count, width) = (experts.experts, experts.intermediate);
        let half = |part| Take::Groups { count, part };
        names.push(Name::new(
            "ffn_gate_exps",
            "ffn_gate_up_exps",
            half(0..width),
        ));
        names.push(Name::new(
            "ffn_up_exps",
            "ffn_gate_up_exps",
            half(width..2 * width),
        ));
    }
    let fused = experts.gated && !keys.has_tensor(&format!("blk.{block}.ffn_gate_shexp.weight"));
    if let Some(SharedSpec { intermediate, .. }) = experts.shared.filter(|_| fused) {
        let half = |ours, rows| Name::of_rows(ours, "ffn_up_shexp", rows);
        names.push(half("ffn_gate_shexp", 0..intermediate));
        names.push(half("ffn_up_shexp", intermediate..2 * intermediate));
    }
    names
}
