//! Falcon-H1, as transformers saves it: Mamba-2 and attention on one norm, with multipliers everywhere.

use std::sync::Arc;

use super::bamba::renamed;
use super::hugging_face::{attention, mlp, model, norm_eps};
use super::{Config, Family, hybrid, mamba};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::mixers::{Attention, Mamba2, Parallel, ParallelPart};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["falcon_h1"],
    spec,
    tensor: |_, weights, weight| mamba::tensor(weights, tensor_name(&weight.name)),
};

/// The name in the checkpoint of one of our tensors.
fn tensor_name(name: &str) -> String {
    let mixers = [
        ("mixer.mamba2.", "mamba."),
        ("mixer.attention.", "self_attn."),
    ];
    renamed(name, &mixers)
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let multiplier = |key: &str| config.f32_or(key, 1.0);
    let mamba = ParallelPart {
        mixer: Arc::new(mamba2(config)?),
        input: multiplier("ssm_in_multiplier")?,
        output: multiplier("ssm_out_multiplier")?,
    };
    let key_multiplier = config.optional_f32("key_multiplier")?;
    let attention = ParallelPart {
        mixer: Arc::new(Attention {
            key_multiplier,
            ..attention(config)?
        }),
        input: multiplier("attention_in_multiplier")?,
        output: multiplier("attention_out_multiplier")?,
    };
    let mixer = Arc::new(Parallel {
        parts: vec![mamba, attention],
    });
    let [gate_multiplier, output] = multipliers(config, "mlp_multipliers")?.unwrap_or([1.0; 2]);
    let mlp = MlpSpec {
        gate_multiplier,
        multiplier: output,
        ..mlp(config)?
    };
    let layer = LayerSpec::of(mixer, Some(mlp));
    let layers = vec![layer; config.layers()?];
    Ok(ModelSpec {
        embedding_multiplier: multiplier("embedding_multiplier")?,
        logits_multiplier: multiplier("lm_head_multiplier")?,
        ..model(config, layers)?
    })
}

fn mamba2(config: &Config) -> Result<Mamba2> {
    let inner = match config.optional_usize("mamba_d_ssm")? {
        Some(inner) => inner,
        None => hybrid::expanded(config)?,
    };
    let mamba = hybrid::mamba2(config, inner, norm_eps(config)?)?;
    let normed = config.bool_or("mamba_rms_norm", false)?;
    let out_bias = config.bool_or("projectors_bias", false)?;
    Ok(Mamba2 {
        norm_groups: mamba.norm_groups.filter(|_| normed),
        norm_before_gate: config.bool_or("mamba_norm_before_gate", true)?,
        out_bias: Some(out_bias).filter(|bias| *bias != mamba.bias),
        multipliers: multipliers(config, "ssm_multipliers")?,
        ..mamba
    })
}

/// A list of this length, if there is one.
fn multipliers<const N: usize>(config: &Config, key: &str) -> Result<Option<[f32; N]>> {
    if config
        .object()
        .get(key)
        .is_none_or(serde_json::Value::is_null)
    {
        return Ok(None);
    }
    let numbers = config
        .array(key)?
        .iter()
        .map(|x| x.as_f64().map(|x| x as f32));
    let numbers: Option<Vec<f32>> = numbers.collect();
    let numbers = numbers.and_then(|numbers| numbers.try_into().ok());
    numbers
        .map(Some)
        .ok_or_else(|| config.wrong(key, &format!("{N} numbers")))
}
