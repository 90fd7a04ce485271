//! gpt-oss, as saved by transformers: windowed and full attention with biases, sinks and YaRN, and mixtures whose experts have biases
//! and a clamped unit. Experts are stored transposed, or as blocks of MXFP4; rows of gate and up alternate.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::layer_part;
use super::hugging_face::{attention, model, slides_by_list, tensor_name};
use super::tensors::{rows_of_groups, transposed};
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward};
use crate::functions::ClampedUnit;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt_oss"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// The bounds and the slope of the experts' unit.
pub(super) const UNIT: ClampedUnit = ClampedUnit {
    limit: 7.0,
    slope: 1.702,
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let bias = config.bool_or("attention_bias", true)?;
    let all = Attention {
        bias,
        out_bias: bias,
        sinks: true,
        ..attention(config)?
    };
    let experts = experts(config)?;
    let window = config.optional_usize("sliding_window")?;
    let layers = (0..config.layers()?).map(|layer| {
        let listed = slides_by_list(config, layer)?;
        let attention = Attention {
            // Without a list, every other layer from the first has a window.
            window: window.filter(|_| listed.unwrap_or(layer.is_multiple_of(2))),
            ..all.clone()
        };
        Ok(LayerSpec {
            ffn: Some(FeedForward::Experts(experts)),
            ..LayerSpec::new(Arc::new(attention), None)
        })
    });
    model(config, layers.collect::<Result<_>>()?)
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    Ok(ExpertsSpec {
        experts: config.usize_or("num_local_experts", 128)?,
        chosen: config.usize_or("num_experts_per_tok", 4)?,
        intermediate: config.usize("intermediate_size")?,
        // Softmax over the chosen logits equals softmax over all, divided by the sum of the chosen.
        router: Router::softmax(true),
        router_bias: true,
        expert_biases: true,
        clamped: Some(ClampedUnit {
            limit: config.f32_or("swiglu_limit", UNIT.limit)?,
            slope: config.f32_or("swiglu_alpha", UNIT.slope)?,
        }),
        ..ExpertsSpec::default()
    })
}

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let part = layer_part(&weight.name);
    let of_experts = part.and_then(|(layer, part)| {
        let (name, alternating) = match part {
            "ffn_gate_inp.weight" => ("router.weight", None),
            "ffn_gate_inp.bias" => ("router.bias", None),
            "ffn_gate_exps.weight" => ("experts.gate_up_proj", Some(0)),
            "ffn_up_exps.weight" => ("experts.gate_up_proj", Some(1)),
            "ffn_down_exps.weight" => ("experts.down_proj", None),
            "ffn_gate_exps.bias" => ("experts.gate_up_proj_bias", Some(0)),
            "ffn_up_exps.bias" => ("experts.gate_up_proj_bias", Some(1)),
            "ffn_down_exps.bias" => ("experts.down_proj_bias", None),
            _ => return None,
        };
        Some((format!("model.layers.{layer}.mlp.{name}"), alternating))
    });
    let Some((name, alternating)) = of_experts else {
        return Ok(weights.tensor(&tensor_name(&weight.name, "self_attn"))?);
    };
    let mut tensor = weights.tensor(&name)?;
    if let [experts, rows, cols] = tensor.shape[..] {
        tensor.shape = vec![experts * rows, cols];
        // Blocks lie along the inputs, so packed matrices are not transposed.
        if tensor.format.block_len == 1 {
            tensor = transposed(&name, &tensor, experts)?;
        }
    }
    let Some(which) = alternating else {
        return Ok(tensor);
    };
    let is_bias = weight.name.ends_with(".bias");
    if is_bias {
        tensor.shape = vec![tensor.len(), 1];
    }
    let pairs = tensor.shape[0] / 2;
    let mut own = rows_of_groups(&name, &tensor, pairs, which..which + 1)?;
    if is_bias && own.len() == weight.len() {
        own.shape = weight.shape.clone();
    }
    Ok(own)
}
