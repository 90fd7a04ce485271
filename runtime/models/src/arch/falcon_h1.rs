//! Falcon-H1, as saved by transformers: Mamba-2 and attention in parallel after one norm, with multipliers everywhere.

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

/// The checkpoint's name for one of our tensors.
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
    let attention = attention(config)?;
    let attention = ParallelPart {
        mixer: Arc::new(Attention {
            key_multiplier,
            head_dim: head_dim(config, &attention)?,
            ..attention
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
    let layer = LayerSpec::new(mixer, Some(mlp));
    let layers = vec![layer; config.layers()?];
    Ok(ModelSpec {
        embedding_multiplier: multiplier("embedding_multiplier")?,
        logits_multiplier: multiplier("lm_head_multiplier")?,
        ..model(config, layers)?
    })
}

/// The width of a head. Without the key `head_dim`, which the reference's configuration class does not declare, it is the hidden size
/// divided by the number of heads. If all projections have that width and the key differs, the key is ignored with a note.
fn head_dim(config: &Config, attention: &Attention) -> Result<usize> {
    let divided = config.usize("hidden_size")? / attention.heads.max(1);
    let has_rows = |projection: &str, rows: usize| {
        config.rows_of(&format!(".self_attn.{projection}.weight")) == Some(rows)
    };
    let said = attention.head_dim;
    if divided == said
        || !has_rows("q_proj", attention.heads * divided)
        || !has_rows("k_proj", attention.kv_heads * divided)
        || !has_rows("v_proj", attention.kv_heads * divided)
    {
        return Ok(said);
    }
    let file = config.file();
    config.note(format!(
        "{file} sets head_dim to {said}, but the heads of all projections have width {divided}, which is used instead"
    ));
    Ok(divided)
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

/// Reads a list of `N` numbers, if the key is there.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the head width and the notes for a `head_dim` of `said` and projections of 5 heads over 1 with these rows.
    fn width(said: usize, rows: [usize; 3]) -> (usize, Vec<String>) {
        let keys = json!({
            "model_type": "falcon_h1", "hidden_size": 60, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": said,
        });
        let names =
            ["q", "k", "v"].map(|part| format!("model.layers.0.self_attn.{part}_proj.weight"));
        let config = Config::new("config.json", keys).expect("an object");
        let config = config.beside(names.iter().map(String::as_str).zip(rows));
        let attention = attention(&config).expect("attention");
        let width = head_dim(&config, &attention).expect("a width");
        (width, config.notes())
    }

    #[test]
    fn heads_are_as_wide_as_their_projections() {
        let (found, notes) = width(64, [60, 12, 12]);
        assert_eq!((found, notes.len()), (12, 1));
        assert!(notes[0].contains("sets head_dim to 64"), "{notes:?}");
        assert_eq!(width(12, [60, 12, 12]), (12, Vec::new()));
        assert_eq!(width(64, [320, 64, 64]), (64, Vec::new()));
        // If the projections disagree, the file's width is kept, so that their shapes are refused later.
        assert_eq!(width(64, [60, 12, 64]), (64, Vec::new()));
    }
}
