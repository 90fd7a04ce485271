//! Normalization of logits where every token of a long text needs one.

/// The logarithm of the sum of exponentials; these are f32, which a vocabulary at every token asks for, and their sum f64.
#[derive(Clone, Copy)]
pub struct LogSum {
    /// The largest logit.
    pub peak: f32,
    /// `log(sum(exp(x - peak)))`, base e.
    pub log: f64,
}

impl LogSum {
    /// That of the logits `[vocab]`.
    pub fn new(logits: &[f32]) -> Self {
        let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponentials = logits.iter().map(|logit| f64::from((logit - peak).exp()));
        LogSum {
            peak,
            log: exponentials.sum::<f64>().ln(),
        }
    }

    /// The log-probability, base e, of a token with this logit.
    pub fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit - self.peak) - self.log
    }
}
