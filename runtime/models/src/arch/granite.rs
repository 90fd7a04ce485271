//! Granite's Transformers (transformers `granite`) and Granite 4 hybrids (`granitemoehybrid`): layers of Mamba-2 or of attention with a
//! configured scale, in hybrids mostly without positions. Every sum into the residual stream is multiplied; some models have a mixture of
//! experts in addition to the shared network.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::part_of_fused;
use super::hugging_face::{
    attention, attention_without_positions, mlp, model, norm_eps, tensor_name,
};
use super::hybrid::{self, Kind};
use super::{Config, Family, mamba, tensors};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpSpec, SharedSpec};
use crate::lowering::Sublayer;
use crate::mixers::{Attention, Mamba2, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoehybrid"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// Granite's Transformers: the same multipliers around attention and a dense network.
pub(super) const DENSE: Family = Family {
    model_types: &["granite"],
    spec: |config| {
        let attention = Attention {
            softmax_scale: Some(config.f32_or("attention_multiplier", 1.0)?),
            ..attention(config)?
        };
        let sublayer = sublayer(config)?;
        let layer = LayerSpec {
            mixer_sublayer: sublayer,
            ffn_sublayer: sublayer,
            ..LayerSpec::new(Arc::new(attention), Some(mlp(config)?))
        };
        multiplied(config, vec![layer; config.layers()?])
    },
    tensor: |_, weights, weight| Ok(weights.tensor(&tensor_name(&weight.name, "self_attn"))?),
};

/// A sublayer with the model's multiplier for every sum into the residual stream.
pub(super) fn sublayer(config: &Config) -> Result<Sublayer> {
    Ok(Sublayer {
        multiplier: config.f32_or("residual_multiplier", 1.0)?,
        ..Sublayer::default()
    })
}

/// The model with these layers, and with multipliers for its embeddings and logits.
pub(super) fn multiplied(config: &Config, layers: Vec<LayerSpec>) -> Result<ModelSpec> {
    let divisor = config.f32_or("logits_scaling", 1.0)?;
    if divisor == 0.0 {
        return Err(config.wrong("logits_scaling", "a number other than 0"));
    }
    Ok(ModelSpec {
        embedding_multiplier: config.f32_or("embedding_multiplier", 1.0)?,
        logits_multiplier: 1.0 / divisor,
        ..model(config, layers)?
    })
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let scaled: Arc<dyn Mixer> = Arc::new(Attention {
        softmax_scale: config.optional_f32("attention_multiplier")?,
        ..match config.optional_text("position_embedding_type")? {
            Some("rope") => attention(config)?,
            None | Some("nope") => attention_without_positions(config)?,
            Some(_) => return Err(config.wrong("position_embedding_type", "rope or nope")),
        }
    });
    let mamba: Mamba2 = hybrid::mamba2(config, hybrid::expanded(config)?, norm_eps(config)?)?;
    let mamba: Arc<dyn Mixer> = Arc::new(mamba);
    let shared = config.usize("shared_intermediate_size")?;
    let ffn = match config.usize_or("num_local_experts", 0)? {
        0 => FeedForward::Dense(MlpSpec {
            intermediate: shared,
            ..MlpSpec::default()
        }),
        experts => FeedForward::Experts(ExpertsSpec {
            experts,
            chosen: config.usize("num_experts_per_tok")?,
            intermediate: config.usize("intermediate_size")?,
            // Softmax over the chosen logits equals softmax over all, divided by the sum of the chosen.
            router: Router::softmax(true),
            shared: Some(SharedSpec {
                intermediate: shared,
                gate: false,
            }),
            ..ExpertsSpec::default()
        }),
    };
    let sublayer = sublayer(config)?;
    let keys = ["layer_types", "layers_block_type"];
    let layers = hybrid::mixer_kinds(config, &keys, |_| Kind::Mamba)?
        .into_iter()
        .map(|kind| {
            let mixer = if kind == Kind::Mamba { &mamba } else { &scaled };
            LayerSpec {
                mixer_sublayer: sublayer,
                ffn_sublayer: sublayer,
                ffn: Some(ffn.clone()),
                ..LayerSpec::new(Arc::clone(mixer), None)
            }
        })
        .collect();
    multiplied(config, layers)
}

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let mixer = if is_attention(&weight.name) {
        "self_attn."
    } else {
        "mamba."
    };
    let parts = [
        ("attn_norm.", "input_layernorm."),
        ("ffn_norm.", "post_attention_layernorm."),
        ("ffn_gate.", "shared_mlp.input_linear."),
        ("ffn_up.", "shared_mlp.input_linear."),
        ("ffn_down.", "shared_mlp.output_linear."),
        ("ffn_gate_shexp.", "shared_mlp.input_linear."),
        ("ffn_up_shexp.", "shared_mlp.input_linear."),
        ("ffn_down_shexp.", "shared_mlp.output_linear."),
        ("ffn_gate_inp.", "block_sparse_moe.router.layer."),
        ("ffn_gate_exps.", "block_sparse_moe.input_linear."),
        ("ffn_up_exps.", "block_sparse_moe.input_linear."),
        ("ffn_down_exps.", "block_sparse_moe.output_linear."),
        ("mixer.", mixer),
    ];
    let name = hybrid::renamed(&weight.name, &whole, "model.layers", &parts);
    let tensor = mamba::tensor(weights, name.clone())?;
    // The gate's rows come first, then the rows that it gates.
    let rows = weight.shape[0];
    match weight.name.split('.').nth(2) {
        Some("ffn_gate" | "ffn_gate_shexp") => {
            tensors::rows(&name, &tensor, std::slice::from_ref(&(0..rows)))
        }
        Some("ffn_up" | "ffn_up_shexp") => {
            tensors::rows(&name, &tensor, std::slice::from_ref(&(rows..2 * rows)))
        }
        Some("ffn_gate_exps") => part_of_fused(&name, tensor, 0),
        Some("ffn_up_exps") => part_of_fused(&name, tensor, 1),
        Some("ffn_down_exps") => part_of_fused(&name, tensor, 2),
        _ => Ok(tensor),
    }
}

/// Whether `name` is one of our names for a projection of attention.
pub(super) fn is_attention(name: &str) -> bool {
    let projections = ["q_proj.", "k_proj.", "v_proj.", "o_proj."];
    projections
        .iter()
        .any(|projection| name.contains(projection))
}
