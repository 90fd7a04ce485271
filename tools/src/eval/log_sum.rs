//! Normalization of logits for every token of a long text.

/// The logarithm of a sum of exponentials. The exponentials are f32, for speed over a vocabulary at every token; their sum is f64.
#[derive(Clone, Copy)]
pub struct LogSum {
    /// The largest logit.
    pub peak: f32,
    /// `log(sum(exp(x - peak)))`, base e.
    pub log: f64,
}

impl LogSum {
    /// Computes the logarithm for the logits `[vocab]`.
    pub fn new(logits: &[f32]) -> Self {
        let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponentials = logits.iter().map(|logit| f64::from((logit - peak).exp()));
        LogSum {
            peak,
            log: exponentials.sum::<f64>().ln(),
        }
    }

    /// The log-probability (base e) of a token with this logit.
    pub fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit - self.peak) - self.log
    }
}
