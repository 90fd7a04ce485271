//! Muse Glimmer's language model (transformers `muse_glimmer`): windowed attention with rotary positions and full attention without,
//! gated outputs, and norms around every part. The norms of the embedding and of the heads have no weights; those around the parts are
//! stored as their distance from one.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::layer_part;
use super::gemma3::their_name;
use super::hugging_face::{attention, model, norm_eps, slides_by_list, with_own_base};
use super::tensors::{filled, one_plus};
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::lowering::Sublayer;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["muse_glimmer"],
    spec: |config| spec(&text(config)?),
    tensor: |config, weights, weight| tensor(&text(config)?, weights, weight),
};

/// Without a list, every n-th layer from the last attends to all tokens.
const PATTERN: usize = 4;
/// Epsilon of the norms after the parts.
pub(super) const POST_EPS: f32 = 1e-8;

/// The configuration of the language model.
fn text(config: &Config) -> Result<Config> {
    const KEY: &str = "text_config";
    let missing = || config.wrong(KEY, "the configuration of the language model");
    config.child(KEY)?.ok_or_else(missing)
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let all = Attention {
        head_norm_eps: Some(norm_eps(config)?),
        gate: true,
        ..attention(config)?
    };
    config.one_of("hidden_activation", (), &[("silu", ()), ("swish", ())])?;
    let mlp = MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        ..MlpSpec::default()
    };
    let around = Sublayer {
        post_norm: true,
        post_norm_eps: Some(config.f32_or("post_norm_eps", POST_EPS)?),
        ..Sublayer::default()
    };
    let window = config.optional_usize("sliding_window")?;
    let count = config.layers()?;
    let layers = (0..count).map(|layer| {
        let listed = slides_by_list(config, layer)?;
        let slides = listed.unwrap_or(!(count - 1 - layer).is_multiple_of(PATTERN));
        let attention = Attention {
            window: window.filter(|_| slides),
            rope_theta: all.rope_theta.filter(|_| slides),
            ..all.clone()
        };
        Ok(LayerSpec {
            mixer_sublayer: around,
            ffn_sublayer: around,
            ..LayerSpec::new(
                Arc::new(with_own_base(config, layer, attention)?),
                Some(mlp),
            )
        })
    });
    Ok(ModelSpec {
        embedding_norm: true,
        logits_multiplier: config.f32_or("output_multiplier", 1.0)?,
        logit_softcap: config.optional_f32("final_logit_softcapping")?,
        ..model(config, layers.collect::<Result<_>>()?)?
    })
}

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let part = layer_part(&weight.name).map(|(_, part)| part);
    match part.unwrap_or(&weight.name) {
        "token_embd_norm.weight" | "mixer.k_norm.weight" => return filled(weight.len(), 1.0),
        // The factor of the normed queries.
        "mixer.q_norm.weight" => {
            return filled(weight.len(), config.f32_or("qk_scale_factor", 3.87)?);
        }
        _ => {}
    }
    let theirs = their_name(&weight.name).replacen(".g_proj.", ".gate_proj.", 1);
    let tensor = weights.tensor(&theirs.replacen("model.", "model.language_model.", 1))?;
    match part {
        Some(part) if part.ends_with("norm.weight") => one_plus(&tensor),
        _ => Ok(tensor),
    }
}
