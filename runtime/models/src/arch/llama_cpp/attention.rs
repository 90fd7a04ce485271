//! The attention of llama.cpp's architectures: its keys and the names of its tensors.

use super::Keys;
use super::divisors::Divisors;
use super::names::{Name, Take, as_stored};
use crate::error::Result;
use crate::mixers::{Attention, RopeScaling};

/// The layout in q and k of the two channels that rotate together.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Pairs {
    /// Adjacent.
    Neighbours,
    /// Half of the rotated channels apart, as in our layout.
    Halves,
}

/// The attention of block `block`, with rotary positions and without norms.
pub(super) fn attention(keys: &Keys, block: usize) -> Result<Attention> {
    let hidden = keys.usize("embedding_length")?;
    let heads = keys.per_layer("attention.head_count")?[block];
    let head_dim = match keys.optional_usize("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a divisor of the embedding length {hidden}");
            return Err(keys.wrong("attention.head_count", heads, expected));
        }
    };
    let values = keys.usize_or("attention.value_length", head_dim)?;
    if values != head_dim {
        return Err(keys.wrong(
            "attention.value_length",
            values,
            format!("{head_dim}, the width of the keys"),
        ));
    }
    let turned = keys.usize_or("rope.dimension_count", head_dim)?;
    let has = |name: &str| keys.has_tensor(&format!("blk.{block}.{name}"));
    Ok(Attention {
        heads,
        kv_heads: keys.per_layer_or("attention.head_count_kv", heads)?[block],
        head_dim,
        rope_theta: Some(keys.f32_or("rope.freq_base", 10000.0)?),
        rope_dim: (turned != head_dim).then_some(turned),
        rope_scaling: scaling(keys, turned)?,
        bias: has("attn_q.bias") || has("attn_qkv.bias"),
        out_bias: has("attn_output.bias"),
        sinks: has("attn_sinks.weight"),
        ..Attention::default()
    })
}

/// Removes the positions from this attention.
pub(super) fn unturned(attention: Attention) -> Attention {
    Attention {
        rope_theta: None,
        rope_dim: None,
        rope_scaling: None,
        ..attention
    }
}

/// The names of the tensors of `attention` in block `block`, where queries, keys and values may share one tensor.
pub(super) fn names(keys: &Keys, block: usize, attention: &Attention, pairs: Pairs) -> Vec<Name> {
    let Attention {
        heads,
        kv_heads,
        head_dim,
        gate,
        ..
    } = *attention;
    let mut names = as_stored(&[
        ("mixer.o_proj", "attn_output"),
        ("mixer.q_norm", "attn_q_norm"),
        ("mixer.k_norm", "attn_k_norm"),
        ("mixer.sinks", "attn_sinks"),
    ]);
    let rotary = match (pairs, attention.rope_theta) {
        (Pairs::Neighbours, Some(_)) => Take::Halves {
            head_dim,
            turned: 0..attention.rope_dim.unwrap_or(head_dim),
        },
        _ => Take::Whole,
    };
    // In the file, each query head may be followed by its gate.
    let own_gate = keys.has_tensor(&format!("blk.{block}.attn_gate.weight"));
    let gate_in_q = gate && !own_gate;
    let part = |part| Take::Groups { count: heads, part };
    let queries = if gate_in_q {
        part(0..head_dim)
    } else {
        rotary.clone()
    };
    let mut projections = vec![
        ("mixer.q_proj", "attn_q", queries),
        ("mixer.k_proj", "attn_k", rotary),
        ("mixer.v_proj", "attn_v", Take::Whole),
    ];
    if gate_in_q {
        let gates = part(head_dim..2 * head_dim);
        projections.push(("mixer.g_proj", "attn_q", gates));
    } else if gate {
        names.push(Name::new("mixer.g_proj", "attn_gate", Take::Whole));
    }
    // The rows of each projection in the shared tensor.
    let query_rows = heads * head_dim * if gate_in_q { 2 } else { 1 };
    let kv_rows = kv_heads * head_dim;
    let rows = |theirs: &str| match theirs {
        "attn_q" => 0..query_rows,
        "attn_k" => query_rows..query_rows + kv_rows,
        _ => query_rows + kv_rows..query_rows + 2 * kv_rows,
    };
    let is_fused = |ending: &str| keys.has_tensor(&format!("blk.{block}.attn_qkv{ending}"));
    for (ending, is_fused) in [
        (".weight", is_fused(".weight")),
        (".bias", is_fused(".bias")),
    ] {
        names.extend(projections.iter().map(|(ours, theirs, take)| {
            let name = if is_fused {
                Name::new(ours, "attn_qkv", take.clone()).in_rows(rows(theirs))
            } else {
                Name::new(ours, theirs, take.clone())
            };
            name.ending(ending)
        }));
    }
    names
}

/// How the rotary frequencies of `turned` channels are stretched.
fn scaling(keys: &Keys, turned: usize) -> Result<Option<RopeScaling>> {
    let kind = keys.optional_str("rope.scaling.type")?;
    const KEYS: [&str; 2] = ["rope.scaling.factor", "rope.scale_linear"];
    let mut factor = None;
    for key in KEYS {
        let number = keys.optional_f32(key)?;
        if let Some(number) = number.filter(|&number| number <= 0.0) {
            return Err(keys.wrong(key, number, "a number above 0"));
        }
        factor = factor.or(number);
    }
    let stretched = factor.filter(|&factor| factor != 1.0);
    let divisors = divisors(keys, turned)?;
    if let (Some(factor), Some(_)) = (stretched, &divisors) {
        let expected = "no factor, since the file has rope_freqs.weight";
        return Err(keys.wrong(KEYS[0], factor, expected));
    }
    match (kind, stretched, factor) {
        (None | Some("linear"), Some(factor), _) => Ok(Some(RopeScaling::Linear { factor })),
        (None | Some("linear" | "none"), ..) => Ok(divisors),
        (Some("yarn"), _, Some(factor)) => yarn(keys, factor).map(Some),
        (Some("yarn"), ..) => Err(keys.wrong(KEYS[0], "nothing", "a number above 0")),
        (Some(kind), ..) => Err(keys.wrong("rope.scaling.type", kind, "none, linear or yarn")),
    }
}

/// Length in tokens of the texts of the training, before rotary frequencies were stretched.
pub(super) fn trained_length(keys: &Keys) -> Result<usize> {
    match keys.optional_usize("rope.scaling.original_context_length")? {
        Some(trained) => Ok(trained),
        None => keys.usize("context_length"),
    }
}

fn yarn(keys: &Keys, factor: f32) -> Result<RopeScaling> {
    let key = |name: &str| format!("rope.scaling.yarn_{name}");
    let mixed = keys.f32_or(&key("ext_factor"), 1.0)?;
    if mixed != 1.0 {
        return Err(keys.wrong(&key("ext_factor"), mixed, "1"));
    }
    let trained = trained_length(keys)?;
    let magnitude = RopeScaling::yarn_magnitude(factor, 1.0);
    let magnitude = match keys.f32_or(&key("log_multiplier"), 0.0)? {
        0.0 => magnitude,
        scale => magnitude / RopeScaling::yarn_magnitude(factor, scale),
    };
    Ok(RopeScaling::Yarn {
        factor,
        fast: keys.f32_or(&key("beta_fast"), 32.0)?,
        slow: keys.f32_or(&key("beta_slow"), 1.0)?,
        trained: trained as f32,
        magnitude: magnitude * keys.f32_or("rope.scaling.attn_factor", 1.0)?,
        whole: true,
    })
}

/// The scaling stored in `rope_freqs.weight`, as the divisor of each frequency.
fn divisors(keys: &Keys, turned: usize) -> Result<Option<RopeScaling>> {
    const NAME: &str = "rope_freqs.weight";
    if !keys.has_tensor(NAME) {
        return Ok(None);
    }
    let stored = keys.gguf().tensor(NAME)?.to_f32();
    if stored.iter().all(|&divisor| divisor == 1.0) {
        return Ok(None);
    }
    let trained = keys.optional_f32("rope.scaling.original_context_length");
    let trained = match trained {
        Ok(trained) => trained,
        Err(_) => Some(keys.usize("rope.scaling.original_context_length")? as f32),
    };
    let divisors = Divisors {
        theta: keys.f32_or("rope.freq_base", 10000.0)?,
        stored: &stored,
    };
    let scaling = if stored.len() == turned / 2 {
        divisors.scaling(trained)
    } else {
        None
    };
    let what = || {
        keys.unsupported(format!(
            "{NAME}: divisors of the rotary frequencies other than those of Llama 3"
        ))
    };
    scaling.map(Some).ok_or_else(what)
}
