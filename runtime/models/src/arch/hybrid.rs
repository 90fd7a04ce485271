//! Shared code for configurations of hybrids with Mamba-2.

use super::Config;
use crate::error::Result;
use crate::mixers::Mamba2;

/// The kind of a layer's mixer, or of a layer with a single part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

/// Names of the kinds, as written by transformers since release 5, and as in published files.
const KINDS: [(&str, Kind); 6] = [
    ("linear_attention", Kind::Mamba),
    ("mamba", Kind::Mamba),
    ("full_attention", Kind::Attention),
    ("attention", Kind::Attention),
    ("mlp", Kind::Mlp),
    ("moe", Kind::Experts),
];

/// The kinds of all layers, from the first of `keys` that exists.
pub(super) fn kinds(config: &Config, keys: &[&'static str]) -> Result<Option<Vec<Kind>>> {
    let is_there = |key: &&&str| {
        config
            .object()
            .get(**key)
            .is_some_and(|kinds| !kinds.is_null())
    };
    let Some(key) = keys.iter().find(is_there) else {
        return Ok(None);
    };
    let kind = |name: &serde_json::Value| {
        let known = KINDS.iter().find(|(known, _)| name.as_str() == Some(known));
        known.map(|(_, kind)| *kind)
    };
    let kinds: Option<Vec<Kind>> = config.array(key)?.iter().map(kind).collect();
    let names = KINDS.map(|(name, _)| name).join(", ");
    let wrong = || config.wrong(key, &format!("a list of {names}"));
    kinds.map(Some).ok_or_else(wrong)
}

/// The kind of each layer's mixer, from the first of `keys` that exists; otherwise `usual`.
pub(super) fn mixer_kinds(
    config: &Config,
    keys: &[&'static str],
    usual: impl Fn(usize) -> Kind,
) -> Result<Vec<Kind>> {
    let layers = config.layers()?;
    let Some(kinds) = kinds(config, keys)? else {
        return Ok((0..layers).map(usual).collect());
    };
    let mixer = |kind: &Kind| matches!(kind, Kind::Mamba | Kind::Attention);
    if kinds.len() == layers && kinds.iter().all(mixer) {
        return Ok(kinds);
    }
    let key = keys.iter().find(|key| config.object().contains_key(**key));
    let expected = format!("mamba or attention for each of {layers} layers");
    Err(config.wrong(key.unwrap_or(&keys[0]), &expected))
}

/// Mamba-2 with `inner` channels, from keys that begin with `mamba_`.
pub(super) fn mamba2(config: &Config, inner: usize, norm_eps: f32) -> Result<Mamba2> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let heads = config.usize_or("mamba_n_heads", 128)?;
    if heads == 0 || !inner.is_multiple_of(heads) {
        let expected = format!("a divisor of the {inner} channels");
        return Err(config.wrong("mamba_n_heads", &expected));
    }
    let head_dim = inner / heads;
    let given = match config.optional_string("mamba_d_head") {
        Some("auto") => head_dim,
        _ => config.usize_or("mamba_d_head", head_dim)?,
    };
    if given != head_dim {
        let expected = format!("{head_dim}, for {heads} heads of {inner} channels");
        return Err(config.wrong("mamba_d_head", &expected));
    }
    let groups = config.usize_or("mamba_n_groups", 1)?;
    let (step_min, step_max) = config.limits("time_step_limit", (0.0, f32::INFINITY))?;
    Ok(Mamba2 {
        heads,
        head_dim,
        groups,
        state: config.usize_or("mamba_d_state", 256)?,
        conv: config.usize_or("mamba_d_conv", 4)?,
        conv_bias: config.bool_or("mamba_conv_bias", true)?,
        bias: config.bool_or("mamba_proj_bias", false)?,
        skip_per_channel: false,
        norm_groups: Some(groups),
        norm_before_gate: false,
        norm_eps,
        step_min,
        step_max: step_max.is_finite().then_some(step_max),
        out_bias: None,
        multipliers: None,
        hax: None,
    })
}

/// Channels of a Mamba-2 layer, `mamba_expand` times the hidden size.
pub(super) fn expanded(config: &Config) -> Result<usize> {
    let expand = config.usize_or("mamba_expand", 2)?;
    Ok(config.usize("hidden_size")?.saturating_mul(expand))
}

/// The checkpoint's name for one of our tensors: `whole` maps names outside the layers, and `parts` maps the beginning
/// of the part after `blk.N.`.
pub(super) fn renamed(
    name: &str,
    whole: &[(&str, &str)],
    layers: &str,
    parts: &[(&str, &str)],
) -> String {
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    let Some((number, part)) = layer else {
        return name.into();
    };
    let theirs = parts
        .iter()
        .find_map(|(ours, theirs)| Some(format!("{theirs}{}", part.strip_prefix(ours)?)));
    format!(
        "{layers}.{number}.{}",
        theirs.unwrap_or_else(|| part.into())
    )
}
