//! Reads how configurations stretch rotary frequencies.

use super::Config;
use super::hugging_face::slides_by_list;
use crate::error::Result;
use crate::mixers::{Attention, RopeScaling};

/// Reads the scaling from `rope`, an object of the configuration `config`.
///
/// Dynamic scaling begins after the trained context, where LongRoPE switches to other divisors; this function returns the
/// scaling within that context.
pub(super) fn scaling(rope: &Config, config: &Config) -> Result<Option<RopeScaling>> {
    let key = if rope.object().contains_key("rope_type") {
        "rope_type"
    } else {
        "type"
    };
    match rope.optional_string(key).unwrap_or("default") {
        // Sections of the angles belong to image axes; in a text, all axes have the token's position.
        "default" | "mrope" => Ok(None),
        "linear" => Ok(Some(RopeScaling::Linear {
            factor: rope.f32("factor")?,
        })),
        "llama3" => Ok(Some(RopeScaling::Llama3 {
            factor: rope.f32("factor")?,
            low: rope.f32("low_freq_factor")?,
            high: rope.f32("high_freq_factor")?,
            trained: rope.f32("original_max_position_embeddings")?,
        })),
        "yarn" => yarn(rope).map(Some),
        "dynamic" => {
            positive(rope, "factor")?;
            Ok(None)
        }
        "longrope" | "su" if rope.object().contains_key("short_factor") => {
            long(rope, config).map(Some)
        }
        "longrope" | "su" => Err(rope.wrong(
            key,
            "a key short_factor next to it, with a divisor for each frequency",
        )),
        _ => Err(rope.wrong(key, "default, linear, llama3, yarn, dynamic or longrope")),
    }
}

/// The attention of layer `layer`, with the window and the rotary positions of the layer's kind: `rope_parameters` has an entry for each
/// kind. The reference looks for `truncate` beside these entries, whatever they hold.
pub(super) fn with_kind(config: &Config, layer: usize, attention: Attention) -> Result<Attention> {
    let window = config.optional_usize("sliding_window")?;
    let (kind, window) = match slides_by_list(config, layer)? {
        Some(true) => ("sliding_attention", window),
        _ => ("full_attention", None),
    };
    let expected = "rotary positions for each kind of layer";
    let all = config.child("rope_parameters")?;
    let all = all.ok_or_else(|| config.wrong("rope_parameters", expected))?;
    let rope = all.child(kind)?.ok_or_else(|| all.wrong(kind, expected))?;
    let share = rope.optional_f32("partial_rotary_factor")?;
    let mut scaling = scaling(&rope, config)?;
    if let Some(RopeScaling::Yarn { whole, .. }) = &mut scaling {
        *whole = all.bool_or("truncate", true)?;
    }
    Ok(Attention {
        window,
        rope_theta: Some(rope.f32_or("rope_theta", 10000.0)?),
        rope_dim: share.map(|share| (attention.head_dim as f32 * share) as usize),
        rope_scaling: scaling,
        ..attention
    })
}

/// Like [`scaling`], for heads of `head_dim` values, of which a share of the pairs may rotate.
pub(super) fn scaling_of_heads(
    rope: &Config,
    config: &Config,
    head_dim: usize,
) -> Result<Option<RopeScaling>> {
    if rope.optional_text("rope_type")? != Some("proportional") {
        return scaling(rope, config);
    }
    let share = rope.f32_or("partial_rotary_factor", 1.0)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(rope.wrong("partial_rotary_factor", "a number from 0 to 1"));
    }
    // Computed in f32, so that 0.7 of 20 is 14.
    let pairs = (share * head_dim as f32 / 2.0) as usize;
    Ok(Some(RopeScaling::Proportional {
        turned: 2 * pairs,
        factor: positive(rope, "factor")?.unwrap_or(1.0),
    }))
}

/// A number above zero, if the key is there.
fn positive(rope: &Config, key: &str) -> Result<Option<f32>> {
    match rope.optional_f32(key)? {
        Some(number) if number <= 0.0 => Err(rope.wrong(key, "a number above 0")),
        number => Ok(number),
    }
}

fn yarn(rope: &Config) -> Result<RopeScaling> {
    let factor = rope.f32("factor")?;
    let scale = |key: &str| -> Result<Option<f32>> {
        Ok(rope.optional_f32(key)?.filter(|&scale| scale != 0.0))
    };
    let scales = (scale("mscale")?, scale("mscale_all_dim")?);
    let magnitude = match (rope.optional_f32("attention_factor")?, scales) {
        (Some(magnitude), _) => magnitude,
        (None, (Some(own), Some(all))) => {
            RopeScaling::yarn_magnitude(factor, own) / RopeScaling::yarn_magnitude(factor, all)
        }
        _ => RopeScaling::yarn_magnitude(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        fast: rope.f32_or("beta_fast", 32.0)?,
        slow: rope.f32_or("beta_slow", 1.0)?,
        trained: rope.f32("original_max_position_embeddings")?,
        magnitude,
        whole: rope.bool_or("truncate", true)?,
    })
}

/// LongRoPE with its divisors for short texts.
fn long(rope: &Config, config: &Config) -> Result<RopeScaling> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    const LONGEST: &str = "max_position_embeddings";
    let divisors: Vec<f32> = rope.read_or("short_factor", Vec::new())?;
    rope.read_or("long_factor", Vec::<f32>::new())?;
    let number = |key: &str| -> Result<Option<f32>> {
        Ok(match rope.optional_f32(key)? {
            Some(number) => Some(number),
            None => config.optional_f32(key)?,
        })
    };
    let longest = number(LONGEST)?;
    let Some(original) = number(ORIGINAL)?.or(longest).filter(|length| *length > 1.0) else {
        return Err(rope.wrong(ORIGINAL, "the context length of the original training"));
    };
    let factor = positive(rope, "factor")?;
    let factor = factor.unwrap_or(longest.unwrap_or(original) / original);
    let usual = || {
        if factor > 1.0 {
            (1.0 + factor.ln() / original.ln()).sqrt()
        } else {
            1.0
        }
    };
    let magnitude = rope.optional_f32("attention_factor")?.unwrap_or_else(usual);
    Ok(RopeScaling::Divided {
        divisors,
        magnitude,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(rope: serde_json::Value) -> Result<Option<RopeScaling>> {
        let config = |value| Config::new("config.json", value).expect("an object");
        let outer =
            json!({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096});
        scaling(&config(rope), &config(outer))
    }

    #[test]
    fn dynamic_scaling_is_none_within_the_trained_context() {
        let dynamic = json!({"rope_type": "dynamic", "factor": 2.0});
        assert_eq!(read(dynamic).expect("a scaling"), None);
        assert!(read(json!({"rope_type": "another"})).is_err());
        assert!(read(json!({"rope_type": "longrope"})).is_err());
    }

    #[test]
    fn longrope_has_the_divisors_of_short_texts() {
        let long = |more: serde_json::Value| {
            let mut rope =
                json!({"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 8.0]});
            for (key, value) in more.as_object().expect("an object") {
                rope[key] = value.clone();
            }
            match read(rope).expect("a scaling") {
                Some(RopeScaling::Divided {
                    divisors,
                    magnitude,
                }) => {
                    assert_eq!(divisors, [1.0, 1.5]);
                    magnitude
                }
                other => panic!("{other:?}"),
            }
        };
        // transformers: sqrt(1 + ln(32) / ln(4096)).
        assert!((long(json!({})) - 1.190_238_1).abs() < 1e-6);
        assert!((long(json!({"factor": 1.0})) - 1.0).abs() < 1e-6);
        assert_eq!(long(json!({"attention_factor": 1.25})), 1.25);
    }
}
