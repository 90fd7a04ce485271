//! Mixture of memories of flash-linear-attention: maps its keys to the mixer's hyperparameters, and reads its tensors.

use waterline_quant::{Tensor, safetensors};

use super::fla::{scaled, taps};
use super::{Config, tensors};
use crate::error::Result;
use crate::mixers::Mom;
use crate::weights::WeightSpec;

pub(super) fn mom(config: &Config) -> Result<Mom> {
    config.one_of("mom_backend", (), &[("gated_deltanet", ())])?;
    let head_dim = config.usize_or("head_dim", 256)?;
    Ok(Mom {
        heads: config.usize_or("num_heads", 4)?,
        head_dim,
        value_dim: scaled(config, head_dim, "expand_v", 1.0)?,
        memories: config.usize_or("num_memories", 4)?,
        chosen: config.usize_or("topk", 2)?,
        shared: config.bool_or("shared_mem", true)?,
        single: config.bool_or("single_kv_proj", false)?,
        conv: taps(config, true)?,
        gate: config.bool_or("use_output_gate", true)?,
        gla: None,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

/// Reads the tensor that the checkpoint calls `name`, if it is stored once per memory; stacks the memories' tensors.
pub(super) fn of_memories(
    config: &Config,
    weights: &safetensors::Checkpoint,
    name: &str,
    weight: &WeightSpec,
) -> Result<Option<Tensor>> {
    let Some(projection) = name.strip_suffix(".weight") else {
        return Ok(None);
    };
    let own = ["k_proj", "v_proj", "b_proj", "a_proj"];
    let is_own = own
        .iter()
        .any(|own| projection.ends_with(&format!(".{own}")));
    // The attention layers of a hybrid have one matrix under the full name.
    if !is_own || weights.contains(name) {
        return Ok(None);
    }
    let memories = config.usize_or("num_memories", 4)?;
    let parts = (0..memories)
        .map(|memory| Ok(weights.tensor(&format!("{projection}.{memory}.weight"))?))
        .collect::<Result<Vec<_>>>()?;
    tensors::stacked(name, &parts, &weight.shape).map(Some)
}
