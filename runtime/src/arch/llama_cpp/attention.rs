//! The attention of llama.cpp's architectures: its keys and its names.

use super::Keys;
use super::names::{Name, Take, as_stored};
use crate::error::Result;
use crate::mixers::{Attention, RopeScaling};

/// How the two channels that turn together lie in the rows of q and k.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Pairs {
    /// Next to each other.
    Neighbours,
    /// Apart by half of those that turn, as ours.
    Halves,
}

/// The attention with `kv_heads` key and value heads, with rotary positions and no norms.
pub(super) fn attention(keys: &Keys, kv_heads: usize) -> Result<Attention> {
    let (hidden, heads) = (
        keys.usize("embedding_length")?,
        keys.usize("attention.head_count")?,
    );
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
            format!("the keys' {head_dim}"),
        ));
    }
    let turned = keys.usize_or("rope.dimension_count", head_dim)?;
    Ok(Attention {
        heads,
        kv_heads,
        head_dim,
        rope_theta: Some(keys.f32_or("rope.freq_base", 10000.0)?),
        rope_dim: (turned != head_dim).then_some(turned),
        rope_scaling: scaling(keys, turned)?,
        ..Attention::default()
    })
}

/// The same attention without positions.
pub(super) fn unturned(attention: Attention) -> Attention {
    Attention {
        rope_theta: None,
        rope_dim: None,
        rope_scaling: None,
        ..attention
    }
}

/// The names of the tensors of `attention`.
pub(super) fn names(attention: &Attention, pairs: Pairs) -> Vec<Name> {
    let Attention {
        heads, head_dim, ..
    } = *attention;
    let mut names = as_stored(&[
        ("mixer.v_proj", "attn_v"),
        ("mixer.o_proj", "attn_output"),
        ("mixer.q_norm", "attn_q_norm"),
        ("mixer.k_norm", "attn_k_norm"),
    ]);
    let rotary = match (pairs, attention.rope_theta) {
        (Pairs::Neighbours, Some(_)) => Take::Halves {
            head_dim,
            turned: attention.rope_dim.unwrap_or(head_dim),
        },
        _ => Take::Whole,
    };
    names.push(Name::new("mixer.k_proj", "attn_k", rotary.clone()));
    if attention.gate {
        // A query head is followed by its gate.
        let part = |part| Take::Groups { count: heads, part };
        names.push(Name::new("mixer.q_proj", "attn_q", part(0..head_dim)));
        names.push(Name::new(
            "mixer.g_proj",
            "attn_q",
            part(head_dim..2 * head_dim),
        ));
    } else {
        names.push(Name::new("mixer.q_proj", "attn_q", rotary));
    }
    names
}

/// How the rotary frequencies of `turned` channels are stretched.
fn scaling(keys: &Keys, turned: usize) -> Result<Option<RopeScaling>> {
    let kind = keys.optional_str("rope.scaling.type")?;
    let factor = match keys.optional_f32("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.f32_or("rope.scale_linear", 0.0)?,
    };
    let divisors = divisors(keys, turned)?;
    match kind {
        None | Some("linear") if factor > 0.0 && factor != 1.0 => match divisors {
            None => Ok(Some(RopeScaling::Linear { factor })),
            Some(_) => Err(keys.wrong(
                "rope.scaling.factor",
                factor,
                "no factor beside rope_freqs.weight",
            )),
        },
        None | Some("linear" | "none") => Ok(divisors),
        Some(kind) => Err(keys.wrong("rope.scaling.type", kind, "none or linear")),
    }
}

/// The scaling that `rope_freqs.weight` says, the divisor of each frequency. Such files come from Llama 3.1 and its
/// successors, whose divisors follow from four numbers.
fn divisors(keys: &Keys, turned: usize) -> Result<Option<RopeScaling>> {
    const NAME: &str = "rope_freqs.weight";
    if !keys.has_tensor(NAME) {
        return Ok(None);
    }
    let stored = keys.gguf().tensor(NAME)?.to_f32();
    let factor = stored.iter().copied().fold(1.0, f32::max);
    if stored.iter().all(|&divisor| divisor == 1.0) {
        return Ok(None);
    }
    let trained = keys.optional_f32("rope.scaling.original_context_length");
    let trained = match trained {
        Ok(trained) => trained.unwrap_or(8192.0),
        Err(_) => keys.usize("rope.scaling.original_context_length")? as f32,
    };
    let scaling = RopeScaling::Llama3 {
        factor,
        low: 1.0,
        high: 4.0,
        trained,
    };
    let theta = keys.f32_or("rope.freq_base", 10000.0)?;
    let plain = |i: usize| f64::from(theta).powf(-2.0 * i as f64 / turned as f64);
    let expected = (0..turned / 2).map(|i| plain(i) / scaling.apply(plain(i)));
    let close =
        |(stored, expected): (&f32, f64)| (f64::from(*stored) / expected - 1.0).abs() < 1e-3;
    match stored.len() == turned / 2 && stored.iter().zip(expected).all(close) {
        true => Ok(Some(scaling)),
        false => Err(keys.unsupported(format!(
            "{NAME}: divisors of the rotary frequencies other than those of Llama 3 with the factor {factor}"
        ))),
    }
}
