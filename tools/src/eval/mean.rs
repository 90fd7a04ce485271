//! A mean over tokens with its standard error.

/// Running sums over the values.
#[derive(Clone, Copy, Default)]
pub struct Mean {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Mean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The mean.
    pub fn value(&self) -> f64 {
        self.sum / self.count
    }

    /// Standard error of the mean.
    pub fn error(&self) -> f64 {
        let variance = self.squares / self.count - self.value().powi(2);
        (variance.max(0.0) / (self.count - 1.0).max(1.0)).sqrt()
    }

    /// The exponential of the mean and its standard error, to first order. For a mean of -ln(probability), this is perplexity.
    pub fn exp(&self) -> (f64, f64) {
        let value = self.value().exp();
        (value, value * self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_a_mean() {
        let mut mean = Mean::default();
        [1.0, 2.0, 3.0, 6.0]
            .into_iter()
            .for_each(|value| mean.add(value));
        assert_eq!((mean.count(), mean.value()), (4, 3.0));
        // The sample variance 14 / 3, divided by 4.
        assert!((mean.error() - (14.0f64 / 12.0).sqrt()).abs() < 1e-12);
    }
}
