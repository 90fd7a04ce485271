//! Log-probabilities from the raw logits, before bias, penalties and temperature.

/// The normalization of logits: `log softmax(x)_i = x_i - max - log(sum(exp(x - max)))`.
#[derive(Clone, Copy)]
pub struct LogSoftmax {
    max: f32,
    log_sum: f64,
}

impl LogSoftmax {
    /// Computes the normalization of the logits `[vocab]`; the sum is in f64.
    pub fn new(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
        LogSoftmax {
            max,
            log_sum: sum.ln(),
        }
    }

    /// The natural logarithm of the probability of a token with this logit.
    pub fn log_probability(&self, logit: f32) -> f32 {
        (f64::from(logit - self.max) - self.log_sum) as f32
    }
}
