//! Gemma 4's text models (transformers `gemma4_text`): windowed and full attention with heads of different sizes, layers that read the
//! keys and values of earlier ones, an own input of each layer, and possibly a mixture of experts beside the dense network. Norms are
//! stored as gains.

use std::sync::Arc;

use serde_json::Value;
use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::gemma3::their_name;
use super::hugging_face::{model, norm_eps, slides_by_list};
use super::recurrent_gemma::GELU;
use super::{Config, Family, rotary};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpAndExperts, MlpSpec};
use crate::functions::Activation;
use crate::lowering::Sublayer;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::{RopeScaling, Router};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// The language model of a model that also reads images and sounds.
pub(super) const WITH_IMAGES: Family = Family {
    model_types: &["gemma4"],
    spec: |config| {
        let missing = || config.wrong("text_config", "the configuration of the language model");
        let text = config.child("text_config")?.ok_or_else(missing)?;
        let spec = spec(&text)?;
        Ok(ModelSpec {
            tied: config.bool_or("tie_word_embeddings", spec.tied)?,
            ..spec
        })
    },
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// Without a list, every n-th layer attends to all tokens.
const PATTERN: usize = 6;
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Our names of a layer's tensors, and the checkpoint's.
const PARTS: [(&str, &str); 10] = [
    ("inp_gate.weight", "per_layer_input_gate.weight"),
    ("proj.weight", "per_layer_projection.weight"),
    ("post_norm.weight", "post_per_layer_input_norm.weight"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("ffn_gate_inp.weight", "router.proj.weight"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    (
        "pre_ffw_norm_2.weight",
        "pre_feedforward_layernorm_2.weight",
    ),
    (
        "post_ffw_norm_1.weight",
        "post_feedforward_layernorm_1.weight",
    ),
    (
        "post_ffw_norm_2.weight",
        "post_feedforward_layernorm_2.weight",
    ),
];

/// Our names of tensors outside the layers, and the checkpoint's.
const WHOLE: [(&str, &str); 3] = [
    (
        "per_layer_token_embd.weight",
        "model.embed_tokens_per_layer.weight",
    ),
    (
        "per_layer_model_proj.weight",
        "model.per_layer_model_projection.weight",
    ),
    (
        "per_layer_proj_norm.weight",
        "model.per_layer_projection_norm.weight",
    ),
];

fn spec(config: &Config) -> Result<ModelSpec> {
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    match config.object().get(BOTH_WAYS) {
        None | Some(Value::Null | Value::Bool(false)) => {}
        // Only the tokens of an image see one another.
        Some(_) if config.optional_text(BOTH_WAYS)? == Some("vision") => {}
        Some(_) => return Err(config.wrong(BOTH_WAYS, "\"vision\", false or null")),
    }
    let hidden = config.usize("hidden_size")?;
    let vocab = config.usize("vocab_size")?;
    const ROWS: &str = "vocab_size_per_layer_input";
    if config.usize_or(ROWS, vocab)? != vocab {
        return Err(config.wrong(ROWS, &format!("{vocab}, the size of the vocabulary")));
    }
    let count = config.layers()?;
    let shared = config.usize_or("num_kv_shared_layers", 0)?;
    let Some(own) = count.checked_sub(shared) else {
        return Err(config.wrong("num_kv_shared_layers", &format!("at most {count} layers")));
    };
    let slides = (0..count).map(|layer| slides(config, layer, count));
    let slides: Vec<bool> = slides.collect::<Result<_>>()?;
    let layers = (0..count).map(|number| {
        let layer = Layer::new(config, number)?;
        let mixer = layer.attention(slides[number])?;
        let mixer = match number.checked_sub(own) {
            None => mixer,
            Some(_) => reading(
                mixer,
                owner(&slides, own, number).ok_or_else(|| {
                    let expected = "an earlier layer of each kind with its own keys and values";
                    config.wrong("num_kv_shared_layers", expected)
                })?,
            ),
        };
        let doubles = config.bool_or("use_double_wide_mlp", false)?;
        let factor = if doubles && number >= own { 2 } else { 1 };
        let width = layer.usize("intermediate_size")?.saturating_mul(factor);
        Ok(block(mixer, layer.feed_forward(width)?))
    });
    Ok(ModelSpec {
        embedding_multiplier: (hidden as f32).sqrt(),
        logit_softcap: config.optional_f32("final_logit_softcapping")?,
        per_layer_inputs: config
            .optional_usize("hidden_size_per_layer_input")?
            .filter(|&width| width > 0),
        tied: config.bool_or("tie_word_embeddings", true)?,
        ..model(config, layers.collect::<Result<_>>()?)?
    })
}

/// The layer whose keys and values layer `number` reads: the last of its kind among the first `own` layers, which have their own.
pub(super) fn owner(slides: &[bool], own: usize, number: usize) -> Option<usize> {
    let mut kinds = slides[..own].iter();
    kinds.rposition(|&kind| kind == slides[number])
}

/// A layer of the family, which has norms around both parts.
pub(super) fn block(mixer: Attention, ffn: FeedForward) -> LayerSpec {
    let around = Sublayer {
        post_norm: true,
        ..Sublayer::default()
    };
    LayerSpec {
        mixer_sublayer: around,
        ffn_sublayer: around,
        ffn: Some(ffn),
        output_scale: true,
        ..LayerSpec::new(Arc::new(mixer), None)
    }
}

/// This attention over the keys and values of layer `owner`.
pub(super) fn reading(attention: Attention, owner: usize) -> Attention {
    Attention {
        keys_of: Some(owner),
        values_are_keys: false,
        value_norm_eps: None,
        ..attention
    }
}

/// The experts' network and router, without the numbers of experts.
pub(super) fn experts() -> ExpertsSpec {
    ExpertsSpec {
        activation: Activation::Gelu,
        router: Router::softmax(true),
        gains: true,
        ..ExpertsSpec::default()
    }
}

/// Whether layer `layer` of `count` has a window: as listed, or all but every n-th. The last never has one, whatever the list says.
fn slides(config: &Config, layer: usize, count: usize) -> Result<bool> {
    let listed = slides_by_list(config, layer)?;
    let slides = listed.unwrap_or(!(layer + 1).is_multiple_of(PATTERN));
    Ok(slides && layer + 1 < count)
}

/// The configuration of one layer, which may have sizes of its own.
struct Layer<'a> {
    config: &'a Config,
    own: Option<Config>,
}

impl<'a> Layer<'a> {
    fn new(config: &'a Config, number: usize) -> Result<Self> {
        let own = match config.child("per_layer_config")? {
            Some(all) => all.child(&number.to_string())?,
            None => None,
        };
        Ok(Layer { config, own })
    }

    /// The layer's own number, if it has one.
    fn own_usize(&self, key: &str) -> Result<Option<usize>> {
        match &self.own {
            Some(own) => own.optional_usize(key),
            None => Ok(None),
        }
    }

    fn usize(&self, key: &str) -> Result<usize> {
        match self.own_usize(key)? {
            Some(own) => Ok(own),
            None => self.config.usize(key),
        }
    }

    /// The layer's own number or, in a layer without a window, the number at `global`, or that of all layers.
    fn size(&self, key: &str, global: Option<&str>) -> Result<usize> {
        let global = match global {
            Some(global) => self.config.optional_usize(global)?,
            None => None,
        };
        match self.own_usize(key)?.or(global) {
            Some(size) => Ok(size),
            None => self.config.usize(key),
        }
    }

    fn attention(&self, slides: bool) -> Result<Attention> {
        let config = self.config;
        let eps = norm_eps(config)?;
        let bias = config.bool_or("attention_bias", false)?;
        let same = config.bool_or("attention_k_eq_v", false)? && !slides;
        let global = |name| (!slides).then_some(name);
        let head_dim = self.size("head_dim", global("global_head_dim"))?;
        let positions = positions(config, slides, head_dim)?;
        Ok(Attention {
            heads: self.usize("num_attention_heads")?,
            kv_heads: self.size(
                "num_key_value_heads",
                same.then_some("num_global_key_value_heads"),
            )?,
            head_dim,
            window: match slides {
                true => Some(self.usize("sliding_window")?),
                false => None,
            },
            bias,
            out_bias: bias,
            head_norm_eps: Some(eps),
            value_norm_eps: Some(eps),
            values_are_keys: same,
            softmax_scale: Some(1.0),
            ..positions
        })
    }

    fn feed_forward(&self, intermediate: usize) -> Result<FeedForward> {
        let config = self.config;
        let mlp = MlpSpec {
            intermediate,
            activation: config.one_of("hidden_activation", Activation::Gelu, GELU)?,
            ..MlpSpec::default()
        };
        if !config.bool_or("enable_moe_block", false)? {
            return Ok(FeedForward::Dense(mlp));
        }
        let experts = ExpertsSpec {
            experts: config.usize("num_experts")?,
            chosen: config.usize("top_k_experts")?,
            intermediate: self.usize("moe_intermediate_size")?,
            activation: mlp.activation,
            ..experts()
        };
        Ok(FeedForward::Both(MlpAndExperts { mlp, experts }))
    }
}

/// The rotary positions of a kind of layer, and nothing else.
fn positions(config: &Config, slides: bool, head_dim: usize) -> Result<Attention> {
    let kind = if slides { SLIDING } else { FULL };
    let own = match config.child("rope_parameters")? {
        Some(kinds) => kinds.child(kind)?,
        None => None,
    };
    let Some(own) = own else {
        let quarter = RopeScaling::Proportional {
            turned: head_dim / 8 * 2,
            factor: 1.0,
        };
        return Ok(Attention {
            rope_theta: Some(if slides { 1e4 } else { 1e6 }),
            rope_scaling: (!slides).then_some(quarter),
            ..Attention::default()
        });
    };
    let scaling = rotary::scaling_of_heads(&own, config, head_dim)?;
    // Proportional positions are on pairs of the whole head.
    let share = match scaling {
        Some(RopeScaling::Proportional { .. }) => None,
        _ => own.optional_f32("partial_rotary_factor")?,
    };
    let turned = share.map(|share| (head_dim as f32 * share) as usize);
    Ok(Attention {
        rope_theta: Some(own.f32_or("rope_theta", if slides { 1e4 } else { 1e6 })?),
        rope_dim: turned.filter(|&turned| turned != head_dim),
        rope_scaling: scaling,
        ..Attention::default()
    })
}

/// The checkpoint's name for one of our tensors, in a text-only model.
fn stored(name: &str) -> String {
    if let Some((_, theirs)) = WHOLE.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let part = layer_part(name).and_then(|(layer, part)| {
        let (_, theirs) = PARTS.iter().find(|(ours, _)| *ours == part)?;
        Some(format!("model.layers.{layer}.{theirs}"))
    });
    part.unwrap_or_else(|| their_name(name))
}

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    const INNER: [&str; 3] = ["model.", "model.language_model.", "language_model.model."];
    let read = |name: &str| {
        let names = INNER.map(|inner| name.replacen("model.", inner, 1));
        let found = names.iter().find(|name| weights.contains(name));
        Ok(weights.tensor(found.unwrap_or(&names[0]))?)
    };
    // The experts are directly in the layer.
    let of_experts = |name: &str| read(&name.replacen("..", ".", 1));
    let names = ExpertNames {
        block: "",
        ..ExpertNames::USUAL
    };
    let is_expert = weight.name.ends_with("_exps.weight");
    let expert = || names.tensor(weight, "model.layers", &of_experts);
    let found = is_expert.then(expert).flatten();
    found.unwrap_or_else(|| read(&stored(&weight.name)))
}
