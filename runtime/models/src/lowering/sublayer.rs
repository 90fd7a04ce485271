//! Norms and multipliers around a mixer or a feed-forward network.

use serde::{Deserialize, Serialize};

/// How the residual stream is normalized before a mixer, a feed-forward network or the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// Divides by the root mean square.
    #[default]
    Rms,
    /// Normalizes by mean and variance.
    Layer {
        /// Whether a bias is added.
        bias: bool,
    },
}

/// How a mixer or a feed-forward network f reads the residual stream x and adds to it: `x += multiplier post(f(pre(x)))`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sublayer {
    /// Whether a norm comes before f.
    pub pre_norm: bool,
    /// Whether a norm comes after f.
    pub post_norm: bool,
    /// Epsilon of the norm after f; `None` for the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_norm_eps: Option<f32>,
    /// Factor of the added term.
    pub multiplier: f32,
    /// Factor of the normed input in models where it replaces the residual stream: `x = normed_residual n + multiplier f(n)`
    /// with `n = pre(x)`; `None` keeps the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normed_residual: Option<f32>,
}

impl Default for Sublayer {
    fn default() -> Self {
        Sublayer {
            pre_norm: true,
            post_norm: false,
            post_norm_eps: None,
            multiplier: 1.0,
            normed_residual: None,
        }
    }
}

impl Sublayer {
    /// Names of the norms before and after a mixer or a feed-forward network.
    pub(crate) fn norms(of_mixer: bool) -> [&'static str; 2] {
        if of_mixer {
            ["attn_norm", "post_attention_norm"]
        } else {
            ["ffn_norm", "post_ffw_norm"]
        }
    }
}
