use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Largest logit bias, frequency penalty and presence penalty, and largest factor of the repetition penalty in either direction. Whatever a
/// request asks for, a finite logit up to 1e24 stays finite: at most 2^23 biases and 2^16 penalties add up before and after the factor.
const MAX_BIAS: f32 = 1e9;
const MAX_PENALTY: f32 = 1e6;
const MAX_FACTOR: f32 = 1e3;
/// Longest penalty window, in tokens: the sampler allocates it up front.
const MAX_PENALTY_WINDOW: usize = 1 << 16;

/// Sampling parameters. The steps are applied in this order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SamplerParams {
    /// Divides the logits; 0 always takes the most probable token.
    pub temperature: f32,
    /// Number of most probable tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most probable tokens up to this total probability, in (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as probable as the most probable one, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Factor against tokens in the window, 0.001 to 1000; 1 is off, larger values discourage repetition.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the window, -1e6 to 1e6; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurs in the window, -1e6 to 1e6; 0 is off.
    pub presence_penalty: f32,
    /// Number of last tokens that the three penalties consider; 0 turns the penalties off.
    pub penalty_window: usize,
    /// Seed of the random numbers; each default has a new random seed.
    pub seed: u64,
    /// Added to the logits of these tokens; multiple entries for one token add up. -1e9, which forbids a token, to 1e9.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            seed: fastrand::u64(..),
            logit_bias: Vec::new(),
        }
    }
}

impl SamplerParams {
    /// Checks that all parameters are in range.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the parameter, its value and the allowed range.
    pub fn validate(&self) -> Result<()> {
        let checks: [(&str, f32, bool, &str); 6] = [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0 && self.temperature.is_finite(),
                "0 (most probable token) or a positive number",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "more than 0 and at most 1 (keep all)",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "0 (keep all) to 1",
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                (1.0 / MAX_FACTOR..=MAX_FACTOR).contains(&self.repetition_penalty),
                "0.001 to 1000, 1 for no penalty",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.abs() <= MAX_PENALTY,
                "-1000000 to 1000000, 0 for no penalty",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                self.presence_penalty.abs() <= MAX_PENALTY,
                "-1000000 to 1000000, 0 for no penalty",
            ),
        ];
        for (name, value, ok, expected) in checks {
            if !ok {
                return Err(Error::Invalid {
                    what: name.into(),
                    reason: format!("found {value}, expected {expected}"),
                });
            }
        }
        if self.penalty_window > MAX_PENALTY_WINDOW {
            return Err(Error::Invalid {
                what: "penalty_window".into(),
                reason: format!(
                    "found {} tokens, expected at most {MAX_PENALTY_WINDOW}",
                    self.penalty_window
                ),
            });
        }
        let is_out = |bias: f32| bias.is_nan() || bias.abs() > MAX_BIAS;
        if let Some((token, bias)) = self.logit_bias.iter().find(|b| is_out(b.1)) {
            return Err(Error::Invalid {
                what: "logit_bias".into(),
                reason: format!(
                    "found {bias} for token {token}, expected -1e9 (forbids the token) to 1e9"
                ),
            });
        }
        Ok(())
    }

    /// Whether sampling always takes the first of the largest unmodified logits.
    #[doc(hidden)]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.penalizes() && self.logit_bias.is_empty()
    }

    /// Whether any of the three penalties can change a logit.
    pub(crate) fn penalizes(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.frequency_penalty != 0.0
                || self.presence_penalty != 0.0)
    }
}
