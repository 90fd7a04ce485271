//! A ratio of sums over documents or sequences, with its standard error.

/// A ratio of two sums, and its standard error if there is more than one pair.
pub struct Ratio {
    /// The ratio.
    pub value: f64,
    /// Its standard error.
    pub error: Option<f64>,
}

impl Ratio {
    /// Divides the sum of the first numbers by the sum of the second numbers.
    pub fn over(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let count = pairs.clone().count() as f64;
        let (above, below) = pairs
            .clone()
            .fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
        let value = above / below;
        let squares: f64 = pairs.map(|(x, y)| (x - value * y).powi(2)).sum();
        let error = (count > 1.0).then(|| (squares * count / (count - 1.0)).sqrt() / below);
        Ratio { value, error }
    }

    /// Formats the ratio as `1.5000 ± 0.0200`.
    pub fn show(&self) -> String {
        match self.error {
            Some(error) => format!("{:.4} ± {error:.4}", self.value),
            None => format!("{:.4}", self.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_of_equal_documents_has_the_error_of_a_mean() {
        let bits = [1.0, 2.0, 4.0, 5.0];
        let ratio = Ratio::over(bits.iter().map(|&x| (x, 2.0)));
        assert_eq!(ratio.value, 1.5);
        // Standard deviation of the four quotients 0.5, 1, 2, 2.5, divided by the root of 4.
        let expected = (2.5f64 / 3.0).sqrt() / 2.0;
        assert!((ratio.error.unwrap() - expected).abs() < 1e-12);
        assert!(Ratio::over([(1.0, 2.0)].into_iter()).error.is_none());
    }

    #[test]
    fn documents_that_differ_only_in_length_have_no_error() {
        let ratio = Ratio::over([(1.0, 2.0), (3.0, 6.0), (10.0, 20.0)].into_iter());
        assert_eq!((ratio.value, ratio.error), (0.5, Some(0.0)));
    }
}
