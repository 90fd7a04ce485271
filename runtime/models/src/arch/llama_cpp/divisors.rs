//! `rope_freqs.weight`: the divisors of the rotary frequencies, which llama.cpp's converter computes from Llama 3's scaling and
//! stores instead of its parameters.

use crate::mixers::RopeScaling;

/// Relative tolerance between a stored divisor and the scaling's, since the stored divisors are f32.
const CLOSE: f64 = 1e-3;
/// The parameters of Llama 3 itself.
const TRAINED: f32 = 8192.0;
const HIGH: f32 = 4.0;

/// The divisors of rotary frequencies, fastest frequency first.
pub(super) struct Divisors<'a> {
    pub theta: f32,
    /// The divisor of each pair of channels.
    pub stored: &'a [f32],
}

impl Divisors<'_> {
    /// The scaling with these divisors, if it is Llama 3's for some context. A common factor of its parameters does not change the
    /// result, so `low` is one.
    pub fn scaling(&self, trained: Option<f32>) -> Option<RopeScaling> {
        let factor = self.stored.iter().copied().fold(1.0, f32::max);
        let with = |trained: f32, high: f32| RopeScaling::Llama3 {
            factor,
            low: 1.0,
            high,
            trained,
        };
        let usual = with(trained.unwrap_or(TRAINED), HIGH);
        let fitted = || self.fit(f64::from(factor), with);
        std::iter::once_with(|| Some(usual))
            .chain(std::iter::once_with(fitted))
            .flatten()
            .find(|scaling| self.is(scaling))
    }

    fn plain(&self, pair: usize) -> f64 {
        let width = 2.0 * self.stored.len() as f64;
        f64::from(self.theta).powf(-2.0 * pair as f64 / width)
    }

    fn is(&self, scaling: &RopeScaling) -> bool {
        let width = 2 * self.stored.len();
        let is_close = |(pair, &stored): (usize, &f32)| {
            let expected = self.plain(pair) / scaling.frequency(self.theta, width, pair);
            (f64::from(stored) / expected - 1.0).abs() < CLOSE
        };
        self.stored.iter().enumerate().all(is_close)
    }

    /// Fits the line through two pairs between the kept and the divided ones. The kept share of a frequency `f` is
    /// `(trained f / 2 pi - 1) / (high - 1)`.
    fn fit(&self, factor: f64, with: impl Fn(f32, f32) -> RopeScaling) -> Option<RopeScaling> {
        let kept = |pair: usize| {
            let divided = 1.0 / f64::from(self.stored[pair]);
            (divided - 1.0 / factor) / (1.0 - 1.0 / factor)
        };
        let tau = std::f64::consts::TAU;
        let is_between = |&pair: &usize| kept(pair) > CLOSE && kept(pair) < 1.0 - CLOSE;
        let between: Vec<usize> = (0..self.stored.len()).filter(is_between).collect();
        let (trained, high) = match between[..] {
            [first, .., last] => {
                let slope = (kept(first) - kept(last)) / (self.plain(first) - self.plain(last));
                let at_zero = kept(first) - slope * self.plain(first);
                let high = 1.0 - 1.0 / at_zero;
                (tau * slope * (high - 1.0), high)
            }
            [only] => {
                let high = f64::from(HIGH);
                let periods = 1.0 + kept(only) * (high - 1.0);
                (tau * periods / self.plain(only), high)
            }
            [] => {
                // All pairs before `first` are kept, and all pairs from it on are divided.
                let first = (0..self.stored.len()).find(|&pair| kept(pair) <= CLOSE)?;
                let high = self.plain(first.checked_sub(1)?) / self.plain(first);
                (tau / self.plain(first), high)
            }
        };
        let is_possible = high > 1.0 && trained > 0.0 && trained.is_finite();
        is_possible.then(|| with(trained as f32, high as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The divisors, as computed by `conversion/llama.py`.
    fn divisors(theta: f64, pairs: usize, scaling: [f64; 4]) -> Vec<f32> {
        let [factor, low, high, trained] = scaling;
        let divisor = |pair: usize| {
            let length = std::f64::consts::TAU * theta.powf(pair as f64 / pairs as f64);
            let smooth = (trained / length - low) / (high - low);
            let divisor = match length {
                length if length < trained / high => 1.0,
                length if length > trained / low => factor,
                _ => 1.0 / ((1.0 - smooth) / factor + smooth),
            };
            divisor as f32
        };
        (0..pairs).map(divisor).collect()
    }

    #[test]
    fn a_scaling_is_found_again_whatever_its_numbers() {
        for (theta, pairs, scaling) in [
            (500_000.0, 64, [8.0, 1.0, 4.0, 8192.0]),
            (500_000.0, 32, [32.0, 1.0, 4.0, 8192.0]),
            (10_000.0, 8, [8.0, 1.0, 4.0, 32.0]),
            (10_000.0, 6, [4.0, 1.0, 4.0, 64.0]),
            (10_000.0, 12, [2.5, 2.0, 5.0, 128.0]),
            (1_000.0, 10, [8.0, 1.0, 32.0, 256.0]),
            (1e6, 4, [8.0, 1.0, 1.5, 1024.0]),
        ] {
            let stored = divisors(theta, pairs, scaling);
            let divisors = Divisors {
                theta: theta as f32,
                stored: &stored,
            };
            assert!(divisors.scaling(None).is_some(), "{theta} {scaling:?}");
        }
    }

    #[test]
    fn other_divisors_are_none_of_its() {
        for stored in [
            [1.0, 1.5, 1.1, 8.0, 8.0, 8.0],
            [8.0, 4.0, 2.0, 1.0, 1.0, 1.0],
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        ] {
            let divisors = Divisors {
                theta: 10_000.0,
                stored: &stored,
            };
            assert_eq!(divisors.scaling(None), None, "{stored:?}");
        }
    }
}
